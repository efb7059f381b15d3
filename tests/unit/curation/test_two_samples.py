"""The two-sample test: its level by simulation, what it finds, and its statistic by a slow reference."""

import numpy as np
import pytest
from scipy.stats import binom

from dear.curation import two_samples
from dear.curation.two_samples import compare_samples, compute_kernel


@pytest.mark.parametrize("size", [1, 4])
def test_samples_of_one_distribution_seldom_differ(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of single items or of groups of alike ones: where p counts the observed order, p <= 0.05 has a
    probability of exactly 5% with 39 permutations.
    """
    monkeypatch.setattr(two_samples, "PERMUTATIONS", 39)
    draw, found, draws = np.random.default_rng(4), {"features": 0, "values": 0}, 300
    for _ in range(draws):
        groups = np.arange(24 * size) // size
        rows = draw.normal(size=(24, 5))[groups] + 0.1 * draw.normal(size=(24 * size, 5))
        half = 12 * size
        result = compare_samples(rows[:half], rows[half:], groups.tolist(), {"first": rows[:, 0]}, 1)
        found["features"] += result.p <= 0.05
        found["values"] += result.p_of_values["first"] <= 0.05
    low, high = binom.interval(0.998, draws, 0.05)
    assert all(low <= count <= high for count in found.values())


def test_a_shift_is_found_and_its_items_are_the_furthest() -> None:
    draw = np.random.default_rng(5)
    first, second = draw.normal(size=(40, 6)), draw.normal(size=(40, 6))
    second[:10] += 3
    values = np.concatenate([first, second])[:, 0]
    result = compare_samples(first, second, range(80), {"raised": values, "lowered": 100 - values})
    assert result.p <= 0.01
    assert max(result.p_of_values.values()) < 0.05
    assert {*np.argsort(result.likeness)[:8].tolist()} <= {*range(10)}


def test_the_distance_is_that_of_its_definition() -> None:
    draw = np.random.default_rng(6)
    first, second = draw.normal(size=(5, 3)), draw.normal(size=(7, 3))
    rows = np.concatenate([first, second])
    gaps = [np.sum((one - other) ** 2) for at, one in enumerate(rows) for other in rows[:at]]

    def mean(left: np.ndarray, right: np.ndarray) -> float:
        kernels = [np.exp(-np.sum((a - b) ** 2) / np.median(gaps)) for a in left for b in right]
        return float(np.mean(kernels))

    wanted = mean(first, first) + mean(second, second) - 2 * mean(first, second)
    assert compare_samples(first, second, range(12)).distance == pytest.approx(wanted)
    assert compute_kernel(np.ones((3, 2))).tolist() == np.ones((3, 3)).tolist()
