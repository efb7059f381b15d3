"""The CLIPs and SigLIPs of Hugging Face's transformers, as open_clip models that compute the same.

Only names and shapes differ: queries, keys and values have three projections there and one here, and the
projections into the joint space are transposed. transformers itself is not needed.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NotRequired, Self, TypedDict

import torch
from torch import Tensor, nn

from dear.backbone import openclip as open_clip
from dear.backbone.loading import tokenizer_file
from dear.backbone.loading.format import Context, Epsilon, Format, Heads, Layers, Ratio, Shift, Side, Words
from dear.backbone.loading.hub import Repository
from dear.backbone.loading.skeleton import QuickGELU
from dear.backbone.loading.weights import open_clip_names
from dear.backbone.preprocess import Interpolation, Preprocess
from dear.errors import WeightsError
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import PositiveInt, shown, typed

PROCESSOR, PIXELS = "processor_config.json", "preprocessor_config.json"
IMAGES = "image_processor"
"""The key of `PROCESSOR` (since transformers 5) with the content of `PIXELS`. It takes precedence."""
KINDS = ("clip", "siglip")
ACTIVATIONS = {"quick_gelu": None, "gelu": "none", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh"}
BLOCK = {
    "layer_norm1": ("ln_1", "norm1"), "layer_norm2": ("ln_2", "norm2"),
    "self_attn.out_proj": ("attn.out_proj", "attn.proj"),
    "mlp.fc1": ("mlp.c_fc", "mlp.fc1"), "mlp.fc2": ("mlp.c_proj", "mlp.fc2"),
}  # fmt: skip
"""Names within a block, in open_clip and in timm."""
PREFIXES = {
    "clip": {
        "text_model.embeddings.token_embedding": "token_embedding",
        "text_model.embeddings.position_embedding.weight": "positional_embedding",
        "text_model.final_layer_norm": "ln_final",
        "text_model.encoder.layers": "transformer.resblocks",
        "text_projection.weight": "text_projection",
        "vision_model.embeddings.class_embedding": "visual.class_embedding",
        "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
        "vision_model.embeddings.patch_embedding": "visual.conv1",
        "vision_model.pre_layrnorm": "visual.ln_pre",
        "vision_model.post_layernorm": "visual.ln_post",
        "vision_model.encoder.layers": "visual.transformer.resblocks",
        "visual_projection.weight": "visual.proj",
    },
    "siglip": {
        "text_model.embeddings.token_embedding": "text.token_embedding",
        "text_model.embeddings.position_embedding.weight": "text.positional_embedding",
        "text_model.final_layer_norm": "text.ln_final",
        "text_model.encoder.layers": "text.transformer.resblocks",
        "text_model.head": "text.text_projection",
        "vision_model.embeddings.position_embedding.weight": "visual.trunk.pos_embed",
        "vision_model.embeddings.patch_embedding": "visual.trunk.patch_embed.proj",
        "vision_model.post_layernorm": "visual.trunk.norm",
        "vision_model.encoder.layers": "visual.trunk.blocks",
        "vision_model.head.probe": "visual.trunk.attn_pool.latent",
        "vision_model.head.attention.out_proj": "visual.trunk.attn_pool.proj",
        "vision_model.head.layernorm": "visual.trunk.attn_pool.norm",
        "vision_model.head.mlp": "visual.trunk.attn_pool.mlp",
    },
}
"""Prefixes of tensor names in transformers, and those in open_clip, by kind of model."""
POOL = "visual.trunk.attn_pool"


class TowerConfig(TypedDict, total=False):
    """A tower's configuration. transformers leaves out the values at their defaults."""

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: Layers
    num_attention_heads: Heads
    vocab_size: Words
    max_position_embeddings: Context
    image_size: Side
    patch_size: PositiveInt
    hidden_act: str
    layer_norm_eps: Epsilon
    eos_token_id: int
    projection_size: PositiveInt | None


class Config(TypedDict):
    """The keys of a configuration that are read."""

    model_type: str
    text_config: NotRequired[TowerConfig]
    vision_config: NotRequired[TowerConfig]
    projection_dim: NotRequired[PositiveInt]


