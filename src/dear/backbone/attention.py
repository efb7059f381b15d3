"""Attention with one additive bias per head: a fused form for use and an explicit one as its reference.

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
class Packed:
    """The attention of causal sequences that begin alike, packed into one: first the tokens that they share,
    once, then each one's own. A token sees the shared ones and, of its own sequence, those up to itself.

    It stands for a bias of -inf elsewhere, at the cost of what is seen: sequences of one length go together.

    Attributes:
        shared: Number of the shared tokens.
        groups: For each length in turn, the number of sequences and of their own tokens.
        bias: `causal_bias` of the longest sequence with the shared tokens.
        read: Of each sequence, the place of the one token among its own whose queries are given; None if
            those of all tokens are.
    """

    shared: int
    groups: tuple[tuple[int, int], ...]
    bias: Float[Tensor, "token token"]
    read: Int[Tensor, "sequence"] | None = None

    def reading(self, read: Int[Tensor, "sequence"]) -> "Packed":
        """The same for the queries of one token of each sequence, by its place in the packed sequence."""
        starts, start = [], self.shared
        for count, own in self.groups:
            starts.append(torch.arange(count, device=read.device) * own + start)
            start += count * own
        return replace(self, read=read - torch.cat(starts))

    def attend(
        self,
        query: Float[Tensor, "1 head query dim"],
        key: Float[Tensor, "1 head token dim"],
        value: Float[Tensor, "1 head token dim"],
        form: Attend,
    ) -> Float[Tensor, "1 head query dim"]:
        """The attention by a form for whole sequences."""
        queries, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
        start, done, out = self.shared, 0, []
        if self.read is None:
            one, other, third = (x[:, :, :start] for x in (query, key, value))
            out.append(form(one, other, third, self.bias[:start, :start])[0].transpose(0, 1))
            done = start
        for count, own in self.groups:
            each, seen = (1 if self.read is not None else own), self.shared + own
            asking = queries[done : done + count * each].unflatten(0, (count, each))
            if self.read is None:
                bias = self.bias[self.shared : seen, :seen]
            else:
                bias = self.bias[self.shared + self.read[done : done + count], None, None, :seen]
            of_keys, of_values = (
                torch.cat(
                    [x[: self.shared].expand(count, -1, -1, -1), mine.unflatten(0, (count, own))], dim=1
                )
                for x, mine in ((x, x[start : start + count * own]) for x in (keys, values))
            )
            found = form(asking.transpose(1, 2), of_keys.transpose(1, 2), of_values.transpose(1, 2), bias)
            out.append(found.transpose(1, 2).flatten(0, 1))
            start, done = start + count * own, done + count * each
        return torch.cat(out).transpose(0, 1).unsqueeze(0)
