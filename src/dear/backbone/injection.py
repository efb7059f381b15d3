"""Learned tokens that enter the span of a tower, whatever the method."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class ClassTokens:
    """Tokens of each class, in the order of a trunk's prompts. Before layer ``step`` of the span (from 0, but
    not the first) they replace the injected tokens, of which there are as many.
    """

    tokens: Float[Tensor, "class token width"]
    step: int


@dataclass(frozen=True)
class Injection:
    """Learned tokens that enter at the span's first layer and are anchored at each later one: the input of a
    later layer is beta * raw + (1 - beta) * previous output (eq. 5 and 6).

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
        """The number of tokens added to the input."""
        return 0 if self.written else self.tokens.shape[-2]

    def enter(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch longer width"]:
        """``x`` with the raw tokens inserted."""
        return self.put(x, self.raw(x))

    def raw(self, like: Tensor) -> Float[Tensor, "1 token width"]:
        """The raw tokens of the first layer, in the dtype of ``like``."""
        return self._raw(0).to(like.dtype).unsqueeze(0)

    def put(
        self, x: Float[Tensor, "batch token any"], values: Float[Tensor, "1 added any"]
    ) -> Float[Tensor, "batch longer any"]:
        """``x`` with ``values`` at the positions of the injected tokens."""
        replaced = values.shape[1] - self.added
        at = x.shape[1] - replaced if self.at is None else self.at
        before, _, after = x.split([at, replaced, x.shape[1] - at - replaced], dim=1)
        return torch.cat([before, values.expand(x.shape[0], -1, -1), after], dim=1)

    def anchor(self, x: Float[Tensor, "batch token width"], step: int) -> Float[Tensor, "batch token width"]:
        """``x`` with its injected tokens pulled back towards the raw ones, before layer ``step`` (from 0)."""
        count = self.tokens.shape[-2]
        at = x.shape[1] - count if self.at is None else self.at
        if self.of_class is not None and step == self.of_class.step:
            before, _, after = x.split([at, count, x.shape[1] - at - count], dim=1)
            return torch.cat([before, self.of_class.tokens.to(x.dtype), after], dim=1)
        if self.tokens.ndim == 3 and step >= len(self.tokens):
            return x
        raw = self._raw(step).to(x.dtype)
        beta = self.beta[step - 1] if isinstance(self.beta, tuple) else self.beta
        before, previous, after = x.split([at, count, x.shape[1] - at - count], dim=1)
        return torch.cat([before, beta * raw + (1 - beta) * previous, after], dim=1)

    def rows(self, rows: Int[Tensor, "row"]) -> "Injection":
        """The injection for the prompts of these rows."""
        if self.of_class is None:
            return self
        return replace(self, of_class=replace(self.of_class, tokens=self.of_class.tokens[rows]))

    def _raw(self, step: int) -> Float[Tensor, "token width"]:
        return self.tokens if self.tokens.ndim == 2 else self.tokens[step]
