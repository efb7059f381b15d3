"""What a classifier gets wrong: counts of confusions, scores by class, and how far its confidence can be
trusted. Numerics alone; `dear.adapters.diagnosis` measures them of a bundle, `answers` of a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class ClassScore:
    """The scores of one class, as fractions.

    Attributes:
        images: How many images it has.
        accuracy: Share of its images that are given the class (recall).
        precision: Share of the images given the class that have it; None if no image is given it.
        f1: Harmonic mean of the two; 0 if no image is given the class.
    """

    name: str
    images: int
    accuracy: float
    precision: float | None
    f1: float


@dataclass(frozen=True)
class Bin:
    """The images whose confidence is above ``low`` and at most ``high``; means are 0 if there are none."""

    low: float
    high: float
    images: int
    confidence: float
    accuracy: float


def confusion(
    labels: Int[Tensor, "item"], guesses: Int[Tensor, "item"], classes: int
) -> Int[Tensor, "class class"]:
    """How many images of each class (rows) are given each class (columns)."""
    pairs = torch.bincount(labels * classes + guesses, minlength=classes**2)
    return pairs.reshape(classes, classes)


def class_scores(counts: Int[Tensor, "class class"], names: Sequence[str]) -> tuple[ClassScore, ...]:
    """The scores of the classes that have images, in the order of the counts."""
    right, images, given = (one.tolist() for one in (counts.diagonal(), counts.sum(dim=1), counts.sum(dim=0)))
    return scores_of(names, images, right, given)


def scores_of(
    names: Sequence[str], images: Sequence[int], right: Sequence[int], given: Sequence[int]
) -> tuple[ClassScore, ...]:
    """The same from the counts of each class: its images, those that are given it rightly, and all images
    that are given it.
    """
    return tuple(
        ClassScore(name, of, hit / of, hit / said if said else None, 2 * hit / (of + said))
        for name, hit, of, said in zip(names, right, images, given, strict=True)
        if of
    )


def most_confident(confidence: Float[Tensor, "item"], hit: Bool[Tensor, "item"], most: int) -> list[int]:
    """The wrong answers with the highest confidence, the highest first."""
    order = torch.where(hit, -1.0, confidence).argsort(descending=True, stable=True)[:most]
    return order[~hit[order]].tolist()


def reliability(confidence: Float[Tensor, "item"], hit: Bool[Tensor, "item"]) -> tuple[Bin, ...]:
    """Accuracy and mean confidence in 15 equal bins of confidence. Source: Guo et al., ICML 2017."""
    found = []
    places = (confidence.double() * BINS).ceil().long().clamp(1, BINS) - 1
    for at in range(BINS):
        inside = places == at
        count = int(inside.sum())
        means = (
            (float(confidence[inside].double().mean()), float(hit[inside].double().mean()))
            if count
            else (0, 0)
        )
        found.append(Bin(at / BINS, (at + 1) / BINS, count, *means))
    return tuple(found)


def expected_error(bins: Sequence[Bin]) -> float:
    """The expected calibration error (fraction): the gaps of the bins, weighted by their images."""
    return sum(one.images * abs(one.accuracy - one.confidence) for one in bins) / sum(
        one.images for one in bins
    )
