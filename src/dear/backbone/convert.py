"""Convert an open_clip model to our towers, sharing its weights: layer by layer where the mapping is exact,
else whole, for frozen features; refuse it where neither is possible.
"""

import math
from collections.abc import Iterable
from typing import Any

from torch import nn

from dear.backbone import openclip as names
from dear.backbone.openclip import is_exactly, is_instance
from dear.backbone.plain import PlainClip
from dear.backbone.text import TextTower
from dear.backbone.vision import VisionTower
from dear.backbone.whole import WholeTextTower, WholeVisionTower, image_side, image_sides
from dear.errors import WeightsError

SMALLEST_PATCH = 14
"""Pixels along a side of the smallest patches of open_clip's ViTs."""
TEXT_POOLS = ("argmax", "eos", "last")
POOLS = ("tok", "avg")
CUSTOM_TEXT = (names.CUSTOM_CLIP_CLASS, names.COCA_CLASS)
"""Models whose text tower is a module of its own."""


def to_towers(model: nn.Module) -> tuple[VisionTower, TextTower]:
    """The image and text tower of an open_clip model. Raises WeightsError as `require_fit` does, and for
    embeddings of different widths.
    """
    require_fit(model)
    whole = _explain_text_misfit(model) is not None
    text = WholeTextTower(_text(model)) if whole else TextTower(_text(model))
    if _explain_image_misfit(model) is not None:
        return WholeVisionTower(model.visual, text.embed_dim), text
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
            "dear needs an image tower and a text tower of open_clip's or timm's own."
        )


def count_patches(model: Any) -> int:
    """The number of patches that the image tower of an open_clip model cuts a picture into; of a tower of
    another kind, which is used whole, those of a ViT with small patches.
    """
    visual = model.visual
    if not hasattr(visual, "grid_size") and _explain_image_misfit(model) is not None:
        return math.ceil(image_side(visual) / SMALLEST_PATCH) ** 2
    if is_instance(visual, names.TIMM_MODEL_CLASS):
        return int(visual.trunk.patch_embed.num_patches)
    return int(visual.grid_size[0] * visual.grid_size[1])


def explain_misfit(model: Any) -> str | None:
    """Why an open_clip model cannot be used, not even whole, or None if it can."""
    if isinstance(model, PlainClip):
        return None
    if not is_exactly(model, names.CLIP_CLASS, *CUSTOM_TEXT):
        return f"its class {type(model).__name__} is none of open_clip's CLIP, CustomTextCLIP and CoCa"
    if (image := _explain_image_misfit(model)) and (whole := _explain_whole_image_misfit(model.visual)):
        return f"{image}; {whole}"
    source = _text(model)
    # CoCa's, read at a class token after the text, can be used whole.
    is_cocas = is_exactly(source, names.TEXT_CLASS) and source.cls_emb is not None
    return None if is_cocas else _explain_text_misfit(model)


def _explain_image_misfit(model: Any) -> str | None:
    """Why the image tower cannot be mapped exactly onto a `VisionTower`, or None if it can."""
    visual = model.visual
    if isinstance(model, PlainClip):
        return None
    if is_instance(visual, names.TIMM_MODEL_CLASS):
        return _explain_timm_vision_misfit(visual)
    if is_instance(visual, names.VISION_CLASS):
        return _explain_vision_misfit(visual)
    return f"its image tower is a {type(visual).__name__}, not a ViT"


def _explain_whole_image_misfit(visual: Any) -> str | None:
    """Why an image tower cannot be used whole, or None if it can."""
    if not is_instance(visual, names.TIMM_MODEL_CLASS, names.VISION_CLASS, names.RESNET_CLASS):
        return "it is none of open_clip's or timm's"
    if is_instance(visual, names.VISION_CLASS) and (visual.pool_type not in POOLS or visual.proj is None):
        return "it gives no embedding in the joint space"
    height, width = image_sides(visual)
    if height != width:
        return "no tower here takes such images"
    timm: Any = getattr(getattr(visual, "trunk", None), "pretrained_cfg", None) or {}
    sides = tuple(timm.get("input_size", ())[1:])
    # At another size an index may lead past a table of positions, which a pass without values does not tell.
    if timm.get("fixed_input_size") and sides != (height, width):
        return f"it takes images of {sides[0]} x {sides[1]} pixels only, not of {height}"
    return None


def _text(model: Any) -> Any:
    """The module that holds the text tower: the model itself, or a part of it."""
    return model.text if is_instance(model, *CUSTOM_TEXT) else model


