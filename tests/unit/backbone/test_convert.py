"""What does not fit is refused with the reason."""

from collections.abc import Callable
from typing import Any

import open_clip
import pytest
import torch
from open_clip.coca_model import CoCa
from open_clip.model import CLIP, CustomTextCLIP
from torch import nn

from dear.backbone.convert import require_fit, to_towers, why_not
from dear.backbone.load import build
from dear.errors import WeightsError

VISION = {"image_size": 20, "patch_size": 4, "width": 21, "head_width": 7, "layers": 2}
TEXT = {"context_length": 13, "vocab_size": 29, "width": 22, "heads": 2, "layers": 2}


def made(
    vision: dict[str, Any] | None = None, text: dict[str, Any] | None = None, **options: Any
) -> nn.Module:
    with torch.device("meta"):
        return CLIP(17, VISION | (vision or {}), TEXT | (text or {}), **options)


def test_a_plain_clip_fits() -> None:
    assert why_not(made()) is None
    assert why_not(made({"no_ln_pre": True, "final_ln_after_pool": True, "ls_init_value": 0.1})) is None
    assert why_not(made(quick_gelu=True, nonscalar_logit_scale=True)) is None


@pytest.mark.parametrize(
    ("vision", "text", "options", "reason"),
    [
        ({"attentional_pool": True, "attn_pooler_heads": 1}, {}, {}, "not read at a class token"),
        ({"pool_type": "avg"}, {}, {}, "not read at a class token"),
        ({"image_size": (20, 24)}, {}, {}, "not square"),
        ({"scale_heads": True}, {}, {}, "CustomResidualAttentionBlock"),
        ({"layers": (1, 1, 1, 1), "width": 8, "image_size": 32}, {}, {}, "ModifiedResNet, not a ViT"),
        ({}, {"pool_type": "last"}, {}, "pooled by 'last'"),
        ({}, {"no_causal_mask": True}, {}, "not causal"),
        ({}, {"proj_type": "none", "width": 34}, {}, "no plain projection"),
        ({}, {"proj_bias": True}, {}, "no plain projection"),
        ({}, {}, {"init_logit_bias": -10.0}, "SigLIP"),
    ],
)
def test_one_part_that_does_not_fit(
    vision: dict[str, Any], text: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    model = made(vision, text, **options)
    assert reason in str(why_not(model))
    with pytest.raises(WeightsError, match=r"does not fit: .*class token and a causal text tower"):
        to_towers(model)


def test_open_clips_resnet_and_coca() -> None:
    with torch.device("meta"):
        resnet, coca = build("RN50"), build("coca_ViT-B-32")
    assert why_not(resnet) == "its image tower is a ModifiedResNet, not a ViT"
    assert isinstance(coca, CoCa)
    assert why_not(coca) == "its class CoCa is not open_clip's plain CLIP"
    with pytest.raises(WeightsError, match="RN50 does not fit"):
        require_fit(resnet, "RN50")


def test_a_custom_text_tower_like_siglips() -> None:
    with torch.device("meta"):
        model = CustomTextCLIP(17, VISION, TEXT, init_logit_bias=-10.0)
    assert why_not(model) == "its class CustomTextCLIP is not open_clip's plain CLIP"


@pytest.mark.parametrize("name", ["ViT-B-16-SigLIP", "ViT-SO400M-14-SigLIP2", "EVA02-B-16", "convnext_base"])
def test_timm_towers_are_refused_before_they_are_built(name: str) -> None:
    assert name in open_clip.list_models()
    with pytest.raises(WeightsError, match="its image tower is a timm model"):
        build(name)


def test_hugging_face_text_towers_are_refused_before_they_are_fetched() -> None:
    with pytest.raises(WeightsError, match="its text tower is a Hugging Face model"):
        build("roberta-ViT-B-32")


def test_cross_attention(make_small_model: Callable[..., CLIP]) -> None:
    model = make_small_model()
    model.transformer.resblocks[1].ln_1_kv = nn.LayerNorm(22)
    assert why_not(model) == "it has cross-attention"


def test_another_norm(make_small_model: Callable[..., CLIP]) -> None:
    model = make_small_model()
    model.visual.transformer.resblocks[3].ln_1 = nn.RMSNorm(21)
    assert why_not(model) == "it normalises by RMSNorm"
