"""Models as transformers saves them give the features that transformers computes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.loading.load import load_clip
from dear.errors import DearError, WeightsError
from tests.helpers.clips import compare, saved
from tests.helpers.errors import refuses
from tests.unit.backbone.tokenizer_files import write_tokenizer

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(("act", "end"), [("quick_gelu", 2), ("gelu", 49407)])
def test_clip(tmp_path: Path, act: str, end: int) -> None:
    model = saved(tmp_path, "CLIP", hidden_act=act, eos_token_id=end)
    clip = load_clip(str(tmp_path))
    assert (clip.identity.model, clip.identity.pretrained) == (str(tmp_path), "folder")
    assert clip.text.pool == ("argmax" if end == 2 else "eos")
    compare(clip, model)


@pytest.mark.parametrize(
    ("kind", "text", "image"),
    [
        ("CLIP", "gelu", "gelu_pytorch_tanh"), ("CLIP", "gelu_pytorch_tanh", "quick_gelu"),
        ("Siglip", "quick_gelu", "gelu"),
    ],
)  # fmt: skip
def test_each_tower_has_its_own_activation(tmp_path: Path, kind: str, text: str, image: str) -> None:
    model = saved(tmp_path, kind, hidden_act=text, image={"hidden_act": image})
    if kind == "Siglip":
        write_tokenizer("T5", tmp_path)
    compare(load_clip(str(tmp_path)), model)


@pytest.mark.parametrize(
    ("tower", "change"),
    [
        ("text_config", {"hidden_act": "gelu"}), ("vision_config", {"layer_norm_eps": 0.1}),
        ("text_config", {"eos_token_id": 320}),
    ],
)  # fmt: skip
def test_the_settings_of_old_files_come_first(tmp_path: Path, tower: str, change: dict[str, Any]) -> None:
    """They stand beside the towers' settings, and were ignored."""
    saved(tmp_path, "CLIP")
    plain = load_clip(str(tmp_path)).identity
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {f"{tower}_dict": config[tower] | change}))
    model = transformers.CLIPModel.from_pretrained(tmp_path).eval()
    clip = load_clip(str(tmp_path))
    compare(clip, model)
    assert clip.identity != plain


@pytest.mark.parametrize(
    ("kind", "tower", "name"), [("CLIP", "text_config", "text"), ("Siglip", "vision_config", "image")]
)
def test_a_width_that_is_no_multiple_of_its_heads(tmp_path: Path, kind: str, tower: str, name: str) -> None:
    """An image tower of 24 numbers and 5 heads was read as one of 6."""
    saved(tmp_path, kind)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config[tower]["num_attention_heads"] = 5
    path.write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=f"its {name} tower's width 24 is not divisible by its 5 heads"):
        load_clip(str(tmp_path))


def test_siglip(tmp_path: Path) -> None:
    model = saved(tmp_path, "Siglip", hidden_act="gelu_pytorch_tanh")
    write_tokenizer("T5", tmp_path)
    clip = load_clip(str(tmp_path))
    assert torch.equal(clip.tokenize(["A photo, of!"]), clip.tokenize(["a photo of"]))  # SigLIP's cleaning
    assert (clip.first_word, clip.words_in(["a photo of", "cat"]).tolist()) == (0, [3, 1])
    torch.testing.assert_close(clip.mean.flatten(), torch.full((3,), 0.5))
    torch.testing.assert_close(clip.logit_bias, model.logit_bias.reshape(()))
    compare(clip, model)


def test_weights_of_transformers_beside_a_model_of_transformers(tmp_path: Path) -> None:
    """A file in their names was held for one of another architecture."""
    saved(tmp_path / "model", "CLIP")
    clip = load_clip(str(tmp_path / "model"))
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "moved.safetensors")
    moved = load_clip(str(tmp_path / "model"), str(tmp_path / "moved.safetensors"))
    assert (moved.identity, moved.identity.pretrained) == (clip.identity, "moved.safetensors")


def test_what_is_not_clip(tmp_path: Path) -> None:
    refuses(WeightsError, "holds no open_clip_config.json and no config.json", load_clip, str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 3}))
    refuses(WeightsError, "transformers' 'bert' is not one of clip, siglip", load_clip, str(tmp_path))


def test_missing_and_foreign_tensors(tmp_path: Path) -> None:
    saved(tmp_path, "CLIP")
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model.safetensors"
    state = load_file(path) | {"more.weight": torch.zeros(2)}
    del state["visual_projection.weight"]
    save_file(state, path)
    with pytest.raises(WeightsError, match=r"1 missing \(first: visual\.proj\).*1 unknown \(first: more"):
        load_clip(str(tmp_path))
    path.unlink()
    with pytest.raises(WeightsError, match=r"holds no model\.safetensors .*and no pytorch_model\.bin"):
        load_clip(str(tmp_path))


@pytest.mark.parametrize("pixels", [{"image_std": [0, 0, 0]}, {"image_mean": [1e308] * 3}, []])
def test_statistics_of_pixels_that_cannot_be(pixels: object, tmp_path: Path) -> None:
    """They would be ignored, or make features that are not finite."""
    saved(tmp_path, "CLIP")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(pixels))
    refuses(DearError, "preprocessor_config.json: it", load_clip, str(tmp_path))
