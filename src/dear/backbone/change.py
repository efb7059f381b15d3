"""What a method changes in a span of a tower: learned tokens enter it, or its weights are updated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear

Tokens = Float[Tensor, "batch token width"]
Longer = Float[Tensor, "batch longer width"]
"""With added tokens."""
Projection = Callable[[Tokens, Tensor, Tensor, int], Float[Tensor, "batch token outputs"]]
"""The projection of normalized tokens to some of queries, keys and values, by a layer's weight and bias of
these parts; the number is that of the first part: 0 for queries, 1 for keys, 2 for values.
"""


def frozen_projection(tokens: Tokens, weight: Tensor, bias: Tensor, first: int) -> Tensor:
    """The projection by the weights as they are."""
    del first
    return linear(tokens, weight, bias)


class Change:
    """The change of a span that changes nothing, and the base of those that do: a subclass overrides what
    differs. Steps count the layers of the span, from 0.
    """

    @property
    def added(self) -> int:
        """The number of tokens added to the input."""
        return 0

    def put(self, x: Tokens, values: Float[Tensor, "1 added width"]) -> Longer:
        """``x`` with ``values`` at the positions of the added tokens."""
        del values
        return x

    def remove(self, x: Longer) -> Tokens:
        """``x`` without the added tokens."""
        return x

    def enter(self, x: Tokens) -> Longer:
        """The input of the first layer."""
        return x

    def enter_through(self, x: Tokens, function: Callable[[Tensor], Tensor]) -> tuple[Longer, Tensor]:
        """The input of the first layer, and what a function of each token alone makes of it. What enters
        passes the function apart from the others and once for the batch, so that no gradient flows through
        those of a frozen ``x``.
        """
        return x, function(x)

    def anchor(self, x: Longer, step: int) -> Longer:
        """The input of a later layer."""
        del step
        return x

    def update(self, step: int) -> Projection:
        """The projection of a layer to queries, keys and values."""
        del step
        return frozen_projection

    def rows(self, rows: Int[Tensor, "row"], of: int) -> Self:
        """The change for these rows of a batch of ``of`` rows."""
        del rows, of
        return self

    def shifted(self, by: int) -> Self:
        """The change for tokens whose positions are higher by ``by``."""
        del by
        return self

    def is_shared(self, prefix: int) -> bool:
        """True if it changes the first ``prefix`` tokens of all rows alike, and adds none after them."""
        del prefix
        return True


UNCHANGED = Change()


@dataclass(frozen=True)
class ClassTokens:
    """Tokens of each class, in the order of a trunk's prompts. Before layer ``step`` of the span (from 0, but
    not the first) they replace the injected tokens, of which there are as many.
    """

    tokens: Float[Tensor, "class token width"]
    step: int


@dataclass(frozen=True)
class Injection(Change):
    """Learned tokens that enter at the span's first layer and are anchored at each later one: the input of a
    later layer is beta * raw + (1 - beta) * previous output (eq. 5 and 6, as we read them).

    Attributes:
        tokens: (token, width), or (layer, token, width) with one set per layer of the span, from its first;
            after the last set they evolve freely.
        beta: A number for all layers, or a tuple with one for each layer after the span's first.
        at: The position of the first token; None appends them.
        written: True if they overwrite placeholder tokens of a prompt.
        of_class: Tokens that replace them before a later layer.
    """

    tokens: Float[Tensor, "*layer token width"]
    beta: float | tuple[float, ...]
    at: int | None = None
    written: bool = False
    of_class: ClassTokens | None = None

    @property
    def added(self) -> int:
        return 0 if self.written else self.tokens.shape[-2]

    def put(self, x: Tokens, values: Float[Tensor, "1 added width"]) -> Longer:
        return self._replace(x, values.expand(x.shape[0], -1, -1), values.shape[1] - self.added)

    def remove(self, x: Longer) -> Tokens:
        return self._replace(x, x[:, :0], self.added) if self.added else x

    def enter(self, x: Tokens) -> Longer:
        return self.put(x, self._raw(0, x).unsqueeze(0))

    def enter_through(self, x: Tokens, function: Callable[[Tensor], Tensor]) -> tuple[Longer, Tensor]:
        raw = self._raw(0, x).unsqueeze(0)
        computed = self.put(function(x), function(raw))
        return self.put(x, raw), computed

    def anchor(self, x: Longer, step: int) -> Longer:
        count = self.tokens.shape[-2]
        if self.of_class is not None and step == self.of_class.step:
            return self._replace(x, self.of_class.tokens.to(x.dtype), count)
        if self.tokens.ndim == 3 and step >= len(self.tokens):
            return x
        beta = self.beta[step - 1] if isinstance(self.beta, tuple) else self.beta
        raw = self._raw(step, x)
        before, previous, after = self._split(x, count)
        return torch.cat([before, beta * raw + (1 - beta) * previous, after], dim=1)

    def rows(self, rows: Int[Tensor, "row"], of: int) -> Self:
        del of
        if self.of_class is None:
            return self
        return replace(self, of_class=replace(self.of_class, tokens=self.of_class.tokens[rows]))

    def shifted(self, by: int) -> Self:
        return self if self.at is None else replace(self, at=self.at + by)

    def is_shared(self, prefix: int) -> bool:
        last = (self.at or 0) + (self.tokens.shape[-2] if self.written else 0)
        return self.of_class is None and self.at is not None and last <= prefix

    def _raw(self, step: int, like: Tensor) -> Float[Tensor, "token width"]:
        return (self.tokens if self.tokens.ndim == 2 else self.tokens[step]).to(like.dtype)

    def _split(self, x: Tensor, count: int) -> tuple[Tensor, ...]:
        """What is before the injected tokens, the ``count`` tokens at their positions, and what follows."""
        at = x.shape[1] - count if self.at is None else self.at
        parts: tuple[Tensor, ...] = x.split([at, count, x.shape[1] - at - count], dim=1)
        return parts

    def _replace(self, x: Tensor, values: Tensor, count: int) -> Tensor:
        before, _, after = self._split(x, count)
        return torch.cat([before, values, after], dim=1)


@dataclass(frozen=True)
class UpdateDropout:
    """Dropout on the input of the updates in a training step; the frozen weights take the tokens unchanged.
    What is dropped depends on the seeds, the positions and the shape of the tokens, so that a layer that is
    computed again for its gradients drops the same values. Texts that are cut at another length have other
    values dropped.

    Attributes:
        rate: Share of the values that are dropped; the others are divided by 1 - rate.
        seeds: For each layer of the span, a seed for each of queries, keys and values.
        batch, rows: Number of rows of the whole batch, and those that are computed; ``rows`` None: all rows.
    """

    rate: float
    seeds: Sequence[Sequence[int]]
    batch: int = 0
    rows: Int[Tensor, "row"] | None = None

    def drop(self, tokens: Tokens, layer: int, part: int) -> Tokens:
        """The tokens with some values set to zero, for a layer of the span and a part of its projection, both
        counted from 0.
        """
        generator = torch.Generator(tokens.device).manual_seed(self.seeds[layer][part])
        shape = (len(tokens) if self.rows is None else self.batch, *tokens.shape[1:])
        keeps = torch.rand(shape, generator=generator, device=tokens.device) >= self.rate
        if self.rows is not None:
            keeps = keeps.index_select(0, self.rows)
        return tokens * keeps.to(tokens.dtype) / (1 - self.rate)


@dataclass(frozen=True)
class LowRank(Change):
    """Low-rank updates of all layers of a span: each of the weights W of queries, keys and values becomes
    W + scale * up @ down. With ``dropout``, scale * up @ down is applied to tokens with values dropped.

    Source: LoRA (arXiv 2106.09685).
    """

    down: Float[Tensor, "layer 3 rank width"]
    up: Float[Tensor, "layer 3 width rank"]
    scale: float
    dropout: UpdateDropout | None = None

    def update(self, step: int) -> Projection:
        down, up, dropout = self.down[step], self.up[step], self.dropout

        def project(tokens: Tensor, weight: Tensor, bias: Tensor, first: int) -> Tensor:
            parts = range(first, first + len(weight) // tokens.shape[-1])
            if dropout is None:
                change = (up[parts.start : parts.stop] @ down[parts.start : parts.stop]).flatten(0, 1)
                return linear(tokens, weight + self.scale * change, bias)
            added = [linear(linear(dropout.drop(tokens, step, p), down[p]), up[p]) for p in parts]
            return linear(tokens, weight, bias) + self.scale * torch.cat(added, dim=-1)

        return project

    def rows(self, rows: Int[Tensor, "row"], of: int) -> Self:
        if self.dropout is None:
            return self
        return replace(self, dropout=replace(self.dropout, rows=rows, batch=of))

    def is_shared(self, prefix: int) -> bool:
        """Without dropout: it drops other values in each row."""
        del prefix
        return self.dropout is None
