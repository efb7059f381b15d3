"""A two-sample test by permutation: whether features of images are of one distribution."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

PERMUTATIONS = 999
MOST = 2000
"""Images of each sample that are compared; of more, as many are drawn."""
AT_ONCE = 100  # permutations whose kernel sums are computed together


@dataclass(frozen=True)
class TwoSamples:
    """The outcome of `compare_samples`.

    Attributes:
        distance: The squared maximum mean discrepancy of the features.
        p: The p-value of that the samples are of one distribution.
        p_of_values: The same for the means of further values, each by itself, by name.
        likeness: How like the first sample each item of the second is: its mean kernel with it.
    """

    distance: float
    p: float
    p_of_values: dict[str, float]
    likeness: Float[np.ndarray, "second"]


def compare_samples(
    first: Float[np.ndarray, "first embed"],
    second: Float[np.ndarray, "second embed"],
    groups: Sequence[Any],
    values: dict[str, Float[np.ndarray, "item"]] | None = None,
    seed: int = 1,
) -> TwoSamples:
    """Test by permutation whether two samples of features, and of further ``values`` of the same items, are
    of one distribution. The statistic is the maximum mean discrepancy with a Gaussian kernel, whose width is
    the median distance; of values it is the difference of the means. Items of a group, named by ``groups``
    for the first sample and then for the second, change sides together: where groups of both samples come in
    any order, the p-value is at most a level with at most that probability.

    Source: Gretton et al., JMLR 13 (2012); for a p-value that counts the observed order, Phipson and Smyth,
    Statistical Applications in Genetics and Molecular Biology 9 (2010).
    """
    rows = np.concatenate([first, second]).astype(float)
    is_second = np.arange(len(rows)) >= len(first)
    sides = np.array([f"{side} {group}" for side, group in zip(is_second, groups, strict=True)])
    numbers = np.unique(sides, return_inverse=True)[1].reshape(-1)
    kernel = compute_kernel(rows)
    draw = np.random.default_rng(seed)
    labels = [is_second, *(permute_groups(is_second, numbers, draw) for _ in range(PERMUTATIONS))]
    statistics = {"": np.concatenate([_discrepancies(kernel, labels[at : at + AT_ONCE])
                                      for at in range(0, len(labels), AT_ONCE)])}  # fmt: skip
    for name, of_items in (values or {}).items():
        statistics[name] = np.array([abs(of_items[side].mean() - of_items[~side].mean()) for side in labels])
    p_values = {
        name: float((of_labels >= of_labels[0] * (1 - 1e-9)).mean()) for name, of_labels in statistics.items()
    }
    likeness = kernel[is_second][:, ~is_second].mean(axis=1)
    return TwoSamples(float(statistics[""][0]), p_values.pop(""), p_values, likeness)


def compute_kernel(rows: Float[np.ndarray, "item embed"]) -> Float[np.ndarray, "item item"]:
    """The Gaussian kernel of rows, whose width is the median of their distances."""
    squares = np.square(rows).sum(axis=1)
    distances = np.maximum(0, squares[:, None] + squares - 2 * rows @ rows.T)
    others = distances[np.triu_indices(len(rows), 1)]
    width = float(np.median(others)) if len(others) else 0.0
    return np.asarray(np.exp(-distances / (width or 1.0)))


def permute_groups(
    is_second: Bool[np.ndarray, "item"], numbers: Int[np.ndarray, "item"], draw: np.random.Generator
) -> Bool[np.ndarray, "item"]:
    """The items of the second sample, if as many groups as it has are drawn from all."""
    of_second = len(np.unique(numbers[is_second]))
    chosen = draw.permutation(int(numbers.max()) + 1)[:of_second]
    return np.isin(numbers, chosen)


def _discrepancies(
    kernel: Float[np.ndarray, "item item"], labels: Sequence[Bool[np.ndarray, "item"]]
) -> Float[np.ndarray, "labels"]:
    """The squared maximum mean discrepancy for several ways of dividing items."""
    weights = np.stack([side / side.sum() - ~side / (~side).sum() for side in labels], axis=1)
    return np.asarray(np.einsum("ij,ij->j", weights, kernel @ weights))
