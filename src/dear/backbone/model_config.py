"""A stranger's configuration of a model in open_clip's form: typed, and without what names files or code."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict, is_typeddict

from dear.errors import listing
from dear.limits import at_most
from dear.reading.files import ReadingError
from dear.reading.typed import Positive, Range, Share, shown, typed

MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""An architecture of timm. A scheme (``hf-hub:``, ``local-dir:``) would read or fetch what follows it."""
VISION_SIZES = {"layers": "layers", "heads": "heads", "image_size": "model_side"}
TEXT_SIZES = {"layers": "layers", "heads": "heads", "vocab_size": "vocabulary", "context_length": "context"}

Size = Annotated[int, Range(1, 2**20)]
Side = Annotated[int, Range(1, 2**15)]
Ratio = Annotated[float, Range(1e-3, 1e3)]
Logarithm = Annotated[float, Range(-20, 20)]
Epsilon = Annotated[float, Range(0, 1)]
Shift = Annotated[float, Range(-1e3, 1e3)]


class Activation(TypedDict, total=False):
    """Settings of an activation function."""

    approximate: Literal["none", "tanh"]


class Norm(TypedDict, total=False):
    """Settings of a LayerNorm."""

    eps: Epsilon


class BlockConfig(TypedDict, total=False):
    """What both towers have."""

    width: Size
    mlp_ratio: Ratio
    ls_init_value: float | None
    pool_type: str
    final_ln_after_pool: bool
    output_tokens: bool
    act_kwargs: Activation | None
    norm_kwargs: Norm | None
    block_type: str | None
    qk_norm: bool
    scaled_cosine_attn: bool
    scale_heads: bool
    scale_attn_inner: bool
    scale_attn: bool
    scale_fc: bool


class VisionConfig(BlockConfig, total=False):
    """The image tower. timm's weights are never fetched, so ``timm_model_pretrained`` changes nothing."""

    layers: Positive | tuple[Positive, Positive, Positive, Positive]
    head_width: Size
    patch_size: Side | None
    image_size: Side | tuple[Side, Side]
    patch_dropout: Share
    attentional_pool: bool
    attn_pooler_queries: Annotated[int, Range(1, 4096)]
    attn_pooler_heads: Annotated[int, Range(1, 128)]
    no_ln_pre: bool
    pos_embed_type: Literal["learnable"]
    timm_model_name: str | None
    timm_model_pretrained: bool
    timm_pool: str
    timm_proj: str | None
    timm_proj_bias: bool
    timm_drop: Share
    timm_drop_path: Share | None


class TokenizerSettings(TypedDict, total=False):
    """Settings of a tokenizer that a file may give; all others of open_clip's and transformers' tokenizers
    name files, run code or draw at random.
    """

    clean: Literal["lower", "whitespace", "canonicalize"]
    strip_sep_token: bool


class TextConfig(BlockConfig, total=False):
    """The text tower and its tokenizer. A Hugging Face text tower (``hf_model_name``) is refused later."""

    context_length: Positive
    vocab_size: Positive
    hf_tokenizer_name: str | None
    tokenizer_kwargs: TokenizerSettings | None
    heads: Size
    layers: Positive
    embed_cls: bool
    pad_id: int
    eos_id: int
    no_causal_mask: bool
    proj_bias: bool
    proj_type: str
    hf_model_name: str | None
    hf_model_pretrained: bool
    hf_proj_type: str | None
    hf_pooler_type: str


class ModelConfig(TypedDict):
    """Both towers and their temperature."""

    embed_dim: Size
    vision_cfg: VisionConfig
    text_cfg: TextConfig
    multimodal_cfg: NotRequired[dict[str, Any]]
    custom_text: NotRequired[bool]
    quick_gelu: NotRequired[bool]
    init_logit_scale: NotRequired[Logarithm]
    init_logit_bias: NotRequired[Shift | None]
    nonscalar_logit_scale: NotRequired[bool]


class PixelConfig(TypedDict, total=False):
    """How pictures become pixels (`dear.backbone.preprocess`); the size is the tower's, as in open_clip."""

    mode: Literal["RGB"]
    mean: tuple[Shift, Shift, Shift]
    std: tuple[Ratio, Ratio, Ratio]
    interpolation: Literal["bicubic", "bilinear", "random"]
    resize_mode: Literal["shortest", "longest", "squash"]
    fill_color: Annotated[int, Range(0, 255)]


class Config(TypedDict):
    """The content of a repository's configuration."""

    model_cfg: ModelConfig
    preprocess_cfg: NotRequired[PixelConfig]


def model_config(content: Any, where: object) -> Config:
    """A configuration, checked key by key. Raises ReadingError for an unknown key or a wrong value,
    LimitError for a tower that is too large.
    """
    config = typed(content, Config, where)
    model = config["model_cfg"]
    _require_known(model, ModelConfig, where, "model_cfg")
    if "multimodal_cfg" in model:
        raise ReadingError(where, "its model_cfg.multimodal_cfg is of CoCa, which is not supported")
    name = model["vision_cfg"].get("timm_model_name")
    if name is not None and not MODEL_NAME.fullmatch(name):
        raise ReadingError(where, f"its vision_cfg.timm_model_name is {shown(name)}, no architecture of timm")
    vision: dict[str, Any] = {**model["vision_cfg"]}
    if "width" in vision and "head_width" in vision:
        vision["heads"] = vision["width"] // vision["head_width"]
    require_small(vision, model["text_cfg"], where)
    return config


def require_small(vision: Mapping[str, Any], text: Mapping[str, Any], where: object) -> None:
    """Raise LimitError for towers that are too large to be built, even without weights."""
    for tower, config, bounds in (("vision_cfg", vision, VISION_SIZES), ("text_cfg", text, TEXT_SIZES)):
        for key, bound in bounds.items():
            size = config.get(key)
            for value in size if isinstance(size, list | tuple) else (size,):
                if isinstance(value, int):
                    at_most(bound, value, f"{where}, {tower}.{key}")


def _require_known(value: Mapping[str, Any], kind: Any, where: object, key: str) -> None:
    """Raise ReadingError for a key that a TypedDict does not have, or one below it."""
    hints = kind.__annotations__
    if unknown := sorted(value.keys() - hints.keys()):
        raise ReadingError(
            where,
            f"its {key} has the unknown key {shown(unknown[0])}; known are {listing(sorted(hints), 40)}",
        )
    for name, inner in value.items():
        for part in (hints[name], *getattr(hints[name], "__args__", ())):
            if is_typeddict(part) and isinstance(inner, dict):
                _require_known(inner, part, where, f"{key}.{name}")
