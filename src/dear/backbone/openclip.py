"""open_clip and timm without loading them: names are imported on first use, classes are known by full name.

With torchvision, timm and transformers, open_clip takes longer to load than torch, and the tiny CLIP needs
none of it.
"""

from importlib import import_module
from typing import Any

CLIP_CLASS, CUSTOM_CLIP_CLASS = "open_clip.model.CLIP", "open_clip.model.CustomTextCLIP"
VISION_CLASS = "open_clip.transformer.VisionTransformer"
TEXT_CLASS = "open_clip.transformer.TextTransformer"
BLOCK_CLASS = "open_clip.transformer.ResidualAttentionBlock"
NORM_CLASSES = ("open_clip.transformer.LayerNorm", "open_clip.transformer.LayerNormFp32")
TIMM_MODEL_CLASS = "open_clip.timm_model.TimmModel"
TIMM_VIT_CLASS, EVA_CLASS = "timm.models.vision_transformer.VisionTransformer", "timm.models.eva.Eva"
TIMM_BLOCK_CLASS = "timm.models.vision_transformer.Block"
EVA_BLOCK_CLASS = "timm.models.eva.EvaBlock"
EVA_POST_NORM_BLOCK_CLASS = "timm.models.eva.EvaBlockPostNorm"
TIMM_ATTENTION_CLASSES = (
    "timm.layers.attention.Attention",
    "timm.layers.attention.AttentionRope",
    "timm.models.eva.EvaAttention",
)

_MODULES = {
    "CLIP": "model",
    "CoCa": "coca_model",
    "CustomTextCLIP": "model",
    "OPENAI_DATASET_MEAN": "constants",
    "OPENAI_DATASET_STD": "constants",
    "QuickGELU": "transformer",
    "convert_state_dict": "convert",
    "convert_to_custom_text_state_dict": "model",
    "download_pretrained": "pretrained",
}
"""Modules of open_clip by the names that its package does not export."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    module = f"open_clip.{_MODULES[name]}" if name in _MODULES else "open_clip"
    return getattr(import_module(module), name)


def is_instance(module: object, *class_names: str) -> bool:
    """True if a module's class, or a class that it derives from, has one of these full names."""
    return any(f"{base.__module__}.{base.__qualname__}" in class_names for base in type(module).__mro__)


def is_exactly(module: object, *class_names: str) -> bool:
    """True if a module's class itself has one of these full names."""
    return f"{type(module).__module__}.{type(module).__qualname__}" in class_names
