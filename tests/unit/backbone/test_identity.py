"""An identity tells models apart whose tensors are the same."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.loading import hub
from dear.backbone.loading.load import load_clip
from tests.unit.backbone.prime import CONFIG, NAME, features
from tests.unit.backbone.tokenizer_files import write_tokenizer

pytestmark = pytest.mark.usefixtures("prime_architecture")


def folder_of(folder: Path, state: dict[str, Tensor], changes: dict[str, Any], **pixels: Any) -> Path:
    """A folder in open_clip's form, its configuration that of the small architecture with changes."""
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "open_clip_model.safetensors")
    config = copy.deepcopy(CONFIG)
    for key, change in changes.items():
        config[key] = config[key] | change if isinstance(change, dict) else change
    (folder / hub.CONFIG).write_text(json.dumps({"model_cfg": config, "preprocess_cfg": pixels}))
    return folder


def same_features(one: Clip, other: Clip) -> bool:
    return all(torch.equal(a, b) for a, b in zip(features(one), features(other), strict=True))


def test_a_changed_configuration(tmp_path: Path, state: dict[str, Tensor]) -> None:
    folder = folder_of(tmp_path / "model", state, {})
    before = load_clip(str(folder))
    assert load_clip(str(folder_of(folder, state, {}))).identity == before.identity
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"vision_cfg": {"head_width": 3}}, {}), ({"text_cfg": {"heads": 11}}, {}),
        ({"text_cfg": {"no_causal_mask": True}}, {}), ({"quick_gelu": True}, {}), ({}, {"std": [0.3] * 3}),
    ]  # fmt: skip
    for changes, view in cases:
        after = load_clip(str(folder_of(folder, state, changes, **view)))
        assert after.identity != before.identity, changes
        assert not same_features(after, before), changes


def test_how_a_configuration_is_written(tmp_path: Path, state: dict[str, Tensor]) -> None:
    folder = folder_of(tmp_path / "model", state, {}, mean=[0, 0, 0], std=[1, 1, 1])
    before = load_clip(str(folder)).identity
    content = json.loads((folder / hub.CONFIG).read_text())
    content["preprocess_cfg"] = {"std": [1.0] * 3, "mean": [0.0] * 3}
    content["model_cfg"] = dict(reversed(content["model_cfg"].items()))
    (folder / hub.CONFIG).write_text(json.dumps(content, indent=4))
    assert load_clip(str(folder)).identity == before


def test_the_tokenizer_beside_the_weights(tmp_path: Path, state: dict[str, Tensor]) -> None:
    named = {"text_cfg": {"hf_tokenizer_name": "someone/words"}}
    folder = folder_of(tmp_path / "model", state, named)
    write_tokenizer("BERT", folder)
    before = load_clip(str(folder))
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content, indent=3))
    assert load_clip(str(folder)).identity == before.identity
    path.with_name("tokenizer_config.json").write_text(
        json.dumps({"padding_side": "right", "transformers_version": "9.9"})  # the default, and an unread key
    )
    assert load_clip(str(folder)).identity == before.identity
    words = content["model"]["vocab"]
    words["cat"], words["tree"] = words["tree"], words["cat"]
    path.write_text(json.dumps(content))
    after = load_clip(str(folder))
    assert after.identity != before.identity
    assert torch.equal(after.tokenize(["a cat"]), before.tokenize(["a tree"]))


def test_the_activation_of_a_tag(tmp_path: Path, state: dict[str, Tensor]) -> None:
    """A file named after a tag has its activation, and another name of the same file has not."""
    for name in ("quick", "other", "plain"):
        save_file(state, tmp_path / f"{name}.safetensors")
    quick, other, plain = (
        load_clip(NAME, str(tmp_path / f"{name}.safetensors")) for name in ("quick", "other", "plain")
    )
    assert plain.identity == other.identity
    assert same_features(plain, other)
    assert quick.identity != plain.identity
    assert not same_features(quick, plain)
