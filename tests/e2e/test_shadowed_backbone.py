"""The default backbone in a stranger's folder, which holds a model of the same names: it is not taken."""

import json
from pathlib import Path

import pytest
import torch
from open_clip.factory import _MODEL_CONFIGS
from safetensors.torch import save

from dear.backbone.choice import REAL
from dear.backbone.load import build_random, load_clip
from dear.cli.main import main
from dear.retrieval.index import open_index
from tests.e2e.test_default_backbone import FILE, REPOSITORY, SMALL
from tests.standin_hub import StandIn

PIXELS = {"mean": [0.5] * 3, "std": [0.5] * 3}


@pytest.fixture
def published(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """The hash of the weights that the hub serves; the current folder is a stranger's."""
    monkeypatch.setitem(_MODEL_CONFIGS, REAL.model, SMALL)
    content = save(dict(build_random(REAL.model, 5).state_dict()))
    standin.files[REPOSITORY] = {"README.md": b"a card", FILE: content}
    sha256 = load_clip(*REAL).identity.sha256
    capsys.readouterr()
    folder = tmp_path / "stranger"
    (folder / REAL.model).mkdir(parents=True)
    config = json.dumps({"model_cfg": SMALL, "preprocess_cfg": PIXELS})
    (folder / REAL.model / "open_clip_config.json").write_text(config)
    torch.save(dict(build_random(REAL.model, 77).state_dict()), folder / str(REAL.pretrained))
    monkeypatch.chdir(folder)
    return sha256


def test_fit_takes_the_published_weights(published: str, photos: Path, tmp_path: Path) -> None:
    words = ["fit", str(photos), "--method", "gda", "--device", "cpu", "--out"]
    assert main([*words, str(tmp_path / "bundle")]) == 0
    backbone = json.loads((tmp_path / "bundle" / "config.json").read_text())["backbone"]
    assert (backbone["model"], backbone["pretrained"]) == REAL
    assert backbone["weights"]["sha256"] == published
    assert main([*words, str(tmp_path / "theirs"), "--pretrained", f"./{REAL.pretrained}"]) == 0
    theirs = json.loads((tmp_path / "theirs" / "config.json").read_text())["backbone"]
    assert theirs["weights"]["sha256"] != published


def test_an_index_names_the_tag(published: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    words = ["index", "build", "--features", "heads", str(photos / "images"), "--out", str(out)]
    assert main([*words, "--device", "cpu"]) == 0
    heads = open_index(out).metadata["heads"]
    assert (heads["model"], heads["pretrained"], heads["sha256"]) == (*REAL, published)
