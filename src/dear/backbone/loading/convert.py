"""Convert an open_clip model to a `Clip`, sharing its weights: layer by layer where the mapping is exact,
else as it is, for features only; refuse it where neither is possible.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from dear.backbone import openclip as open_clip
from dear.backbone.clip import Clip, Identity, Tokenizer, weights_hash
from dear.backbone.features_only import (
    FeaturesOnlyTextTower,
    FeaturesOnlyVisionTower,
    image_side,
    image_sides,
)
from dear.backbone.loading.skeleton import Skeleton
from dear.backbone.openclip import is_exactly, is_instance
from dear.backbone.preprocess import Preprocess
from dear.backbone.text import TextTower
from dear.backbone.vision import VisionTower
from dear.errors import WeightsError

SMALLEST_PATCH = 14
"""Side length, in pixels, of the smallest patches among open_clip's ViTs."""
TEXT_POOLS = ("argmax", "eos", "last")
POOLS = ("tok", "avg")
CUSTOM_TEXT = (open_clip.CUSTOM_CLIP_CLASS, open_clip.COCA_CLASS)
"""Models whose text tower is a module of its own."""


def to_clip(
    model: Any,
    tokenizer: Tokenizer,
    preprocess: Preprocess,
    *,
    name: str,
    pretrained: str,
    configuration: Mapping[str, Any] | None = None,
) -> Clip:
    """The CLIP of an open_clip model. ``configuration`` is what its features depend on besides the tensors
    and the name, as JSON; None if there is nothing else. Raises WeightsError as `to_towers` does.
    """
    image, text = to_towers(model)
    identity = Identity(name, pretrained, weights_hash(model.state_dict(), configuration or {}))
    return Clip(image, text, model.logit_scale, model.logit_bias, tokenizer, preprocess, identity)


def to_towers(model: nn.Module) -> tuple[VisionTower, TextTower]:
    """The image and text tower of an open_clip model. Raises WeightsError as `require_fit` does, and for
    embeddings of different widths.
    """
    require_fit(model)
    text = TextTower(_text(model)) if _maps_text(model) else FeaturesOnlyTextTower(_text(model))
    if not _maps_image(model):
        return FeaturesOnlyVisionTower(model.visual, text.embed_dim), text
    image = VisionTower(model.visual)
    if image.embed_dim != text.embed_dim:
        raise WeightsError(
            f"this CLIP does not fit: its image embeddings have {image.embed_dim:,} numbers, those of its "
            f"texts {text.embed_dim:,}."
        )
    return image, text


def require_fit(model: nn.Module, name: str = "this CLIP") -> None:
    """Raise WeightsError with the reason if no towers reproduce the model's features."""
    reason = explain_misfit(model)
    if reason is not None:
        raise WeightsError(
            f"{name} does not fit: {reason}. "
            "dear needs an image tower and a text tower that are open_clip's or timm's own."
        )


def count_patches(model: Any) -> int:
    """The number of patches that the image tower of an open_clip model cuts a picture into. A tower that
    gives features only is counted as if it had patches of 14 pixels.
    """
    visual = model.visual
    if not hasattr(visual, "grid_size") and not _maps_image(model):
        return math.ceil(image_side(visual) / SMALLEST_PATCH) ** 2
    if is_instance(visual, open_clip.TIMM_MODEL_CLASS):
        return int(visual.trunk.patch_embed.num_patches)
    return int(visual.grid_size[0] * visual.grid_size[1])


def explain_misfit(model: Any) -> str | None:
    """Why an open_clip model cannot be used, not even for features only, or None if it can."""
    if isinstance(model, Skeleton):
        return None
    if not is_exactly(model, open_clip.CLIP_CLASS, *CUSTOM_TEXT):
        return f"its class {type(model).__name__} is not open_clip's CLIP, CustomTextCLIP or CoCa"
    if not _maps_image(model) and (reason := _explain_image_misfit(model.visual)) is not None:
        return reason
    source = _text(model)
    # CoCa's text tower, read at a class token after the text, gives features only.
    is_coca = is_exactly(source, open_clip.TEXT_CLASS) and source.cls_emb is not None
    if is_coca or _maps_text(model):
        return None
    pool = getattr(source, "pool_type", getattr(source, "text_pool_type", None))
    return f"its text tower, a {type(source).__name__} pooled by {pool!r}, has an unknown part"