TEXT: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
    "vocab_size": 49408, "max_position_embeddings": 77, "eos_token_id": 49407,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32,
}  # fmt: skip
BY_KIND: dict[str, dict[str, Any]] = {
    "clip": {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    "siglip": {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
}
SIGLIP_TEXT: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "vocab_size": 32000,
    "max_position_embeddings": 64,
}  # fmt: skip
"""transformers' defaults, as are those above."""


def read_config(content: Any, where: object) -> Config:
    """Read a configuration of transformers, without the keys that are not used here. Raises ReadingError."""
    if isinstance(content, dict):
        towers = {}
        for name in ("text_config", "vision_config"):
            tower = content.get(name)
            if content.get("model_type") == "clip" and content.get(f"{name}_dict") is not None:
                tower = content[f"{name}_dict"]  # in old files; transformers prefers it
            if isinstance(tower, dict):
                towers[name] = {key: tower[key] for key in TowerConfig.__annotations__.keys() & tower.keys()}
        content = {key: content[key] for key in ("model_type", "projection_dim") if key in content} | towers
    return typed(content, Config, where)


def fill_defaults(config: Config, name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Kind, text and image configuration with defaults filled in. Raises WeightsError for other models."""
    kind = config["model_type"]
    if kind not in KINDS:
        raise WeightsError(f"{name} does not fit: transformers' {kind!r} is not one of {', '.join(KINDS)}.")
    text, vision = TEXT | BY_KIND[kind], VISION | BY_KIND[kind]
    if kind == "siglip":
        text, vision = text | SIGLIP_TEXT, vision | {"patch_size": 16}
    text, vision = text | dict(config.get("text_config", {})), vision | dict(config.get("vision_config", {}))
    for tower, config_of_tower in (("text", text), ("image", vision)):
        if config_of_tower["hidden_act"] not in ACTIVATIONS:
            raise WeightsError(
                f"{name} does not fit: its {tower} tower has the activation "
                f"{shown(config_of_tower['hidden_act'])}, which is not one of {', '.join(ACTIVATIONS)}."
            )
        width, heads = config_of_tower["hidden_size"], config_of_tower["num_attention_heads"]
        if width % heads:
            raise WeightsError(
                f"{name} does not fit: its {tower} tower's width {width} is not divisible by its {heads} "
                "heads."
            )
    return kind, text, vision


class TransformersFormat(Format):
    """A CLIP or SigLIP as transformers saves it."""

    LIBRARY = "transformers'"
    CONFIG = "config.json"
    FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")

    def __init__(self, source: Repository, config: Config) -> None:
        """Raises WeightsError for other models."""
        self.source, self.name = source, source.name
        self.folder, self.commit = source.folder, source.commit
        self.projection_dim = config.get("projection_dim")
        self.kind, self.text_config, self.vision_config = fill_defaults(config, self.name)
        self.facts = {"model": [self.projection_dim, self.kind, self.text_config, self.vision_config]}

    @classmethod
    def read(cls, source: Repository, path: Path) -> Self:
        return cls(source, read_config(read_json(path), path))

    def build(self) -> nn.Module:
        build = build_siglip if self.kind == "siglip" else partial(build_clip, self.projection_dim)
        return build(self.text_config, self.vision_config)

    def rename(self, network: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file of transformers or, if its names are open_clip's, of open_clip."""
        if not any(name.startswith("vision_model.") for name in state):
            return open_clip_names(network, state)
        return convert_names(state, self.kind)

    @cached_property
    def text(self) -> Mapping[str, Any]:
        """The tokenizer is CLIP's own if the vocabulary has its size and the model brings no other one."""
        sizes = {"context_length": self.text_config["max_position_embeddings"]}
        words = self.text_config["vocab_size"]
        is_clip = self.kind == "clip"
        if is_clip and words == open_clip.SimpleTokenizer().vocab_size and not self._has_tokenizer():
            return sizes
        clean = {} if is_clip else {"tokenizer_kwargs": {"clean": "canonicalize"}}
        return sizes | {"hf_tokenizer_name": self.source.id, "vocab_size": words} | clean

    def _has_tokenizer(self) -> bool:
        """True if it has a tokenizer that is not CLIP's. Raises ReadingError for a malformed file."""
        file = self.source.find_if_any(tokenizer_file.FILE) or self.source.find_if_any(tokenizer_file.WORDS)
        settings = self.source.find_if_any(tokenizer_file.SETTINGS)
        return file is not None and not tokenizer_file.is_clip_tokenizer(file, settings)

    def preprocess(self, size: int) -> Preprocess:
        """That of the model's file; without one, that of its kind."""
        for file in (PROCESSOR, PIXELS):
            if (path := self.source.find_if_any(file)) is None:
                continue
            content = typed(read_json(path), dict[str, Any], path)
            if file == PROCESSOR:
                if IMAGES not in content:
                    continue
                content = typed(content[IMAGES], dict[str, Any], path)
            return read_preprocess(size, self.kind, content, path)
        return read_preprocess(size, self.kind, {}, self.name)


def build_clip(projection_dim: int | None, text: dict[str, Any], vision: dict[str, Any]) -> nn.Module:
    """The open_clip model of a CLIP."""
    quick, text_cfg = ACTIVATIONS[text["hidden_act"]] is None, _text_sizes(text)
    # Configurations from before 2023 give 2 as the end of text, but mean the highest id.
    end = text["eos_token_id"]
    pool = {"pool_type": "argmax"} if end == 2 else {"pool_type": "eos", "eos_id": end}
    vision_cfg = _sizes(vision) | {
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
        "head_width": vision["hidden_size"] // vision["num_attention_heads"],
    }  # fmt: skip
    image_quick = ACTIVATIONS[vision["hidden_act"]] is None
    if image_quick == quick:
        vision_cfg |= _activation(vision)
    clip: Any = open_clip.CLIP(projection_dim or 512, vision_cfg, text_cfg | pool, quick_gelu=quick)
    if image_quick != quick:  # open_clip has one setting for both towers
        for block in clip.visual.transformer.resblocks:
            block.mlp.gelu = QuickGELU() if image_quick else nn.GELU(**_activation(vision)["act_kwargs"])
    return clip  # type: ignore[no-any-return]


def build_siglip(text: dict[str, Any], vision: dict[str, Any]) -> nn.Module:
    """The open_clip model of a SigLIP."""
    import timm
    from timm.layers.norm import LayerNorm

    quick, text_cfg = ACTIVATIONS[text["hidden_act"]] is None, _text_sizes(text)
    pool = {"pool_type": "last", "no_causal_mask": True, "proj_bias": True}
    placeholder = {
        "timm_model_name": "vit_base_patch16_siglip_224", "timm_pool": "map", "timm_proj": "none",
        "image_size": vision["image_size"],
    }  # fmt: skip
    siglip: Any = open_clip.CustomTextCLIP(
        text.get("projection_size") or text["hidden_size"], placeholder, text_cfg | pool,
        quick_gelu=quick, init_logit_bias=-10.0,
    )  # fmt: skip
    siglip.visual.trunk = timm.create_model(
        "vit_base_patch16_siglip_224", num_classes=0, global_pool="map", img_size=vision["image_size"],
        patch_size=vision["patch_size"], embed_dim=vision["hidden_size"], depth=vision["num_hidden_layers"],
        num_heads=vision["num_attention_heads"], mlp_ratio=_mlp_ratio(vision),
        act_layer={"quick_gelu": "quick_gelu", "gelu": "gelu"}.get(vision["hidden_act"], "gelu_tanh"),
        norm_layer=partial(LayerNorm, eps=vision["layer_norm_eps"]),
    )  # fmt: skip
    return siglip  # type: ignore[no-any-return]


def _text_sizes(text: dict[str, Any]) -> dict[str, Any]:
    """The sizes of the text tower in open_clip's configuration."""
    return _sizes(text) | _activation(text) | {
        "context_length": text["max_position_embeddings"],
        "vocab_size": text["vocab_size"],
        "heads": text["num_attention_heads"],
    }  # fmt: skip


def _activation(tower: dict[str, Any]) -> dict[str, Any]:
    """The form of GELU in open_clip's configuration of a tower; nothing for QuickGELU."""
    approximate = ACTIVATIONS[tower["hidden_act"]]
    return {} if approximate is None else {"act_kwargs": {"approximate": approximate}}


def _sizes(tower: dict[str, Any]) -> dict[str, Any]:
    """The keys that open_clip has for both towers."""
    return {
        "width": tower["hidden_size"],
        "layers": tower["num_hidden_layers"],
        "mlp_ratio": _mlp_ratio(tower),
        "norm_kwargs": {"eps": tower["layer_norm_eps"]},
    }


def _mlp_ratio(tower: dict[str, Any]) -> float:
    """The ratio from which open_clip and timm compute the width of the MLP, rounding down."""
    return float((tower["intermediate_size"] + 0.5) / tower["hidden_size"])


def convert_names(state: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Rename tensors to those of the model that is built. Tensors that it lacks keep their names."""
    tensors = dict[str, Tensor]()
    for name, tensor in state.items():
        if name.endswith("position_ids"):
            continue
        target = _convert_name(name, kind)
        if "self_attn.k_proj" in name or "self_attn.v_proj" in name:
            continue
        if "self_attn.q_proj" in name:
            tensor = torch.cat([state[name.replace("q_proj", f"{which}_proj")] for which in "qkv"])
        elif target in ("visual.proj", "text_projection"):
            tensor = tensor.T
        elif target == "visual.trunk.pos_embed":
            tensor = tensor.unsqueeze(0)
        elif name.startswith("vision_model.head.attention.in_proj_"):
            width, parameter = len(tensor) // 3, name.rpartition("_")[2]
            tensors[f"{POOL}.q.{parameter}"], tensor = tensor[:width], tensor[width:]
            target = f"{POOL}.kv.{parameter}"
        tensors[target] = tensor.reshape(-1) if target == "visual.class_embedding" else tensor
    return tensors


def _convert_name(name: str, kind: str) -> str:
    for prefix, target in PREFIXES[kind].items():
        if name.startswith(f"{prefix}.") or name == prefix:
            name = target + name.removeprefix(prefix)
            is_timm = target.startswith("visual.trunk")
            for part, names in BLOCK.items():
                name = name.replace(f".{part}.", f".{names[is_timm]}.")
            return name.replace("self_attn.q_proj.", "attn.qkv." if is_timm else "attn.in_proj_")
    return name


class Pixels(TypedDict, total=False):
    """The keys of a file for pixels that are read."""

    size: int | dict[str, int]
    crop_size: int | dict[str, int]
    do_center_crop: bool
    resample: int
    image_mean: tuple[Shift, Shift, Shift]
    image_std: tuple[Ratio, Ratio, Ratio]


KEYS = frozenset(Pixels.__annotations__)
USUAL = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
"""What is always done to pixels here: a file with another value is refused."""
BILINEAR, BICUBIC = 2, 3
RESAMPLE: dict[int, Interpolation] = {BILINEAR: "bilinear", BICUBIC: "bicubic"}
"""Pillow's numbers of filters."""


def read_preprocess(size: int, kind: str, content: Mapping[str, Any], path: Path | str) -> Preprocess:
    """The preprocessing by a preprocessor_config.json, for a model of ``kind`` "clip" or "siglip" whose tower
    sees ``size`` pixels. Raises ReadingError for a step that is not done here.
    """
    for key, value in USUAL.items():
        setting = content.get(key, value)
        if not isinstance(setting, bool | float | int) or abs(setting - value) > 1e-5 * value:
            raise ReadingError(path, f"its {key} is {shown(setting)}: only models with {value} fit")
    settings = typed({key: content[key] for key in KEYS if key in content}, Pixels, path)
    if (resample := settings.get("resample", BICUBIC)) not in RESAMPLE:
        raise ReadingError(path, f"its resample is {resample}: only 2 (bilinear) and 3 (bicubic) fit")
    gray = (0.5, 0.5, 0.5) if kind == "siglip" else None  # both mean and deviation
    view = Preprocess(
        size,
        settings.get("image_mean", gray or Preprocess.mean),
        settings.get("image_std", gray or Preprocess.std),
        RESAMPLE[resample],
        rounds_crop_down=True,
    )
    return _resized(view, settings, kind, path).with_floats()


def _resized(view: Preprocess, content: Pixels, kind: str, path: Path | str) -> Preprocess:
    crops = content.get("do_center_crop", kind == "clip")
    resized, crop = content.get("size", view.size), content.get("crop_size", view.size)
    if isinstance(resized, int):
        sides = ("shortest_edge",) if kind == "clip" else ("height", "width")
        resized = dict.fromkeys(sides, resized)
    square = {"height": view.size, "width": view.size}
    if resized == square:
        return replace(view, resize_mode="squash")
    short_side = resized["shortest_edge"] if resized.keys() == {"shortest_edge"} else 0
    if crops and crop in (square, view.size) and short_side >= view.size:
        return replace(view, short_side=None if short_side == view.size else short_side)
    raise ReadingError(
        path,
        f"its size is {shown(resized)} with the crop_size {shown(crop if crops else None)}, which is not "
        f"the square of {view.size} pixels that its image tower takes",
    )
