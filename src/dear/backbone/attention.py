"""Attention with one additive bias per head: a fused form for use and an explicit one as its reference.

The bias is added to the scaled scores before the softmax; ``-inf`` blocks an edge, and a blocked weight is
exactly zero in both forms. Every tensor has a head dimension, so that a role mask can differ by head. The
result for a query with all edges blocked is undefined: zero in the fused form, NaN in the explicit one.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Attend = Callable[
    [
        Float[Tensor, "batch head query dim"],
        Float[Tensor, "batch head key dim"],
        Float[Tensor, "batch head key dim"],
        Float[Tensor, "*#batch #head #query key"] | None,
    ],
    Float[Tensor, "batch head query dim"],
]


def attend(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch head key dim"],
    value: Float[Tensor, "batch head key dim"],
    bias: Float[Tensor, "*#batch #head #query key"] | None = None,
) -> Float[Tensor, "batch head query dim"]:
    """Softmax attention by torch's fused kernel, which only takes a bias of two or four dimensions."""
    if bias is not None and bias.ndim == 3:
        bias = bias.unsqueeze(0)
    return scaled_dot_product_attention(query, key, value, attn_mask=bias)


def attend_written_out(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch head key dim"],
    value: Float[Tensor, "batch head key dim"],
    bias: Float[Tensor, "*#batch #head #query key"] | None = None,
) -> Float[Tensor, "batch head query dim"]:
    """Softmax attention written out: the reference, and the faster form for short sequences on a CPU."""
    return attention_weights(query, key, bias) @ value


def attention_weights(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch head key dim"],
    bias: Float[Tensor, "*#batch #head #query key"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Attention weights, rows summing to one."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    return torch.softmax(scores if bias is None else scores + bias, dim=-1)


def causal_bias(tokens: int, like: Tensor) -> Float[Tensor, "query key"]:
    """0 where key <= query and -inf elsewhere, in the dtype and on the device of ``like``."""
    blocked = torch.ones(tokens, tokens, dtype=torch.bool, device=like.device).triu(1)
    return torch.zeros(tokens, tokens, dtype=like.dtype, device=like.device).masked_fill(
        blocked, float("-inf")
    )
