"""open_clip and timm without loading them: names are imported on first use, and classes are compared by their
full names.

open_clip loads torchvision, timm and transformers. For the tiny CLIP that would be 4.2 seconds of one core in
place of 1.6 at the start of every command. CLIP's own architecture needs none of them: its modules are in
`dear.backbone.loading.skeleton`. Configurations, tags and the tokenizer are read from open_clip's folder
without running the package (`LIGHT`), unless the program has already loaded it: then it may have added
architectures.
"""

import copy
import json
import re
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

CLIP_CLASS, CUSTOM_CLIP_CLASS = "open_clip.model.CLIP", "open_clip.model.CustomTextCLIP"
COCA_CLASS, RESNET_CLASS = "open_clip.coca_model.CoCa", "open_clip.modified_resnet.ModifiedResNet"
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
    "SimpleTokenizer": "tokenizer",
    "convert_state_dict": "convert",
    "convert_to_custom_text_state_dict": "model",
    "download_pretrained": "pretrained",
    "get_clean_fn": "tokenizer",
    "get_pretrained_cfg": "pretrained",
    "list_pretrained_tags_by_model": "pretrained",
}
"""The modules of open_clip that define these names."""
LIGHT = ("constants", "pretrained", "tokenizer")
"""Modules that need no other part of open_clip."""
_STANDALONE = "dear_open_clip"
"""An empty package under which modules of open_clip are loaded one by one."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(name)
    module = _MODULES[name]
    is_light = module in LIGHT and "open_clip" not in sys.modules
    return getattr(_load_standalone(module) if is_light else import_module(f"open_clip.{module}"), name)


def list_models() -> list[str]:
    """The architectures that open_clip knows, in its order, with those that the program has added."""
    if "open_clip" in sys.modules:
        return list(import_module("open_clip").list_models())

    def in_order(name: str) -> list[int | str]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name.lower())]

    return sorted(_configs(), key=in_order)


def get_model_config(name: str) -> dict[str, Any]:
    """A copy of the configuration of an architecture."""
    if "open_clip" in sys.modules:
        return dict(import_module("open_clip").get_model_config(name))
    return copy.deepcopy(_configs()[name])


@cache
def _configs() -> dict[str, dict[str, Any]]:
    files = (_folder() / "model_configs").glob("*.json")
    contents = {path.stem: json.loads(path.read_text()) for path in files}
    keys = {"embed_dim", "vision_cfg", "text_cfg"}
    return {name: content for name, content in contents.items() if keys <= content.keys()}


def _folder() -> Path:
    """Where open_clip is installed."""
    spec = find_spec("open_clip")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _load_standalone(module: str) -> Any:
    """Load a module of open_clip without the package around it."""
    if _STANDALONE not in sys.modules:
        spec = ModuleSpec(_STANDALONE, None, is_package=True)
        spec.submodule_search_locations = [str(_folder())]
        sys.modules[_STANDALONE] = module_from_spec(spec)
    return import_module(f"{_STANDALONE}.{module}")


def is_instance(module: object, *class_names: str) -> bool:
    """True if a module's class, or a class that it derives from, has one of these full names."""
    return any(f"{base.__module__}.{base.__qualname__}" in class_names for base in type(module).__mro__)


def is_exactly(module: object, *class_names: str) -> bool:
    """True if a module's class itself has one of these full names."""
    return f"{type(module).__module__}.{type(module).__qualname__}" in class_names
