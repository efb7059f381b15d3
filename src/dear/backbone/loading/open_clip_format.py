"""Models of open_clip: its named architectures, and files that it writes."""

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor, nn

from dear.backbone import openclip as open_clip
from dear.backbone.loading import hub
from dear.backbone.loading.format import Context, Epsilon, Format, Heads, Layers, Ratio, Shift, Side, Words
from dear.backbone.loading.hub import Repository
from dear.backbone.loading.skeleton import Skeleton, fits_skeleton
from dear.backbone.loading.tokenizer_file import tokenizer_beside
from dear.backbone.loading.weights import open_clip_names
from dear.backbone.preprocess import Preprocess
from dear.errors import WeightsError
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import Range, Share, shown, typed

MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""An architecture of timm. A scheme (``hf-hub:``, ``local-dir:``) would fetch or read what follows it."""
Size = Annotated[int, Range(1, 2**20)]
Logarithm = Annotated[float, Range(-20, 20)]
BLOCK: Any = {
    "width": Size, "mlp_ratio": Ratio, "ls_init_value": float | None, "pool_type": str,
    "final_ln_after_pool": bool, "output_tokens": bool, "act_kwargs": {"approximate": Any},
    "norm_kwargs": {"eps": Epsilon}, "block_type": str | None, "qk_norm": bool, "scaled_cosine_attn": bool,
    "scale_heads": bool, "scale_attn_inner": bool, "scale_attn": bool, "scale_fc": bool,
}  # fmt: skip
"""The keys of both towers."""
VISION: Any = {
    **BLOCK,
    "layers": Layers | tuple[Layers, Layers, Layers, Layers], "head_width": Size, "patch_size": Side | None,
    "image_size": Side | tuple[Side, Side], "patch_dropout": Share, "attentional_pool": bool,
    "attn_pooler_queries": Annotated[int, Range(1, 4096)], "attn_pooler_heads": Annotated[int, Range(1, 128)],
    "no_ln_pre": bool, "pos_embed_type": Literal["learnable"], "timm_model_name": str | None,
    "timm_model_pretrained": bool,  # never fetched, so it changes nothing
    "timm_pool": str, "timm_proj": str | None, "timm_proj_bias": bool, "timm_drop": Share,
    "timm_drop_path": Share | None,
}  # fmt: skip
TEXT: Any = {
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
MODEL: Any = {
    "embed_dim": Size, "vision_cfg": VISION, "text_cfg": TEXT, "custom_text": bool, "quick_gelu": bool,
    "init_logit_scale": Logarithm, "init_logit_bias": Shift | None, "nonscalar_logit_scale": bool,
}  # fmt: skip
PIXELS: Any = {
    "mode": Literal["RGB"], "mean": tuple[Shift, Shift, Shift], "std": tuple[Ratio, Ratio, Ratio],
    "interpolation": Literal["bicubic", "bilinear", "random"],
    "resize_mode": Literal["shortest", "longest", "squash"], "fill_color": Annotated[int, Range(0, 255)],
}  # fmt: skip
"""How pictures become pixels (`dear.backbone.preprocess`); the size is the tower's, as in open_clip."""


