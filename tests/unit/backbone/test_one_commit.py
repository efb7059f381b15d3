"""A model of the hub has all files of one commit, and what cannot be had is no missing file."""

import json
from pathlib import Path

import pytest
import torch

from dear.backbone import hub
from dear.backbone.load import load_clip
from dear.errors import WeightsError
from tests.standin_hub import COMMIT, Faults, StandIn
from tests.unit.backbone.test_from_transformers import saved

NAME, PIXELS = "someone/clip", "preprocessor_config.json"


def serve(standin: StandIn, folder: Path) -> None:
    standin.files[NAME] = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path, standin: StandIn) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    saved(folder, "CLIP")
    (folder / PIXELS).write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}))
    serve(standin, folder)
    return folder


@pytest.mark.usefixtures("folder")
def test_pixels_that_cannot_be_had_are_not_the_usual_ones(standin: StandIn) -> None:
    standin.faults = Faults(status={PIXELS: 403})
    with pytest.raises(WeightsError, match=r"cannot download preprocessor_config\.json"):
        load_clip(NAME)
    standin.faults = Faults()
    assert load_clip(NAME).mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_a_file_that_a_repository_lacks_is_known_offline(
    folder: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / PIXELS).unlink()
    serve(standin, folder)
    usual = load_clip(NAME)
    asked = len(standin.requests)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    again = load_clip(NAME)
    assert again.identity == usual.identity
    assert torch.equal(again.mean, usual.mean)
    assert len(standin.requests) == asked


@pytest.mark.usefixtures("folder")
def test_what_is_fetched_later_belongs_to_what_was_fetched_before(standin: StandIn) -> None:
    """The first command could not have the weights; a later commit may have others."""
    standin.faults = Faults(status={"model.safetensors": 403})
    with pytest.raises(WeightsError, match=r"cannot download model\.safetensors"):
        load_clip(NAME)
    standin.faults = Faults()
    standin.requests.clear()
    load_clip(NAME)
    weights = {path for _, path, _ in standin.requests if path.endswith("/model.safetensors")}
    assert f"/{NAME}/resolve/{COMMIT}/model.safetensors" in weights
    assert f"/{NAME}/resolve/main/model.safetensors" not in weights


def test_a_file_that_its_author_adds_later_is_found(folder: Path, standin: StandIn) -> None:
    standin.files[NAME] = {"README.md": b"soon"}
    hub.fetch(NAME, ["README.md"])
    with pytest.raises(WeightsError, match=r"has no open_clip_config\.json and no config\.json"):
        load_clip(NAME)
    serve(standin, folder)
    standin.faults = Faults(commit="b" * 40)
    assert hub.commit_of(hub.fetch(NAME, ["config.json"])) == "b" * 40
