"""Low-rank updates of the queries, keys and values of a tower's layers, whatever the method."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear


@dataclass(frozen=True)
class UpdateDropout:
    """Dropout on the input of the updates in a training step; the frozen weights take the tokens unchanged.
    What is dropped depends on the seeds and the positions alone, so that a layer that is computed again for
    its gradients drops the same values.

    Attributes:
        rate: Share of the values that are dropped; the others are divided by 1 - rate.
        seeds: For each layer of the span, a seed for each of queries, keys and values.
        batch: Number of rows of the whole batch, of which only ``rows`` are computed; all if None.
    """

    rate: float
    seeds: Sequence[Sequence[int]]
    batch: int = 0
    rows: Int[Tensor, "row"] | None = None

    def drop(
        self, tokens: Float[Tensor, "row token width"], layer: int, part: int
    ) -> Float[Tensor, "row token width"]:
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
class LowRank:
    """Updates of all layers of a span: each of the weights W of queries, keys and values becomes
    W + scale * up @ down. With ``dropout``, scale * up @ down is applied to tokens with values dropped.

    Source: LoRA (arXiv 2106.09685).
    """

    down: Float[Tensor, "layer 3 rank width"]
    up: Float[Tensor, "layer 3 width rank"]
    scale: float
    dropout: UpdateDropout | None = None

    def at(self, step: int) -> "LayerUpdate":
        """The update of layer ``step`` of the span, from 0."""
        return LayerUpdate(self, step)

    def of_rows(self, rows: Int[Tensor, "row"], batch: int) -> "LowRank":
        """The updates for these rows of a batch of ``batch`` rows."""
        if self.dropout is None:
            return self
        return replace(self, dropout=replace(self.dropout, rows=rows, batch=batch))


@dataclass(frozen=True)
class LayerUpdate:
    """The updates of one layer of a span, counted from 0."""

    updates: LowRank
    layer: int

    def project(
        self,
        tokens: Float[Tensor, "batch token width"],
        weight: Float[Tensor, "outputs width"],
        bias: Float[Tensor, "outputs"],
        first: int,
    ) -> Float[Tensor, "batch token outputs"]:
        """The updated projection of normalized tokens. ``weight`` and ``bias`` are of consecutive parts, the
        first of which is ``first``: 0 for queries, 1 for keys, 2 for values.
        """
        scale, dropout = self.updates.scale, self.updates.dropout
        parts = range(first, first + len(weight) // tokens.shape[-1])
        down, up = (weights[self.layer] for weights in (self.updates.down, self.updates.up))
        if dropout is None:
            change = (up[parts.start : parts.stop] @ down[parts.start : parts.stop]).flatten(0, 1)
            return linear(tokens, weight + scale * change, bias)
        added = [linear(linear(dropout.drop(tokens, self.layer, p), down[p]), up[p]) for p in parts]
        return linear(tokens, weight, bias) + scale * torch.cat(added, dim=-1)