class OpenClipFormat(Format):
    """A model by open_clip's configuration."""

    LIBRARY = "open_clip's"
    CONFIG, FILES = hub.CONFIG, hub.FILES

    def __init__(
        self, name: str, config: dict[str, Any], pixels: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        """``pixels`` is the preprocessing: a ``preprocess_cfg``, or the configuration of a tag."""
        self.name, self.config, self.pixels, self.facts = name, config, pixels, facts

    @classmethod
    def read(cls, source: Repository, path: Path) -> Self:
        config = read_model_config(read_json(path), path)
        model = config["model_cfg"]
        form = cls(source.name, model, config["preprocess_cfg"], {"model": model})
        if source.folder is not None:
            form.folder = tokenizer_beside(path)
        elif model["text_cfg"].get("hf_tokenizer_name") == source.id:
            form.commit = source.commit
        return form

    @classmethod
    def named(cls, name: str, tag: Mapping[str, Any] | None = None) -> Self:
        """An architecture by its name. The configuration of a tag determines the activation and the pixels;
        without a tag (a local file, random weights) the pixels are those of the architecture's tags if all
        agree, else OpenAI's.
        """
        config = open_clip.get_model_config(name)
        if tag:
            config["quick_gelu"] = tag.get("quick_gelu", False)
        labels = open_clip.list_pretrained_tags_by_model(name)
        tags = [tag] if tag else [open_clip.get_pretrained_cfg(name, label) for label in labels]
        agree = len({Preprocess.from_open_clip(1, pixels) for pixels in tags}) == 1
        # Architectures may differ only in image size or activation, such as convnext_base_w and _base_w_320.
        facts = {
            "image_size": config["vision_cfg"].get("image_size", 224),
            "quick_gelu": bool(config.get("quick_gelu")),
        }
        form = cls(name, config, tags[0] if agree else {}, facts)
        form.is_bounded = False
        return form

    def build(self) -> nn.Module:
        return build_from(self.name, self.config)

    def outline(self) -> nn.Module:
        """Without open_clip, which takes seconds to import, where `Skeleton` has the same tensors."""
        return Skeleton(**self.config) if fits_skeleton(self.config) else self.build()

    def rename(self, network: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return open_clip_names(network, state)

    @property
    def text(self) -> Mapping[str, Any]:
        text: Mapping[str, Any] = self.config["text_cfg"]
        return text

    def preprocess(self, size: int) -> Preprocess:
        return Preprocess.from_open_clip(size, self.pixels)


def build(name: str, tag: Mapping[str, Any] | None = None) -> nn.Module:
    """An open_clip architecture with its initial weights; ``tag`` is a tag's configuration, which determines
    the activation. Raises WeightsError for a text tower from transformers.
    """
    return OpenClipFormat.named(name, tag).build()


def build_from(name: str, config: dict[str, Any]) -> nn.Module:
    """The same from open_clip's configuration of a model, in the class that open_clip's factory gives it."""
    config = copy.deepcopy(config)
    if config["text_cfg"].get("hf_model_name"):
        raise WeightsError(
            f"{name} does not fit: its text tower is a Hugging Face model, not open_clip's own."
        )
    if config["vision_cfg"].get("timm_model_name"):
        config["vision_cfg"] |= {"timm_model_pretrained": False}  # its weights come from elsewhere
    kind: Any = open_clip.CLIP
    if config.pop("custom_text", False):
        kind = open_clip.CoCa if "multimodal_cfg" in config else open_clip.CustomTextCLIP
    network: nn.Module = kind(**config)
    decoder: Any = getattr(network, "text_decoder", None)
    if decoder is not None:  # open_clip leaves it uninitialized: no two identities would be equal
        nn.init.zeros_(decoder.text_projection)
    return network


def build_random(name: str, seed: int) -> nn.Module:
    """An open_clip architecture with weights drawn from ``seed``. The global generator is left unchanged."""
    with initial_weights_from(seed):
        return build(name)


@contextmanager
def initial_weights_from(seed: int) -> Iterator[None]:
    """Context in which open_clip draws initial weights from ``seed``. The global generator, which it uses,
    is restored.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def read_model_config(content: Any, where: object) -> dict[str, Any]:
    """Check an untrusted configuration: sizes are bounded, and no name leads to a file or to code. Keys that
    are not listed here name files or devices, run code or draw at random. Raises ReadingError for a wrong
    value or an unknown key.
    """
    config = typed(content, dict[str, Any], where)
    model = typed(config.get("model_cfg"), MODEL, where, "model_cfg") or {}
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
    return {"model_cfg": model, "preprocess_cfg": typed(known, PIXELS, where, "preprocess_cfg")}
