"""What does not fit is refused with the reason, and what has no layers gives features only."""

from typing import Any

import pytest
import timm
import torch
from open_clip.coca_model import CoCa
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.timm_model import TimmModel
from timm.models.vision_transformer import ParallelScalingBlock
from torch import nn

from dear.backbone.features_only import FeaturesOnlyVisionTower, image_kind
from dear.backbone.loading.convert import explain_misfit, require_fit, to_towers
from dear.backbone.loading.open_clip_format import build
from dear.errors import WeightsError
from tests.helpers.errors import refuses

VISION = {"image_size": 20, "patch_size": 4, "width": 21, "head_width": 7, "layers": 2}
TEXT = {"context_length": 13, "vocab_size": 29, "width": 22, "heads": 2, "layers": 2}


def made(
    vision: dict[str, Any] | None = None, text: dict[str, Any] | None = None, kind: Any = CLIP, **options: Any
) -> nn.Module:
    with torch.device("meta"):
        model: nn.Module = kind(17, VISION | (vision or {}), TEXT | (text or {}), **options)
    return model


@pytest.mark.parametrize(
    ("vision", "text", "options", "reason"),
    [
        ({"pool_type": "none"}, {}, {}, "pooled by 'none'"),
        ({"image_size": (20, 24)}, {}, {}, "not square"),
        ({}, {"pool_type": "first"}, {}, "text tower, a CLIP pooled by 'first'"),
        ({}, {"pool_type": "first"}, {"kind": CustomTextCLIP}, "a TextTransformer pooled by 'first'"),
        ({}, {"embed_cls": True}, {}, "text tower, a CLIP"),  # open_clip builds it, but cannot compute it
    ],
)
def test_one_part_that_does_not_fit(
    vision: dict[str, Any], text: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    model = made(vision, text, **options)
    assert reason in str(explain_misfit(model))
    refuses(WeightsError, "does not fit", to_towers, model)


def test_a_model_of_another_class() -> None:
    with torch.device("meta"):
        coca = build("coca_ViT-B-32")
    assert isinstance(coca, CoCa)
    assert explain_misfit(coca) is None
    coca.__class__ = type("Other", (CoCa,), {})
    refuses(WeightsError, "this one does not fit: its class Other", require_fit, coca, "this one")


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("vit_small_patch16_224", {"reg_tokens": 2}, "VisionTransformer"),
        ("vit_small_patch16_224", {"img_size": (32, 48)}, None),
        ("vit_small_patch16_224", {"global_pool": "max"}, "VisionTransformer"),
        ("vit_small_patch16_224", {"global_pool": "avg", "final_norm": False}, "VisionTransformer"),
        ("vit_small_patch16_rope_mixed_224", {}, "Eva"),
        ("vit_small_patch16_dinov3", {}, "Eva"),
        ("deit3_small_patch16_224", {"block_fn": ParallelScalingBlock}, "VisionTransformer"),
        ("convnext_tiny", {}, "ConvNeXt"),
    ],
)
def test_towers_of_timm_that_give_features_only(name: str, options: dict[str, Any], kind: str | None) -> None:
    with torch.device("meta"):
        model: Any = CustomTextCLIP(17, VISION, TEXT)
        tower = TimmModel.__new__(TimmModel)
        nn.Module.__init__(tower)
        tower.trunk, tower.head = timm.create_model(name, num_classes=17, **options), nn.Sequential()
    tower.image_size = (224, 224)
    model.visual = tower
    if kind is None:
        assert "not square" in str(explain_misfit(model))
        return
    with torch.device("meta"):
        image, _ = to_towers(model)
    assert isinstance(image, FeaturesOnlyVisionTower)
    assert image_kind(model.visual) == f"timm's {kind}"
