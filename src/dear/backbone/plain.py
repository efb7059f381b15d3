"""The modules of a plain CLIP by open_clip's names, for weights that are at hand, without open_clip."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm


class LayerNorm(nn.LayerNorm):
    """A LayerNorm whose result has the type of its input, also under autocast, as in open_clip."""

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps).to(x.dtype)


class PlainClip(nn.Module):
    """A CLIP with a ViT read at its class token and a causal text tower: what the towers are made of.

    It has the tensors of open_clip's ``CLIP`` under the same names, without values, and no forward pass.
    Source: open_clip 3.3 ``CLIP``, ``VisionTransformer`` and ``TextTransformer``, for a configuration that
    sets nothing but the sizes below.
    """

    def __init__(self, embed_dim: int, vision_cfg: dict[str, Any], text_cfg: dict[str, Any]) -> None:
        super().__init__()
        with torch.device("meta"):
            self.visual = _Visual(embed_dim, **vision_cfg)
            width = text_cfg["width"]
            self.context_length = text_cfg["context_length"]
            self.transformer = _Transformer(
                width, text_cfg["layers"], text_cfg["heads"], text_cfg["mlp_ratio"]
            )
            words = torch.empty(text_cfg["vocab_size"], width)  # torch loads sympy for initial values
            self.token_embedding = nn.Embedding.from_pretrained(words, freeze=False)
            self.positional_embedding = nn.Parameter(torch.empty(self.context_length, width))
            self.ln_final = LayerNorm(width)
            self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
            self.logit_scale = nn.Parameter(torch.empty(()))
        self.logit_bias, self.text_pool_type, self.text_eos_id = None, "argmax", None
        self.attn_mask = True  # any: its text tower is causal


class _Visual(nn.Module):
    def __init__(
        self,
        embed_dim: int,
        *,
        image_size: int,
        patch_size: int,
        width: int,
        head_width: int,
        layers: int,
        mlp_ratio: float,
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
        self.transformer = _Transformer(width, layers, width // head_width, mlp_ratio)
        self.ln_post = LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, embed_dim))


class _Transformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(PlainBlock(width, heads, mlp_ratio) for _ in range(layers))


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ls_1 = nn.Identity()
        self.ln_2 = LayerNorm(width)
        inner = int(width * mlp_ratio)
        parts = ("c_fc", nn.Linear(width, inner)), ("gelu", nn.GELU()), ("c_proj", nn.Linear(inner, width))
        self.mlp = nn.Sequential(OrderedDict[str, nn.Module](parts))
        self.ls_2 = nn.Identity()
