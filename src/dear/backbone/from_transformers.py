"""CLIP and SigLIP as Hugging Face's transformers saves them, as the open_clip models that compute the same.

Only names and shapes differ: projections of queries, keys and values are three there and one here, and
projections into the joint space are transposed. transformers itself is not needed but for its tokenizers.
"""

from functools import partial
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from dear.backbone import openclip as open_clip
from dear.backbone.choice import HUB
from dear.errors import WeightsError
from dear.reading.typed import Positive

CONFIG = "config.json"
PIXELS = "preprocessor_config.json"
FILES = ("model.safetensors", "pytorch_model.bin")
KINDS = ("clip", "siglip")
HALF = ((0.5,) * 3, (0.5,) * 3)  # mean and standard deviation of SigLIP's pixels
ACTIVATIONS = {"quick_gelu": None, "gelu": "none", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh"}
FROM_BLOCK = {
    "layer_norm1": ("ln_1", "norm1"),
    "layer_norm2": ("ln_2", "norm2"),
    "self_attn.out_proj": ("attn.out_proj", "attn.proj"),
    "mlp.fc1": ("mlp.c_fc", "mlp.fc1"),
    "mlp.fc2": ("mlp.c_proj", "mlp.fc2"),
}
"""Names within a block in open_clip and in timm."""


class TowerConfig(TypedDict, total=False):
    """A tower's configuration; transformers leaves out what is at its default."""

    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    vocab_size: Positive
    max_position_embeddings: Positive
    image_size: Positive
    patch_size: Positive
    hidden_act: str
    layer_norm_eps: float
    eos_token_id: int
    projection_size: Positive | None


class Config(TypedDict):
    """What is read of a configuration."""

    model_type: str
    text_config: NotRequired[TowerConfig]
    vision_config: NotRequired[TowerConfig]
    projection_dim: NotRequired[Positive]


class PixelConfig(TypedDict, total=False):
    """The normalisation of the pixels."""

    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]


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
"""transformers' defaults."""


