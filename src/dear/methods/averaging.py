"""The weighted mean of parameters over epochs, which replaces them: shared by PromptSRC and TAC."""

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def add_epoch(averages: Iterable[tuple[Tensor, Tensor]], weight: float, epoch: int, epochs: int) -> None:
    """Add the values after an epoch, counted from 1, to their averages with a weight: pairs of a parameter
    and its average, a buffer that is saved. The first epoch clears the averages; after the last one they
    replace the parameters.
    """
    for values, average in averages:
        if epoch == 1:
            average.zero_()
        average += weight * values
        if epoch == epochs:
            values.copy_(average)
