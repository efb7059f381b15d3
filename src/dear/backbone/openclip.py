"""open_clip, loaded when something of it is first used: with torchvision, timm and transformers it takes
longer to load than torch, and the tiny CLIP needs none of it.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "CLIP": "model",
    "CoCa": "coca_model",
    "CustomTextCLIP": "model",
    "HFTokenizer": "tokenizer",
    "LayerNorm": "transformer",
    "LayerNormFp32": "transformer",
    "OPENAI_DATASET_MEAN": "constants",
    "OPENAI_DATASET_STD": "constants",
    "QuickGELU": "transformer",
    "ResidualAttentionBlock": "transformer",
    "VisionTransformer": "transformer",
    "convert_state_dict": "convert",
    "convert_to_custom_text_state_dict": "model",
    "download_pretrained": "pretrained",
}
"""Modules of open_clip that names come from which its package does not offer itself."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    home = f"open_clip.{_HOME[name]}" if name in _HOME else "open_clip"
    return getattr(import_module(home), name)
