"""Prompts at the input of the text span: their tokens, stored or computed when they are needed."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.backbone.injection import Injection

GROUP_WORTH = 2**19
"""Padding tokens x width squared above which prompts of one length are computed in a separate group."""


@dataclass
class DeferredTokens:
    """Tokens of prompts that are computed for some prompts at a time: those of 25,000 may take gigabytes.
    Training, which needs all of them in each step, stores them.

    Attributes:
        compute: Returns the tokens of some prompts, cut to a length.
    """

    prompts: int
    length: int
    width: int
    compute: Callable[[Int[Tensor, "row"], int], Float[Tensor, "row shorter width"]]
    stored: Float[Tensor, "class token width"] | None = field(default=None, repr=False)

    def all(self, device: torch.device) -> Float[Tensor, "class token width"]:
        """The tokens of all prompts."""
        if self.stored is not None:
            return self.stored
        tokens = self.compute(torch.arange(self.prompts, device=device), self.length)
        if torch.is_grad_enabled():
            self.stored = tokens
        return tokens

    def of_rows(self, rows: Int[Tensor, "row"]) -> "DeferredTokens":
        """The tokens of some of the prompts."""
        return DeferredTokens(
            len(rows), self.length, self.width, lambda part, stop: self.compute(rows[part], stop)
        )


@dataclass(frozen=True)
class TextTrunk:
    """Prompts at the input of the text span.

    Attributes:
        source: Their tokens, cut at the batch's last end if attention is causal, or what computes them.
        end: The position at which each prompt is read.
        prefix: Number of leading tokens, before any end, that are the same in all prompts and depend on no
            other tokens: 0 without causal attention.
        is_causal: False if a token also depends on those that follow it.
    """

    source: Float[Tensor, "class token width"] | DeferredTokens
    end: Int[Tensor, "class"]
    prefix: int = 0
    is_causal: bool = True

    @property
    def tokens(self) -> Float[Tensor, "class token width"]:
        """All tokens."""
        return self.source.all(self.end.device) if isinstance(self.source, DeferredTokens) else self.source

    @property
    def length(self) -> int:
        """The number of tokens of each prompt."""
        return self.source.length if isinstance(self.source, DeferredTokens) else self.source.shape[1]

    def part(self, rows: Int[Tensor, "row"], start: int, stop: int) -> Float[Tensor, "row part width"]:
        """The tokens of some prompts from position ``start`` to ``stop``."""
        if isinstance(self.source, DeferredTokens) and self.source.stored is None:
            return self.source.compute(rows, stop)[:, start:]
        return self.tokens[:, start:stop].index_select(0, rows)

    def of_rows(self, rows: Int[Tensor, "row"]) -> "TextTrunk":
        """The trunk of some prompts."""
        if isinstance(self.source, DeferredTokens) and not torch.is_grad_enabled():
            return replace(self, source=self.source.of_rows(rows), end=self.end[rows])
        return replace(self, source=self.tokens[rows], end=self.end[rows])

    def has_prefix(self, inject: Injection | None) -> bool:
        """True if all prompts begin with the same tokens, and injected tokens are among them."""
        if inject is None or self.prefix == 0:
            return self.prefix > 0
        last = (inject.at or 0) + (inject.tokens.shape[-2] if inject.written else 0)
        return inject.of_class is None and inject.at is not None and last <= self.prefix

    def groups(self, width: int, chunk: int = 0) -> list[tuple[Int[Tensor, "row"], int]] | None:
        """Groups of prompts that are computed together, each with the length that they are cut to; None for a
        single group of all prompts.

        Prompts with attention in both directions have one length. On a GPU, where launching kernels is
        costly, prompts are not grouped by length. On a CPU a length gets a group of its own if that saves
        enough padding.
        """
        order = self.end.argsort(stable=True)
        if self.end.device.type != "cpu" or not self.is_causal:
            return None if not chunk else [(rows, self.length) for rows in order.split(chunk)]
        lengths, counts = self.end.sort().values.add(1).unique_consecutive(return_counts=True)
        next_lengths = [*lengths.tolist()[1:], None]
        sizes, cut_lengths, size = [], [], 0
        for length, count, longer in zip(lengths.tolist(), counts.tolist(), next_lengths, strict=True):
            size += count
            if longer is None or size * (longer - length) * width**2 >= GROUP_WORTH:
                sizes.append(size)
                cut_lengths.append(length)
                size = 0
        if len(sizes) == 1 and not chunk:
            return None
        return [
            (rows, length)
            for group, length in zip(order.split(sizes), cut_lengths, strict=True)
            for rows in group.split(chunk or len(group))
        ]


def common_prefix(same: Bool[Tensor, "prompt token"], end: Int[Tensor, "prompt"]) -> int:
    """The number of leading tokens, before any prompt's end, that are the same in all prompts."""
    run = same.all(dim=0).long().cumprod(dim=0).sum()
    return int(torch.minimum(run, end.min()))
