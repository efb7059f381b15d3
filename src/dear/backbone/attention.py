"""Attention with one additive bias per head, and the rotary position embedding of its queries and keys.

The bias is added to the scaled scores before the softmax; ``-inf`` blocks an edge, and a blocked weight is
exactly zero in both forms. Every tensor has a head dimension, so that a role mask can differ by head. The
result for a query with all edges blocked is undefined: zero in the fused form, NaN in the explicit one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
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


@dataclass(frozen=True)
class PackedSequences:
    """The attention of causal sequences with a common prefix, packed into one sequence: first the prefix,
    once, then the suffix of each. A token sees the prefix and, of its own sequence, the tokens up to itself.

    It has the result of a bias of -inf on all other edges, but computes only the edges that are not blocked.
    Sequences of one length are computed together.

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

    def reading(self, read: Int[Tensor, "sequence"]) -> "PackedSequences":
        """The same for the query of one token of each sequence, by its position in the packed sequence."""
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
        """The attention, by a function for sequences that are not packed."""
        queries, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
        prefix, outputs = self.prefix, []
        start, query_start = prefix, 0  # of a group's tokens and of its queries
        if self.read is None:
            q, k, v = (x[:, :, :prefix] for x in (query, key, value))
            outputs.append(attend(q, k, v, self.bias[:prefix, :prefix])[0].transpose(0, 1))
            query_start = prefix
        for count, length in self.groups:
            stop, total = start + count * length, prefix + length
            query_length = length if self.read is None else 1
            query_stop = query_start + count * query_length
            if self.read is None:
                bias = self.bias[prefix:total, :total]
            else:
                bias = self.bias[prefix + self.read[query_start:query_stop], None, None, :total]
            group_queries = queries[query_start:query_stop].unflatten(0, (count, query_length))
            group_keys, group_values = (
                torch.cat(
                    [x[:prefix].expand(count, -1, -1, -1), x[start:stop].unflatten(0, (count, length))], dim=1
                )
                for x in (keys, values)
            )
            q, k, v = (x.transpose(1, 2) for x in (group_queries, group_keys, group_values))
            outputs.append(attend(q, k, v, bias).transpose(1, 2).flatten(0, 1))
            start, query_start = stop, query_stop
        return torch.cat(outputs).transpose(0, 1).unsqueeze(0)


@dataclass(frozen=True)
class Rotation:
    """Rotary position embedding: for each query and each key the sines, then the cosines, of each of a head's
    dimensions. A token without a position (the class token, learned tokens) is not rotated.

    Source: Su et al. 2021 (RoFormer), eq. 34, in the interleaved form of timm's ``apply_rot_embed``; as in
    EVA-02 and Perception Encoder.
    """

    query: Float[Tensor, "query two_dims"]
    key: Float[Tensor, "token two_dims"]

    def __call__(
        self, query: Float[Tensor, "batch head query dim"], key: Float[Tensor, "batch head token dim"]
    ) -> tuple[Float[Tensor, "batch head query dim"], Float[Tensor, "batch head token dim"]]:
        """Rotate both."""
        return rotate(query, self.query), rotate(key, self.key)

    def reading(self, read: Int[Tensor, "read"]) -> "Rotation":
        """The same for the queries of the tokens in ``read`` alone."""
        return Rotation(self.query[read], self.key)


def rotate(
    x: Float[Tensor, "batch head token dim"], table: Float[Tensor, "token two_dims"]
) -> Float[Tensor, "batch head token dim"]:
    """Rotate each pair of neighbouring dimensions by its token's angle."""
    sine, cosine = table.to(x.dtype).chunk(2, dim=-1)
    quarter_turn = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return x * cosine + quarter_turn * sine


def no_rotation(count: int, like: Float[Tensor, "token two_dims"]) -> Float[Tensor, "count two_dims"]:
    """The table's rows of tokens that are not rotated: sines 0, cosines 1."""
    dims = like.shape[-1] // 2
    return torch.cat([like.new_zeros(count, dims), like.new_ones(count, dims)], dim=-1)