def _explain_image_misfit(visual: Any) -> str | None:
    """Why an image tower cannot give features only, or None if it can."""
    if not is_instance(visual, open_clip.TIMM_MODEL_CLASS, open_clip.VISION_CLASS, open_clip.RESNET_CLASS):
        return f"its image tower, a {type(visual).__name__}, is not open_clip's or timm's"
    if is_instance(visual, open_clip.VISION_CLASS) and (visual.pool_type not in POOLS or visual.proj is None):
        return f"its image tower, pooled by {visual.pool_type!r}, gives no embedding in the joint space"
    height, width = image_sides(visual)
    if height != width:
        return f"its images are not square, but of {height} x {width} pixels"
    timm: Any = getattr(getattr(visual, "trunk", None), "pretrained_cfg", None) or {}
    sides = tuple(timm.get("input_size", ())[1:])
    # At another size an index may run past a table of positions; a pass on the meta device does not show it.
    if timm.get("fixed_input_size") and sides != (height, width):
        return f"it takes images of {sides[0]} x {sides[1]} pixels only, not of {height}"
    return None


def _text(model: Any) -> Any:
    """The module that holds the text tower: the model itself, or a part of it."""
    return model.text if is_instance(model, *CUSTOM_TEXT) else model


def _maps_text(model: Any) -> bool:
    """True if a `TextTower` computes what the model's text tower does."""
    if isinstance(model, Skeleton):
        return True
    text, projections = _text(model), (nn.Parameter, nn.Linear, type(None))
    if is_instance(text, open_clip.TEXT_CLASS):
        fits = text.pool_type in TEXT_POOLS and text.cls_emb is None and not text.use_pad_mask
    else:  # a class embedding would have one more position
        fits = is_instance(text, open_clip.CLIP_CLASS) and text.text_pool_type in TEXT_POOLS
        fits = fits and len(text.positional_embedding) == text.context_length
    return fits and isinstance(text.text_projection, projections) and _maps_blocks(text.transformer.resblocks)


def _maps_image(model: Any) -> bool:
    """True if a `VisionTower` computes what the model's image tower does."""
    visual = model.visual
    if isinstance(model, Skeleton):
        return True
    if is_instance(visual, open_clip.TIMM_MODEL_CLASS):
        return _maps_timm_image(visual)
    return (
        is_instance(visual, open_clip.VISION_CLASS)
        and visual.attn_pool is None
        and visual.pool_type in POOLS
        and visual.proj is not None
        and visual.image_size[0] == visual.image_size[1]
        and _maps_blocks(visual.transformer.resblocks)
    )


def _maps_timm_image(visual: Any) -> bool:
    trunk, head = visual.trunk, visual.head
    if not is_exactly(trunk, open_clip.TIMM_VIT_CLASS, open_clip.EVA_CLASS):
        return False
    rope = getattr(trunk, "rope", None)
    norms = [isinstance(norm, nn.LayerNorm) for norm in (trunk.norm, trunk.fc_norm)]
    has_known_pool = trunk.global_pool in ("token", "avg") and sum(norms) == 1
    if (pool := trunk.attn_pool) is not None:
        has_known_pool = norms == [True, False] and type(pool).__name__ == "AttentionPoolLatent"
        has_known_pool = has_known_pool and (pool.pos_embed, pool.latent_len, pool.pool) == (None, 1, "token")
        has_known_pool = has_known_pool and pool.mlp is not None
    return (
        has_known_pool
        and (not len(head) or isinstance(getattr(head, "proj", None), nn.Linear))
        and len({*trunk.patch_embed.img_size}) == 1
        and trunk.reg_token is None
        and not trunk.dynamic_img_size
        and (rope is None or (not trunk.rope_mixed and hasattr(rope, "feat_shape")))  # one for all layers
        and _maps_blocks(trunk.blocks)
    )


def _maps_blocks(blocks: Any) -> bool:
    return all(map(_maps_block, blocks))


def _maps_block(block: Any) -> bool:
    attention: Any = getattr(block, "attn", None)
    if is_exactly(block, open_clip.BLOCK_CLASS):
        return (
            not hasattr(block, "ln_1_kv")  # of cross-attention
            and attention.in_proj_weight is not None
            and attention.in_proj_bias is not None
            and attention.bias_k is None
            and is_instance(block.ln_1, *open_clip.NORM_CLASSES)
        )
    known = (open_clip.TIMM_BLOCK_CLASS, open_clip.EVA_BLOCK_CLASS, open_clip.EVA_POST_NORM_BLOCK_CLASS)
    if not is_exactly(block, *known) or not is_exactly(attention, *open_clip.TIMM_ATTENTION_CLASSES):
        return False
    norms = (block.norm1, block.norm2, attention.norm, attention.q_norm, attention.k_norm)
    return (
        attention.gate is None
        and getattr(attention, "num_kv_groups", 1) == 1
        and not getattr(attention, "rotate_half", False)
        and attention.head_dim * attention.num_heads == attention.proj.out_features
        and attention.proj.bias is not None
        and all(isinstance(norm, nn.LayerNorm | nn.Identity) for norm in norms)
    )
