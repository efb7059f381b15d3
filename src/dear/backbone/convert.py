"""Convert an open_clip model to our towers, sharing its weights; refuse it if the mapping is not exact."""

from typing import Any

from torch import nn

from dear.backbone.kinds import CLIP, CUSTOM, EVA, TEXT, TIMM, TIMM_VIT, VISION, is_a, just_a
from dear.backbone.parts import block_why_not
from dear.backbone.plain import PlainClip
from dear.backbone.readout import pool_why_not
from dear.backbone.towers import TextTower
from dear.backbone.vision import VisionTower
from dear.errors import WeightsError

TEXT_POOLS = ("argmax", "eos", "last")


def to_towers(model: nn.Module) -> tuple[VisionTower, TextTower]:
    """The image and text tower of an open_clip model. Raises WeightsError as `require_fit` does."""
    require_fit(model)
    return VisionTower(model.visual), TextTower(_text(model))


def require_fit(model: nn.Module, name: str = "this CLIP") -> None:
    """Raise WeightsError with the reason if these towers would not reproduce the model's forward pass."""
    reason = why_not(model)
    if reason is not None:
        raise WeightsError(
            f"{name} does not fit: {reason}. "
            "dear needs a ViT image tower and a transformer text tower of open_clip's own."
        )


def why_not(model: Any) -> str | None:
    """Why an open_clip model cannot be mapped exactly onto the towers, or None if it can."""
    if isinstance(model, PlainClip):
        return None
    if not just_a(model, CLIP, CUSTOM):
        return f"its class {type(model).__name__} is neither open_clip's CLIP nor its CustomTextCLIP"
    visual = model.visual
    if is_a(visual, TIMM):
        reason = _timm_why_not(visual)
    elif is_a(visual, VISION):
        reason = _plain_why_not(visual)
    else:
        reason = f"its image tower is a {type(visual).__name__}, not a ViT"
    return reason or _text_why_not(_text(model))


def _text(model: Any) -> Any:
    """What holds the text tower: the model itself, or its own module for it."""
    return model.text if is_a(model, CUSTOM) else model


def _plain_why_not(visual: Any) -> str | None:
    if visual.attn_pool is not None:
        return "its image embedding is pooled by open_clip's AttentionalPooler (CoCa)"
    if visual.pool_type not in ("tok", "avg"):
        return f"its image embedding is pooled by {visual.pool_type!r}"
    if visual.proj is None:
        return "it has no plain projection matrix into the joint space"
    if visual.image_size[0] != visual.image_size[1]:
        return "its images are not square"
    return _first(block_why_not(block) for block in visual.transformer.resblocks)


def _timm_why_not(visual: Any) -> str | None:
    trunk = visual.trunk
    if not just_a(trunk, TIMM_VIT, EVA):
        return f"its image tower is timm's {type(trunk).__name__}, not a plain ViT"
    if len(visual.head) and not isinstance(getattr(visual.head, "proj", None), nn.Linear):
        return "it has no plain projection matrix into the joint space"
    height, width = trunk.patch_embed.img_size
    if height != width:
        return "its images are not square"
    if trunk.reg_token is not None or trunk.dynamic_img_size:
        return "it has register tokens or takes images of any size"
    if getattr(trunk, "rope", None) is not None and (
        trunk.rope_mixed or not hasattr(trunk.rope, "feat_shape")
    ):
        return "its rotary embedding differs by layer or by image"
    norms = [isinstance(norm, nn.LayerNorm) for norm in (trunk.norm, trunk.fc_norm)]
    if trunk.attn_pool is not None:
        if (reason := pool_why_not(trunk.attn_pool)) is not None:
            return reason
        fits = norms == [True, False]
    else:
        fits = trunk.global_pool in ("token", "avg") and sum(norms) == 1
    if not fits:
        return f"its image embedding is pooled by {trunk.global_pool!r} with {sum(norms)} final LayerNorms"
    return _first(block_why_not(block) for block in trunk.blocks)


def _text_why_not(text: Any) -> str | None:
    custom = is_a(text, TEXT)
    if not custom and not is_a(text, CLIP):
        return f"its text tower is a {type(text).__name__}"
    pool = text.pool_type if custom else text.text_pool_type
    if pool not in TEXT_POOLS:
        return f"its text embedding is pooled by {pool!r}"
    if custom and (text.cls_emb is not None or text.use_pad_mask):
        return "its text tower masks padding"
    if text.text_projection is not None and not isinstance(text.text_projection, nn.Parameter | nn.Linear):
        return "it has no plain projection matrix into the joint space"
    return _first(block_why_not(block) for block in text.transformer.resblocks)


def _first(reasons: Any) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)
