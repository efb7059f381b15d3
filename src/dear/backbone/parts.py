"""The parts of a transformer block under common names, from each library's own class.

Blocks of open_clip and of timm differ in names and in where they normalise, not in what they compute:
out = x + ls_1(out_proj(ln_inner(heads(ln_1(x))))), then out + ls_2(mlp(ln_2(out))).
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dear.backbone.kinds import is_a, just_a
from dear.backbone.plain import PlainBlock

PLAIN = "open_clip.transformer.ResidualAttentionBlock"
PLAIN_NORMS = ("open_clip.transformer.LayerNorm", "open_clip.transformer.LayerNormFp32")
TIMM = "timm.models.vision_transformer.Block"
EVA, EVA_POST_NORM = "timm.models.eva.EvaBlock", "timm.models.eva.EvaBlockPostNorm"
TIMM_ATTENTION = (
    "timm.layers.attention.Attention",
    "timm.layers.attention.AttentionRope",
    "timm.models.eva.EvaAttention",
)


class Scale(nn.Module):
    """A factor for each dimension (LayerScale)."""

    def __init__(self, gamma: Tensor) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


@dataclass(frozen=True)
class Parts:
    """What a block consists of.

    Attributes:
        in_proj_weight, in_proj_bias: of queries, keys and values, in that order.
        ls_1, ls_2: what is applied to the result of attention and MLP before it is added: a scale or, in
            blocks that normalise last, a LayerNorm.
        ln_inner: a LayerNorm of the heads' outputs before their projection, or nothing.
        ln_query, ln_key: LayerNorms of each head's queries and keys, or nothing.
    """

    heads: int
    ln_1: nn.Module
    ln_2: nn.Module
    ls_1: nn.Module
    ls_2: nn.Module
    in_proj_weight: Tensor
    in_proj_bias: Tensor
    out_proj: nn.Linear
    mlp: nn.Module
    ln_inner: nn.Module = field(default_factory=nn.Identity)
    ln_query: nn.Module = field(default_factory=nn.Identity)
    ln_key: nn.Module = field(default_factory=nn.Identity)


def parts_of(block: Any) -> Parts:
    """The parts of a block for which ``block_why_not`` has nothing to say."""
    attention = block.attn
    if isinstance(block, PlainBlock) or is_a(block, PLAIN):
        return Parts(
            attention.num_heads, block.ln_1, block.ln_2, block.ls_1, block.ls_2,
            attention.in_proj_weight, attention.in_proj_bias, attention.out_proj, block.mlp,
        )  # fmt: skip
    weight, bias = _projections(attention)
    inner = (attention.proj, block.mlp, attention.norm, attention.q_norm, attention.k_norm)
    if is_a(block, EVA_POST_NORM):
        none = nn.Identity()
        return Parts(attention.num_heads, none, none, block.norm1, block.norm2, weight, bias, *inner)
    if is_a(block, EVA):
        first, second = (
            nn.Identity() if one is None else Scale(one) for one in (block.gamma_1, block.gamma_2)
        )
    else:
        first, second = block.ls1, block.ls2
    return Parts(attention.num_heads, block.norm1, block.norm2, first, second, weight, bias, *inner)


def block_why_not(block: Any) -> str | None:
    """Why a block cannot be mapped exactly, or None."""
    if just_a(block, PLAIN):
        return _plain_why_not(block)
    if not just_a(block, TIMM, EVA, EVA_POST_NORM):
        return f"it has blocks of class {type(block).__name__}"
    attention = block.attn
    if not just_a(attention, *TIMM_ATTENTION):
        return f"it has attention of class {type(attention).__name__}"
    if attention.gate is not None:
        return "its attention is gated"
    if getattr(attention, "num_kv_groups", 1) != 1:
        return "its heads share keys and values"
    if getattr(attention, "rotate_half", False):
        return "its rotary embedding rotates by halves"
    if attention.head_dim * attention.num_heads != attention.proj.out_features:
        return "its heads together are not as wide as its tokens"
    if attention.proj.bias is None:
        return "its attention has an output projection without bias"
    norms = (block.norm1, block.norm2, attention.norm, attention.q_norm, attention.k_norm)
    return next(
        (f"it normalises by {type(one).__name__}" for one in norms if not _known_norm(one)),
        None,
    )


def _plain_why_not(block: Any) -> str | None:
    if hasattr(block, "ln_1_kv"):
        return "it has cross-attention"
    attention = block.attn
    if attention.in_proj_weight is None or attention.in_proj_bias is None or attention.bias_k is not None:
        return "its attention has separate or bias-free input projections"
    if not is_a(block.ln_1, *PLAIN_NORMS):
        return f"it normalises by {type(block.ln_1).__name__}"
    return None


def _known_norm(norm: nn.Module) -> bool:
    return isinstance(norm, nn.LayerNorm | nn.Identity)


def _projections(attention: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of queries, keys and values; joined where the source has three, zero where none."""
    if attention.qkv is None:
        three = (attention.q_proj, attention.k_proj, attention.v_proj)
        weight = _frozen(torch.cat([one.weight.detach() for one in three]))
        biases = [one.bias for one in three]
    else:
        weight, biases = attention.qkv.weight, [attention.qkv.bias]
        if getattr(attention, "q_bias", None) is not None:
            biases = [attention.q_bias, attention.k_bias, attention.v_bias]
    if len(biases) == 1 and biases[0] is not None:
        return weight, biases[0]
    rows = len(weight) // len(biases)
    parts = [weight.new_zeros(rows) if one is None else one.detach() for one in biases]
    return weight, _frozen(torch.cat(parts))


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach(), requires_grad=False)
