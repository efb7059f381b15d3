"""The threshold of a class by its name alone: by hand, by loops, and in simulation."""

import math

import pytest
import torch

from dear.methods.names import NAME_COST, NameCost, NameMargins, measure_names
from tests.unit.methods.slow_names import slow_cost


def margins(others: list[list[float]], pairs: int) -> list[NameMargins]:
    own = torch.tensor([5.0, -1.0]).double()
    return [NameMargins(torch.tensor(taken).double(), own, pairs) for taken in others]


def test_the_threshold_by_hand() -> None:
    """Four names, 100 images of others each: two of 400 are 0.5%. The others' thresholds are 1, above which
    one of their 300 is, or less, and the last name takes as many as it has; three are too many.
    """
    cost = measure_names(margins([[], [1.0], [2.0], [3.0, 2.5]], 100))
    assert cost == NameCost(2.0, 2 / 400, 0.5, 8, 2 / 100)
    cost = measure_names(margins([[], [1.0], [2.0], [3.0, 2.5, 2.2]], 100))
    assert cost == NameCost(3.0, 3 / 400, 0.5, 8, 3 / 100)
    assert measure_names(margins([[], [], [], []], 100)) == NameCost(0.0, 0.0, 0.5, 8)


def test_without_images_of_others_nothing_is_measured() -> None:
    assert measure_names(margins([[], []], 0)) == NameCost()


@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_by_loops(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    count = 2 + seed % 7
    sizes = torch.randint(0, 9, (count,), generator=draw).tolist()
    found = margins([torch.rand(size, generator=draw).mul(seed).tolist() for size in sizes], 200 + 90 * seed)
    cost = measure_names(found)
    assert (cost.threshold, cost.taken) == pytest.approx(
        slow_cost([(name.others.tolist(), name.pairs) for name in found])
    )


def test_the_next_name_takes_no_more_than_is_told() -> None:
    """On average, where some names take much and most take nothing; the next one is drawn as these are."""
    draw, images = torch.Generator().manual_seed(3), 400
    told = taken = most = 0.0

    def draw_name() -> torch.Tensor:
        level = 1.5 * torch.randn(1, generator=draw)
        return torch.randn(images, generator=draw).double() + level - 4

    for _ in range(150):
        names = [draw_name() for _ in range(8)]
        cost = measure_names([NameMargins(each[each > 0], each[:1], images) for each in names])
        told, most = told + cost.taken / 150, most + cost.most / 150
        # Of a new one, a share of N(-4, 1 + 1.5^2) above the threshold.
        taken += math.erfc((cost.threshold + 4) / math.sqrt(2 * 3.25)) / 2 / 150
    assert NAME_COST < taken < 1.1 * told < most