def _explain_vision_misfit(visual: Any) -> str | None:
    if visual.attn_pool is not None:
        return "its image embedding is pooled by open_clip's AttentionalPooler (CoCa)"
    if visual.pool_type not in POOLS:
        return f"its image embedding is pooled by {visual.pool_type!r}"
    if visual.proj is None:
        return "it has no plain projection matrix into the joint space"
    if visual.image_size[0] != visual.image_size[1]:
        return "its images are not square"
    return _first(_explain_block_misfit(block) for block in visual.transformer.resblocks)


def _explain_timm_vision_misfit(visual: Any) -> str | None:
    trunk = visual.trunk
    if not is_exactly(trunk, names.TIMM_VIT_CLASS, names.EVA_CLASS):
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
        if (reason := _explain_pool_misfit(trunk.attn_pool)) is not None:
            return reason
        fits = norms == [True, False]
    else:
        fits = trunk.global_pool in ("token", "avg") and sum(norms) == 1
    if not fits:
        return f"its image embedding is pooled by {trunk.global_pool!r} with {sum(norms)} final LayerNorms"
    return _first(_explain_block_misfit(block) for block in trunk.blocks)


def _explain_text_misfit(model: Any) -> str | None:
    """Why the text tower cannot be mapped exactly onto a `TextTower`, or None if it can."""
    if isinstance(model, PlainClip):
        return None
    text = _text(model)
    custom = is_instance(text, names.TEXT_CLASS)
    if not custom and not is_instance(text, names.CLIP_CLASS):
        return f"its text tower is a {type(text).__name__}"
    pool = text.pool_type if custom else text.text_pool_type
    if pool not in TEXT_POOLS:
        return f"its text embedding is pooled by {pool!r}"
    if not custom and len(text.positional_embedding) != text.context_length:
        return "its text tower has a class embedding, but is no module of its own (custom_text)"
    if custom and (text.cls_emb is not None or text.use_pad_mask):
        return "its text tower masks padding"
    if text.text_projection is not None and not isinstance(text.text_projection, nn.Parameter | nn.Linear):
        return "it has no plain projection matrix into the joint space"
    return _first(_explain_block_misfit(block) for block in text.transformer.resblocks)


def _explain_pool_misfit(pool: Any) -> str | None:
    if type(pool).__name__ != "AttentionPoolLatent":
        return f"its image embedding is pooled by {type(pool).__name__}"
    if pool.pos_embed is not None or pool.latent_len != 1 or pool.pool != "token" or pool.mlp is None:
        return "its attention pool has position embeddings, several queries or no MLP"
    return None


def _explain_block_misfit(block: Any) -> str | None:
    if is_exactly(block, names.BLOCK_CLASS):
        return _explain_plain_block_misfit(block)
    if not is_exactly(block, names.TIMM_BLOCK_CLASS, names.EVA_BLOCK_CLASS, names.EVA_POST_NORM_BLOCK_CLASS):
        return f"it has blocks of class {type(block).__name__}"
    attention = block.attn
    if not is_exactly(attention, *names.TIMM_ATTENTION_CLASSES):
        return f"it has attention of class {type(attention).__name__}"
    if attention.gate is not None:
        return "its attention is gated"
    if getattr(attention, "num_kv_groups", 1) != 1:
        return "its heads share keys and values"
    if getattr(attention, "rotate_half", False):
        return "its rotary embedding rotates by halves"
    if attention.head_dim * attention.num_heads != attention.proj.out_features:
        return "its heads together are not as wide as its tokens"
    if attention.proj.bias is None:
        return "its attention has an output projection without bias"
    norms = (block.norm1, block.norm2, attention.norm, attention.q_norm, attention.k_norm)
    return _first(
        None if isinstance(norm, nn.LayerNorm | nn.Identity) else f"it normalizes by {type(norm).__name__}"
        for norm in norms
    )


def _explain_plain_block_misfit(block: Any) -> str | None:
    if hasattr(block, "ln_1_kv"):
        return "it has cross-attention"
    attention = block.attn
    if attention.in_proj_weight is None or attention.in_proj_bias is None or attention.bias_k is not None:
        return "its attention has separate or bias-free input projections"
    if not is_instance(block.ln_1, *names.NORM_CLASSES):
        return f"it normalizes by {type(block.ln_1).__name__}"
    return None


def _first(reasons: Iterable[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)
