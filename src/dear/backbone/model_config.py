"""A stranger's configuration of a model in open_clip's form: typed, and without what names files or code."""

import re
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from dear.reading.files import ReadingError
from dear.reading.typed import Range, Share, shown, typed

MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""An architecture of timm. A scheme (``hf-hub:``, ``local-dir:``) would read or fetch what follows it."""

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
    act_kwargs: dict[str, Any] | None
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

    layers: Layers | tuple[Layers, Layers, Layers, Layers]
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
    """Settings of a tokenizer."""

    clean: Literal["lower", "whitespace", "canonicalize"]
    strip_sep_token: bool


class TextConfig(BlockConfig, total=False):
    """The text tower and its tokenizer. A Hugging Face text tower (``hf_model_name``) is refused later."""

    context_length: Context
    vocab_size: Words
    hf_tokenizer_name: str | None
    tokenizer_kwargs: TokenizerSettings | None
    heads: Heads
    layers: Layers
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


KNOWN = {
    "vision_cfg": VisionConfig.__annotations__.keys(),
    "text_cfg": TextConfig.__annotations__.keys(),
    "tokenizer_kwargs": TokenizerSettings.__annotations__.keys(),
    "norm_kwargs": Norm.__annotations__.keys(),
    "act_kwargs": {"approximate"},
}
"""Keys that a file may give; others name files and devices, run code or draw at random."""


def read_model_config(content: Any, where: object) -> Config:
    """A configuration whose sizes are bounded and whose names lead nowhere. Raises ReadingError for a wrong
    value or an unknown key.
    """
    config = typed(content, Config, where)
    model = config["model_cfg"]
    if "multimodal_cfg" in model:
        raise ReadingError(where, "its model_cfg.multimodal_cfg is of CoCa, which is not supported")
    name = model["vision_cfg"].get("timm_model_name")
    if name is not None and not MODEL_NAME.fullmatch(name):
        raise ReadingError(where, f"its vision_cfg.timm_model_name is {shown(name)}, no architecture of timm")
    for tower in ("vision_cfg", "text_cfg"):
        parts: dict[str, Any] = {tower: model[tower], **model[tower]}
        for key in KNOWN.keys() & parts.keys():
            if unknown := (parts[key] or {}).keys() - KNOWN[key]:
                raise ReadingError(where, f"its {key} has the unknown key {shown(min(unknown))}")
    return config
