"""Attention with one additive bias per head, and the rotary position embedding of its queries and keys.

The bias is added to the scaled scores before the softmax; ``-inf`` blocks an edge, and a blocked weight is
exactly zero in both forms. Every tensor has a head dimension, so that a role mask can differ by head. The
result for a query whose edges are all blocked is undefined: zero from the fused kernel, NaN written out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from dear.backbone.casts import compute_dtype

ALIGNMENT = 8
"""Rows of a bias begin at multiples of this many numbers."""

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
    """Softmax attention by torch's fused kernel, which only takes a bias of two or four dimensions. If a
    gradient is needed in bfloat16 on a CPU, attention is written out: the fused kernel takes three times as
    long there.
    """
    if bias is not None and bias.ndim == 3:
        bias = bias.unsqueeze(0)
    has_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if has_gradient and query.dtype == torch.bfloat16 and query.device.type == "cpu":
        return attend_written_out(query, key, value, bias)
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
    """0 where key <= query, -inf elsewhere, on the device of ``like``, in the dtype of products with it."""
    blocked = torch.ones(tokens, tokens, dtype=torch.bool, device=like.device).triu(1)
    zeros = torch.zeros(tokens, tokens, dtype=compute_dtype(like), device=like.device)
    return aligned(zeros.masked_fill(blocked, float("-inf")))


def aligned(bias: Float[Tensor, "*any key"]) -> Float[Tensor, "*any key"]:
    """The bias, stored so that its rows begin at multiples of `ALIGNMENT`: torch's memory-efficient kernel
    pads a copy of any other bias at each call.
    """
    keys = bias.shape[-1]
    return pad(bias, (0, -keys % ALIGNMENT))[..., :keys]


class ComputedBiases:
    """The biases of a method's layers in the dtype of products, cast once for each dtype and device."""

    def __init__(self) -> None:
        self._casts = list[Tensor]()

    def __call__(
        self, biases: Sequence[Float[Tensor, "*any query key"]]
    ) -> list[Float[Tensor, "*any query key"]]:
        """Cast and align the biases, which must be the same at each call."""
        dtype, device = compute_dtype(biases[0]), biases[0].device
        if torch.compiler.is_compiling():  # traced for an export: its tensors hold no values
            return [bias.to(dtype) for bias in biases]
        if not self._casts or (self._casts[0].dtype, self._casts[0].device) != (dtype, device):
            self._casts = [aligned(bias.to(dtype)) for bias in biases]
        return self._casts


@dataclass(frozen=True)
class PackedSequences:
    """Attention over causal sequences with a common prefix, packed into one sequence: the prefix once, then
    the suffix of each. A token sees the prefix and, in its own sequence, the tokens up to itself.

    The result is that of a bias of -inf on all other edges, but blocked edges are not computed. Sequences of
    equal length are computed together.

    Attributes:
        prefix: Number of tokens in the prefix.
        groups: For each length, the number of sequences and the number of tokens in a suffix.
        bias: `causal_bias` of the longest sequence, prefix included.
        read: For each sequence, the position in its suffix of the only token with a query; None if all
            tokens have one.
    """

    prefix: int
    groups: tuple[tuple[int, int], ...]
    bias: Float[Tensor, "token token"]
    read: Int[Tensor, "sequence"] | None = None

    def select_queries(self, read: Int[Tensor, "sequence"]) -> "PackedSequences":
        """The attention with one query for each sequence: the token at this position in the packed one."""
        starts, start = [], self.prefix
        for count, length in self.groups:
            starts.append(torch.arange(count, device=read.device) * length + start)
            start += count * length
        return replace(self, read=read - torch.cat(starts))

    def attend(
        self,
        query: Float[Tensor, "1 head query dim"],
        key: Float[Tensor, "1 head token dim"],
        value: Float[Tensor, "1 head token dim"],
        attend: Attend,
    ) -> Float[Tensor, "1 head query dim"]:
        """Compute it with ``attend``, a function for sequences that are not packed."""
        # One split for all parts: a slice for each would have a gradient as large as the whole tensor.
        prefix, outputs = self.prefix, []
        sizes = [count * length for count, length in self.groups]
        keys, values = (x.squeeze(0).transpose(0, 1).split([prefix, *sizes]) for x in (key, value))
        queries = [*query.squeeze(0).transpose(0, 1).split(self._query_sizes())]
        if self.read is None:
            q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (queries.pop(0), keys[0], values[0]))
            outputs.append(attend(q, k, v, self.bias[:prefix, :prefix])[0].transpose(0, 1))
            reads: Sequence[Tensor | None] = [None] * len(sizes)
        else:
            reads = self.read.split([count for count, _ in self.groups])
        for group, (count, length) in enumerate(self.groups):
            total, read = prefix + length, reads[group]
            if read is None:
                bias = self.bias[prefix:total, :total]
            else:
                bias = self.bias[prefix + read, None, None, :total]
            group_keys, group_values = (
                torch.cat([x[0].expand(count, -1, -1, -1), x[group + 1].unflatten(0, (count, length))], dim=1)
                for x in (keys, values)
            )
            group_queries = queries[group].unflatten(0, (count, -1))
            q, k, v = (x.transpose(1, 2) for x in (group_queries, group_keys, group_values))
            outputs.append(attend(q, k, v, bias).transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).transpose(0, 1).unsqueeze(0)

    def _query_sizes(self) -> list[int]:
        """The number of queries in the prefix, if it has any, and in each group."""
        if self.read is None:
            return [self.prefix, *(count * length for count, length in self.groups)]
        return [count for count, _ in self.groups]


@dataclass(frozen=True)
class Rotation:
    """Rotary position embedding. Each query and each key has a row: the sines of all dimensions of a head,
    then the cosines. A token without a position (the class token, learned tokens) is not rotated.

    Source: Su et al. 2021 (RoFormer), eq. 34, in the interleaved form of timm's ``apply_rot_embed``; as in
    EVA-02 and Perception Encoder.
    """

    query: Float[Tensor, "query two_dims"]
    key: Float[Tensor, "token two_dims"]

    def __call__(
        self, query: Float[Tensor, "batch head query dim"], key: Float[Tensor, "batch head token dim"]
    ) -> tuple[Float[Tensor, "batch head query dim"], Float[Tensor, "batch head token dim"]]:
        """Rotate queries and keys."""
        return rotate(query, self.query), rotate(key, self.key)

    def select_queries(self, read: Int[Tensor, "read"]) -> "Rotation":
        """The rotation if only the tokens in ``read`` have queries."""
        return Rotation(self.query[read], self.key)


def rotate(
    x: Float[Tensor, "batch head token dim"], table: Float[Tensor, "token two_dims"]
) -> Float[Tensor, "batch head token dim"]:
    """Rotate each pair of neighboring dimensions by its token's angle."""
    sine, cosine = table.to(x.dtype).chunk(2, dim=-1)
    quarter_turn = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return x * cosine + quarter_turn * sine


def no_rotation(count: int, like: Float[Tensor, "token two_dims"]) -> Float[Tensor, "count two_dims"]:
    """Rows of the table for tokens that are not rotated: sines 0, cosines 1."""
    dims = like.shape[-1] // 2
    return torch.cat([like.new_zeros(count, dims), like.new_ones(count, dims)], dim=-1)
