"""What a class by its name alone may take from classes with images, and what it finds."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

NAME_COST = 0.005
"""The largest share of the images of other classes that a class by its name alone may take, on average over
names that the threshold was not set by."""
LEVELS = 20
"""Shares, from `NAME_COST` down to none, that are tried for the names that a threshold is set by."""


@dataclass(frozen=True)
class NameCost:
    """What a class by its name alone does beside others, measured on left-out images.

    Attributes:
        threshold: What is taken from its score (`measure_names`).
        taken: The share of the images of other classes that were right and become the class, by the threshold
            that the other names set.
        found: The share of its own images that become it.
        images: How many images were left out.
        most: The largest share that one of the names takes in the same way.
    """

    threshold: float = 0.0
    taken: float = 0.0
    found: float = 0.0
    images: int = 0
    most: float = 0.0


@dataclass(frozen=True)
class NameMargins:
    """By how much the score of a class by its name is above the best of the classes beside it.

    Attributes:
        others: For left-out images of these that are right without it, those above 0.
        own: For its own images.
        pairs: How many images of others there are.
    """

    others: Float[Tensor, "other"]
    own: Float[Tensor, "own"]
    pairs: int


def measure_names(names: Sequence[NameMargins]) -> NameCost:
    """The least threshold, from 0 on, with which names take at most `NAME_COST` on average, and what each
    takes by the threshold that the other names set, as it will be for a new one. If this is more, the
    threshold is raised until it is not, at most to where none of these names takes anything. What is reported
    stays that of the first threshold: of one that was raised until names took little, it would be too
    little. [ours]
    """
    pairs = sum(name.pairs for name in names)
    if not pairs:
        return NameCost()
    own, margins = (torch.cat([getattr(name, kind) for name in names]) for kind in ("own", "others"))
    number = torch.cat([torch.full_like(name.others, at, dtype=torch.int64) for at, name in enumerate(names)])
    order = margins.argsort(descending=True)
    margins, number = margins[order], number[order]
    places = split_by_name(torch.arange(len(number), device=number.device), number, len(names))
    # How many margins of other names are before each margin of a name.
    before = [ranks - torch.arange(len(ranks), device=ranks.device) for ranks in places]
    threshold, taken_at_first = 0.0, list[int]()
    for level in range(LEVELS, -1, -1):
        share = NAME_COST * level / LEVELS
        threshold, lost = _quantile(margins, share * pairs), list[int]()
        for name, ranks, others in zip(names, places, before, strict=True):
            rank = int(share * (pairs - name.pairs))
            at = rank + int((others <= rank).sum())  # of the margin of that rank among those of others
            of_others = float(margins[at]) if at < len(margins) else 0.0
            lost.append(int((margins[ranks] > of_others).sum()))
        taken_at_first = taken_at_first or lost
        if sum(lost) <= NAME_COST * pairs:
            break
    found = float((own > threshold).double().mean())
    most = max(count / name.pairs for count, name in zip(taken_at_first, names, strict=True) if name.pairs)
    return NameCost(threshold, sum(taken_at_first) / pairs, found, len(own), most)


def split_by_name(
    values: Shaped[Tensor, "value"], names: Int[Tensor, "value"], count: int
) -> Sequence[Shaped[Tensor, "of_name"]]:
    """The values of each of so many names, in their order."""
    parts: Sequence[Tensor] = values[names.argsort(stable=True)].split(
        torch.bincount(names, minlength=count).tolist()
    )
    return parts


def _quantile(descending: Float[Tensor, "margin"], above: float) -> float:
    """The margin that at most this many are above; 0 if there are no more."""
    rank = int(above)
    return float(descending[rank]) if rank < len(descending) else 0.0
