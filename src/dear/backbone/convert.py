"""Convert an open_clip model to our towers, sharing its weights; refuse it if the mapping is not exact."""

from typing import Any

from torch import nn

from dear.backbone import openclip as open_clip
from dear.backbone.plain import PlainClip
from dear.backbone.towers import TextTower, VisionTower
from dear.errors import WeightsError


def to_towers(model: nn.Module) -> tuple[VisionTower, TextTower]:
    """The image and text tower of an open_clip model. Raises WeightsError as :func:`require_fit` does."""
    require_fit(model)
    return VisionTower(model.visual), TextTower(model)


def require_fit(model: nn.Module, name: str = "this CLIP") -> None:
    """Raise WeightsError with the reason if these towers would not reproduce the model's forward pass."""
    reason = why_not(model)
    if reason is not None:
        raise WeightsError(
            f"{name} does not fit: {reason}. "
            "dear needs a ViT image tower that is read at its class token and a causal text tower."
        )


def why_not(model: nn.Module) -> str | None:
    """Why an open_clip model cannot be mapped exactly onto the towers, or None if it can."""
    if isinstance(model, PlainClip):
        return None
    if not isinstance(model, open_clip.CLIP):
        return f"its class {type(model).__name__} is not open_clip's plain CLIP"
    visual = model.visual
    if not isinstance(visual, open_clip.VisionTransformer):
        return f"its image tower is a {type(visual).__name__}, not a ViT"
    if visual.attn_pool is not None or visual.pool_type != "tok":
        return "its image embedding is not read at a class token"
    if visual.proj is None or not isinstance(model.text_projection, nn.Parameter):
        return "it has no plain projection matrix into the joint space"
    if model.text_pool_type != "argmax":
        return f"its text embedding is pooled by {model.text_pool_type!r}, not at its highest token id"
    if model.attn_mask is None:
        return "its text tower is not causal"
    if model.logit_bias is not None:
        return "it was trained with a logit bias (SigLIP)"
    if visual.image_size[0] != visual.image_size[1]:
        return "its images are not square"
    blocks = [*visual.transformer.resblocks, *model.transformer.resblocks]
    return next((reason for block in blocks if (reason := _block_why_not(block)) is not None), None)


def _block_why_not(block: Any) -> str | None:
    if type(block) is not open_clip.ResidualAttentionBlock:
        return f"it has blocks of class {type(block).__name__}"
    if hasattr(block, "ln_1_kv"):
        return "it has cross-attention"
    attention = block.attn
    if attention.in_proj_weight is None or attention.in_proj_bias is None or attention.bias_k is not None:
        return "its attention has separate or bias-free input projections"
    if not isinstance(block.ln_1, open_clip.LayerNorm | open_clip.LayerNormFp32):
        return f"it normalises by {type(block.ln_1).__name__}"
    return None
