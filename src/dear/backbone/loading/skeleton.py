"""The modules of CLIP's own architecture by open_clip's names, to load weights into without open_clip."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

SIZES = {
    "vision_cfg": {"image_size", "patch_size", "width", "head_width", "layers", "mlp_ratio"},
    "text_cfg": {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"},
}


def fits_skeleton(config: dict[str, Any]) -> bool:
    """True if open_clip's configuration of a model sets nothing but sizes and the activation."""
    return config.keys() <= {"embed_dim", "quick_gelu", *SIZES} and all(
        config[tower].keys() <= keys and all(isinstance(size, int | float) for size in config[tower].values())
        for tower, keys in SIZES.items()
    )


class QuickGELU(nn.Module):
    """The activation of OpenAI's CLIPs, an approximation of GELU."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class LayerNorm(nn.LayerNorm):
    """A LayerNorm whose result has the dtype of its input, even under autocast, as in open_clip."""

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps).to(x.dtype)


class Skeleton(nn.Module):
    """A CLIP with a ViT read at its class token and a causal text tower: what the towers are made of.

    It has the tensors of open_clip's ``CLIP`` under the same names, without values, and no forward pass.
    Source: open_clip 3.3 ``CLIP``, ``VisionTransformer`` and ``TextTransformer``, for a configuration for
    which `fits_skeleton` holds.
    """

    def __init__(
        self, embed_dim: int, vision_cfg: dict[str, Any], text_cfg: dict[str, Any], quick_gelu: bool = False
    ) -> None:
        super().__init__()
        with torch.device("meta"):
            self.visual = _Visual(embed_dim, **vision_cfg, quick_gelu=quick_gelu)
            width = text_cfg["width"]
            self.context_length = text_cfg["context_length"]
            self.transformer = _Transformer(
                width, text_cfg["layers"], text_cfg["heads"], text_cfg.get("mlp_ratio", 4.0), quick_gelu
            )
            words = torch.empty(text_cfg["vocab_size"], width)  # drawing initial values would load sympy
            self.token_embedding = nn.Embedding.from_pretrained(words, freeze=False)
            self.positional_embedding = nn.Parameter(torch.empty(self.context_length, width))
            self.ln_final = LayerNorm(width)
            self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
            self.logit_scale = nn.Parameter(torch.empty(()))
        self.logit_bias, self.text_pool_type, self.text_eos_id = None, "argmax", None
        self.attn_mask = True  # anything but None: the text tower is causal


class _Visual(nn.Module):
    def __init__(
        self,
        embed_dim: int,
        *,
        image_size: int,
        patch_size: int,
        width: int,
        layers: int,
        quick_gelu: bool,
        head_width: int = 64,
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__()
        self.image_size, self.patch_size = (image_size, image_size), (patch_size, patch_size)
        self.grid_size = (image_size // patch_size, image_size // patch_size)
        self.pool_type = "tok"
        self.conv1 = nn.Conv2d(3, width, patch_size, stride=patch_size, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        patches = (image_size // patch_size) ** 2
        self.positional_embedding = nn.Parameter(torch.empty(patches + 1, width))
        self.ln_pre = LayerNorm(width)
        self.transformer = _Transformer(width, layers, width // head_width, mlp_ratio, quick_gelu)
        self.ln_post = LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, embed_dim))


class _Transformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, mlp_ratio: float, quick_gelu: bool) -> None:
        super().__init__()
        blocks = (SkeletonBlock(width, heads, mlp_ratio, quick_gelu=quick_gelu) for _ in range(layers))
        self.resblocks = nn.ModuleList(blocks)


class SkeletonBlock(nn.Module):
    def __init__(self, width: int, heads: int, mlp_ratio: float, *, quick_gelu: bool = False) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ls_1 = nn.Identity()
        self.ln_2 = LayerNorm(width)
        inner = int(width * mlp_ratio)
        gelu = QuickGELU() if quick_gelu else nn.GELU()
        parts = ("c_fc", nn.Linear(width, inner)), ("gelu", gelu), ("c_proj", nn.Linear(inner, width))
        self.mlp = nn.Sequential(OrderedDict[str, nn.Module](parts))
        self.ls_2 = nn.Identity()