def settled(config: Config, name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Kind, text and image configuration with defaults filled in. Raises WeightsError for other models."""
    kind = config["model_type"]
    if kind not in KINDS:
        raise WeightsError(f"{name} does not fit: transformers' {kind!r} is not one of {', '.join(KINDS)}.")
    text = TEXT | (SIGLIP_TEXT if kind == "siglip" else {}) | BY_KIND[kind]
    vision = VISION | ({"patch_size": 16} if kind == "siglip" else {}) | BY_KIND[kind]
    text, vision = text | dict(config.get("text_config", {})), vision | dict(config.get("vision_config", {}))
    if text["hidden_act"] not in ACTIVATIONS or text["hidden_act"] != vision["hidden_act"]:
        raise WeightsError(
            f"{name} does not fit: its towers have the activations {text['hidden_act']} and "
            f"{vision['hidden_act']}, not one of {', '.join(ACTIVATIONS)} for both."
        )
    return kind, text, vision


def build(config: Config, name: str) -> nn.Module:
    """The open_clip model of a configuration, with its initial weights. Raises WeightsError."""
    kind, text, vision = settled(config, name)
    text_cfg = {
        "context_length": text["max_position_embeddings"],
        "vocab_size": text["vocab_size"],
        "width": text["hidden_size"],
        "heads": text["num_attention_heads"],
        "layers": text["num_hidden_layers"],
        "mlp_ratio": _ratio(text),
        "norm_kwargs": {"eps": text["layer_norm_eps"]},
    }
    approximate = ACTIVATIONS[text["hidden_act"]]
    act = {} if approximate is None else {"act_kwargs": {"approximate": approximate}}
    quick = approximate is None
    if kind == "clip":
        # A configuration of before 2023 has 2 for the end of text and means the highest id.
        end = text["eos_token_id"]
        pool = {"pool_type": "argmax"} if end == 2 else {"pool_type": "eos", "eos_id": end}
        vision_cfg = {
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
            "width": vision["hidden_size"],
            "head_width": vision["hidden_size"] // vision["num_attention_heads"],
            "layers": vision["num_hidden_layers"],
            "mlp_ratio": _ratio(vision),
            "norm_kwargs": {"eps": vision["layer_norm_eps"]},
        }
        embed = config.get("projection_dim", 512)
        made: nn.Module = open_clip.CLIP(embed, vision_cfg | act, text_cfg | act | pool, quick_gelu=quick)
        return made
    import timm
    from timm.layers.norm import LayerNorm

    last = {"pool_type": "last", "no_causal_mask": True, "proj_bias": True}
    embed = text.get("projection_size") or text["hidden_size"]
    stand_in = {"timm_model_name": "vit_base_patch16_siglip_224", "timm_pool": "map", "timm_proj": "none"}
    network: Any = open_clip.CustomTextCLIP(
        embed, stand_in | {"image_size": vision["image_size"]}, text_cfg | act | last,
        quick_gelu=quick, init_logit_bias=-10.0,
    )  # fmt: skip
    network.visual.trunk = timm.create_model(
        "vit_base_patch16_siglip_224", num_classes=0, global_pool="map", img_size=vision["image_size"],
        patch_size=vision["patch_size"], embed_dim=vision["hidden_size"], depth=vision["num_hidden_layers"],
        num_heads=vision["num_attention_heads"], mlp_ratio=_ratio(vision),
        act_layer={"quick_gelu": "quick_gelu", "gelu": "gelu"}.get(vision["hidden_act"], "gelu_tanh"),
        norm_layer=partial(LayerNorm, eps=vision["layer_norm_eps"]),
    )  # fmt: skip
    return network  # type: ignore[no-any-return]


def _ratio(tower: dict[str, Any]) -> float:
    """The ratio from which open_clip and timm, which round down, compute the width of the MLP."""
    return float((tower["intermediate_size"] + 0.5) / tower["hidden_size"])


def converted(state: dict[str, Tensor], config: Config, name: str) -> dict[str, Tensor]:
    """Tensors under the names of the model that ``build`` makes. Raises WeightsError if one is missing."""
    kind, text, vision = settled(config, name)
    left = {key: value for key, value in state.items() if not key.endswith("position_ids")}
    made: dict[str, Tensor] = {}

    def take(key: str) -> Tensor:
        if key not in left:
            raise WeightsError(f"{name} holds weights of another architecture: it has no tensor {key}.")
        return left.pop(key)

    def move(source: str, target: str, parts: tuple[str, ...] = ("weight", "bias")) -> None:
        for part in parts:
            made[f"{target}.{part}"] = take(f"{source}.{part}")

    def blocks(source: str, target: str, depth: int, joined: str, style: int) -> None:
        for layer in range(depth):
            one, other = f"{source}.encoder.layers.{layer}", f"{target}.{layer}"
            for part in ("weight", "bias"):
                three = [take(f"{one}.self_attn.{which}_proj.{part}") for which in "qkv"]
                made[f"{other}.{joined}{part}"] = torch.cat(three)
            for theirs, ours in FROM_BLOCK.items():
                move(f"{one}.{theirs}", f"{other}.{ours[style]}")

    plain, prefix = kind == "clip", "" if kind == "clip" else "text."
    made[f"{prefix}token_embedding.weight"] = take("text_model.embeddings.token_embedding.weight")
    made[f"{prefix}positional_embedding"] = take("text_model.embeddings.position_embedding.weight")
    move("text_model.final_layer_norm", f"{prefix}ln_final")
    depth = text["num_hidden_layers"]
    blocks("text_model", f"{prefix}transformer.resblocks", depth, "attn.in_proj_", 0)
    made["logit_scale"] = take("logit_scale").reshape(())
    depth, embeddings = vision["num_hidden_layers"], "vision_model.embeddings"
    places = take(f"{embeddings}.position_embedding.weight")
    if plain:
        made["visual.class_embedding"] = take(f"{embeddings}.class_embedding").reshape(-1)
        made["visual.positional_embedding"] = places
        move(f"{embeddings}.patch_embedding", "visual.conv1", ("weight",))
        move("vision_model.pre_layrnorm", "visual.ln_pre")
        move("vision_model.post_layernorm", "visual.ln_post")
        blocks("vision_model", "visual.transformer.resblocks", depth, "attn.in_proj_", 0)
        made["visual.proj"] = take("visual_projection.weight").T
        made["text_projection"] = take("text_projection.weight").T
    else:
        trunk = "visual.trunk"
        made[f"{trunk}.pos_embed"] = places.unsqueeze(0)
        move(f"{embeddings}.patch_embedding", f"{trunk}.patch_embed.proj")
        move("vision_model.post_layernorm", f"{trunk}.norm")
        blocks("vision_model", f"{trunk}.blocks", depth, "attn.qkv.", 1)
        made[f"{trunk}.attn_pool.latent"] = take("vision_model.head.probe")
        for part in ("weight", "bias"):
            both = take(f"vision_model.head.attention.in_proj_{part}")
            width = len(both) // 3
            made[f"{trunk}.attn_pool.q.{part}"] = both[:width]
            made[f"{trunk}.attn_pool.kv.{part}"] = both[width:]
        move("vision_model.head.attention.out_proj", f"{trunk}.attn_pool.proj")
        move("vision_model.head.layernorm", f"{trunk}.attn_pool.norm")
        for which in ("fc1", "fc2"):
            move(f"vision_model.head.mlp.{which}", f"{trunk}.attn_pool.mlp.{which}")
        move("text_model.head", "text.text_projection")
        made["logit_bias"] = take("logit_bias").reshape(())
    return made | left  # what is left over is reported as unknown


def text_config(config: Config, name: str) -> dict[str, Any]:
    """What a tokenizer needs, as in open_clip's configuration: CLIP's own where the vocabulary is CLIP's."""
    kind, text, _ = settled(config, name)
    found = {"context_length": text["max_position_embeddings"]}
    if kind == "clip" and text["vocab_size"] == open_clip.SimpleTokenizer().vocab_size:
        return found
    clean = {"tokenizer_kwargs": {"clean": "canonicalize"}} if kind == "siglip" else {}
    return found | {"hf_tokenizer_name": name.removeprefix(HUB), "vocab_size": text["vocab_size"]} | clean
