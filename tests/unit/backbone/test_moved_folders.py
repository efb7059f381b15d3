"""A bundle whose backbone is a folder: what counts is the folder's content, not the path that it had."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import CONFIG
from dear.adapters.predictor import Predictor
from dear.backbone.loading import hub
from dear.backbone.loading.load import load_clip
from dear.backbone.loading.open_clip_format import build
from dear.errors import WeightsError
from dear.methods.declaration import MethodSettings
from dear.roles.table import HeadRole, RoleTable
from tests.helpers.errors import refuses
from tests.standin_hub import StandIn
from tests.unit.backbone import prime

pytestmark = pytest.mark.usefixtures("prime_architecture")


def write_model(folder: Path, **changes: Any) -> Path:
    """A small CLIP in a folder."""
    folder.mkdir(parents=True)
    save_file(build(prime.NAME).state_dict(), folder / "open_clip_model.safetensors")
    (folder / hub.CONFIG).write_text(json.dumps({"model_cfg": prime.CONFIG | changes, "preprocess_cfg": {}}))
    return folder


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_model(tmp_path / "clip")


def bundle_on(model: str) -> Bundle:
    identity = load_clip(model).identity
    return Bundle(
        "zero-shot", MethodSettings(), model, None, identity, None, ("cat", "dog"), ("a photo of a {}.",), {}
    )


@pytest.fixture
def bundle(model: Path) -> Bundle:
    return bundle_on(model.name)


@pytest.mark.parametrize(
    ("home", "form"), [("new/clip2", "relative"), ("ViT-B-16", "absolute"), ("new/clip2", "~")]
)
def test_a_folder_that_moved(
    bundle: Bundle, model: Path, monkeypatch: pytest.MonkeyPatch, home: str, form: str
) -> None:
    """Also to the name of an architecture."""
    Path(home).parent.mkdir(exist_ok=True)
    shutil.move(model, home)
    monkeypatch.setenv("HOME", os.getcwd())
    moved = {"relative": home, "absolute": str(Path(home).resolve()), "~": f"~/{home}"}[form]
    assert Predictor(bundle, "cpu", pretrained=moved).classes == bundle.classes


@pytest.mark.parametrize("pretrained", [None, "new/open_clip_model.safetensors"])
def test_a_folder_that_is_not_here(bundle: Bundle, model: Path, pretrained: str | None) -> None:
    shutil.move(model, "new")
    wrong = f"; '{pretrained}' is no folder" if pretrained else ""
    named = rf"the bundle of zero-shot is 'clip'.* an architecture{wrong}: .*--pretrained FOLDER"
    with pytest.raises(WeightsError, match=named):
        bundle.load_backbone(pretrained=pretrained)


def test_a_missing_folder_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OWNER/NAME is also what repositories are called."""
    monkeypatch.chdir(tmp_path)
    bundle = bundle_on(str(write_model(tmp_path / "models" / "clip").relative_to(tmp_path)))
    shutil.rmtree("models")
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: pytest.fail("the hub was asked"))
    refuses(WeightsError, "is 'models/clip', which is neither a folder here", bundle.load_backbone)


def test_no_path_of_this_machine_is_published(
    model: Path, tmp_path: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder called like an architecture stays a folder."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # which has no stand-in
    model = model.rename(tmp_path / "ViT-B-32")
    bundle = bundle_on(str(model))
    roles = RoleTable("by hand", bundle.weights, ("color",), (HeadRole(1, 0, "core", "color"),))
    bundle = replace(bundle, roles=roles)
    bundle.push_to_hub("someone/cards")
    sent = standin.files["someone/cards"]
    assert not [name for name, content in sent.items() if str(model.parent).encode() in content]
    config = json.loads(sent[CONFIG])
    assert (config["backbone"]["model"], config["roles"]["weights"]["model"]) == ("./ViT-B-32",) * 2
    assert bundle.without_paths().load_backbone(pretrained=str(model)).identity == bundle.weights
    weights = replace(bundle.weights, model="hf-hub:me/clip")
    of_hub = replace(bundle, model="me/clip", weights=weights, roles=None)
    assert of_hub.without_paths() == of_hub
