"""Read an untrusted configuration of a model in open_clip's form: types and sizes are checked.

Only the keys listed here are taken. Others name files or devices, run code or draw at random.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from dear.reading.files import ReadingError
from dear.reading.typed import Range, Share, shown, typed

MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""An architecture of timm. A scheme (``hf-hub:``, ``local-dir:``) would fetch or read what follows it."""

Size = Annotated[int, Range(1, 2**20)]
Side = Annotated[int, Range(1, 1024)]
Layers = Annotated[int, Range(1, 128)]
Heads = Annotated[int, Range(1, 128)]
Context = Annotated[int, Range(1, 1024)]
Words = Annotated[int, Range(1, 1_000_000)]
Ratio = Annotated[float, Range(1e-3, 1e3)]
Logarithm = Annotated[float, Range(-20, 20)]
Epsilon = Annotated[float, Range(0, 1)]
Shift = Annotated[float, Range(-1e3, 1e3)]


Keys = Mapping[str, Any]
"""The keys that an object may have, each with its type or, if it is an object itself, with its keys."""

BLOCK: Keys = {
    "width": Size, "mlp_ratio": Ratio, "ls_init_value": float | None, "pool_type": str,
    "final_ln_after_pool": bool, "output_tokens": bool, "act_kwargs": {"approximate": Any},
    "norm_kwargs": {"eps": Epsilon}, "block_type": str | None, "qk_norm": bool, "scaled_cosine_attn": bool,
    "scale_heads": bool, "scale_attn_inner": bool, "scale_attn": bool, "scale_fc": bool,
}  # fmt: skip
"""The keys of both towers."""
VISION: Keys = {
    **BLOCK,
    "layers": Layers | tuple[Layers, Layers, Layers, Layers], "head_width": Size, "patch_size": Side | None,
    "image_size": Side | tuple[Side, Side], "patch_dropout": Share, "attentional_pool": bool,
    "attn_pooler_queries": Annotated[int, Range(1, 4096)], "attn_pooler_heads": Annotated[int, Range(1, 128)],
    "no_ln_pre": bool, "pos_embed_type": Literal["learnable"], "timm_model_name": str | None,
    "timm_model_pretrained": bool,  # never fetched, so it changes nothing
    "timm_pool": str, "timm_proj": str | None, "timm_proj_bias": bool, "timm_drop": Share,
    "timm_drop_path": Share | None,
}  # fmt: skip
TEXT: Keys = {
    **BLOCK,
    "context_length": Context, "vocab_size": Words, "hf_tokenizer_name": str | None,
    "tokenizer_kwargs": {
        "clean": Literal["lower", "whitespace", "canonicalize"], "strip_sep_token": bool,
    },
    "heads": Heads, "layers": Layers, "embed_cls": bool, "pad_id": int, "eos_id": int, "no_causal_mask": bool,
    "proj_bias": bool, "proj_type": str,
    "hf_model_name": str | None,  # refused later
    "hf_model_pretrained": bool, "hf_proj_type": str | None, "hf_pooler_type": str,
}  # fmt: skip
MODEL: Keys = {
    "embed_dim": Size, "vision_cfg": VISION, "text_cfg": TEXT, "custom_text": bool, "quick_gelu": bool,
    "init_logit_scale": Logarithm, "init_logit_bias": Shift | None, "nonscalar_logit_scale": bool,
}  # fmt: skip
PIXELS: Keys = {
    "mode": Literal["RGB"], "mean": tuple[Shift, Shift, Shift], "std": tuple[Ratio, Ratio, Ratio],
    "interpolation": Literal["bicubic", "bilinear", "random"],
    "resize_mode": Literal["shortest", "longest", "squash"], "fill_color": Annotated[int, Range(0, 255)],
}  # fmt: skip
"""How pictures become pixels (`dear.backbone.preprocess`); the size is the tower's, as in open_clip."""


def read_model_config(content: Any, where: object) -> dict[str, Any]:
    """Check a configuration: sizes are bounded, and no name leads to a file or to code. Raises ReadingError
    for a wrong value or an unknown key.
    """
    config = typed(content, dict[str, Any], where)
    model = _check(config.get("model_cfg"), MODEL, where, "model_cfg")
    for key in ("embed_dim", "vision_cfg", "text_cfg"):
        if model.get(key) is None:
            raise ReadingError(where, f"its model_cfg lacks the key {key!r}")
    name = model["vision_cfg"].get("timm_model_name")
    if name is not None and not MODEL_NAME.fullmatch(name):
        raise ReadingError(
            where, f"its vision_cfg.timm_model_name is {shown(name)}, which is not an architecture of timm"
        )
    pixels = typed(config.get("preprocess_cfg", {}), dict[str, Any], where, "preprocess_cfg")
    known = {key: value for key, value in pixels.items() if key in PIXELS}  # the others are not used here
    return {"model_cfg": model, "preprocess_cfg": _check(known, PIXELS, where, "preprocess_cfg")}


def _check(content: Any, keys: Keys, where: object, name: str) -> dict[str, Any]:
    """An object with the value of each key checked."""
    checked = typed(content, dict[str, Any], where, name)
    if unknown := checked.keys() - keys.keys():
        raise ReadingError(where, f"its {name} has the unknown key {shown(min(unknown))}")
    for key, value in checked.items():
        is_object = isinstance(keys[key], Mapping) and value is not None
        kind = Any if isinstance(keys[key], Mapping) else keys[key]
        path = f"{name}.{key}"
        checked[key] = _check(value, keys[key], where, key) if is_object else typed(value, kind, where, path)
    return checked
