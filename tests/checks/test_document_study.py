"""The study's tables from made records, by hand."""

from typing import Any

import pytest

from dear.data.world.tasks import downstream_names
from tests.unit.report.samples import record
from tools.document_study import by_task, gap, mean_of, methods_table, variants_table

TASKS = downstream_names()


def runs(method: str, base: float, novel: float, **more: Any) -> list[dict[str, Any]]:
    """A run on each task; on the four unseen tasks novel is 0.1 higher."""
    unseen = downstream_names("unseen")
    return [record(task, method, base, novel + 0.1 * (task in unseen), **more) for task in TASKS]


def test_means_and_gaps_by_hand() -> None:
    halves = {"a": (60.0, 80.0), "b": (80.0, 60.0)}
    assert mean_of(halves, ["a", "b"]) == (70, 70, 70)
    assert mean_of(halves, ["a"])[2] == pytest.approx(2 * 60 * 80 / 140)
    # Differences of HM: 10 and 20; standard deviation 7.07, t of one degree of freedom 12.706.
    other = {"a": (50.0, 50.0), "b": (50.0, 50.0)}
    more = {"a": (60.0, 60.0), "b": (70.0, 70.0)}
    assert gap(more, other, ["a", "b"]) == "+15.00 ± 63.53"
    assert gap(more, other, ["a"]) == "+10.00"


def test_seeds_are_averaged() -> None:
    both = [record("a", "coop", 0.5, 0.6, seed=1), record("a", "coop", 0.7, 0.8, seed=2)]
    assert by_task(both)["a"] == pytest.approx((60, 70))


def test_methods_are_in_the_order_of_their_hm_and_incomplete_ones_left_out() -> None:
    found = [*runs("coop", 0.9, 0.6), *runs("zero-shot", 0.6, 0.6), record("mixed-paints", "maple", 0.9, 0.9)]
    lines = methods_table(found).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| zero-shot", "| coop"]
    # base 60; novel 60 and 70 on four of twelve: HM 60 on the calibrated, 64.62 on the unseen, 61.62 on all.
    assert lines[2].startswith("| zero-shot | 60.00 | 63.33 | 61.62 | 60.00 | 64.62 |  | 1 |")


def test_variants_are_compared_on_their_seeds() -> None:
    default = [*runs("dear", 0.6, 0.6), *runs("dear", 0.9, 0.9, seed=2)]
    for run in default:
        run["results"]["base"]["decoupled"] = run["results"]["novel"]["decoupled"] = 0.5
    lines = variants_table(default, runs("dear", 0.6, 0.6, variant="batch 4")).splitlines()
    assert lines[2] == "| batch 4 | 60.00 | 63.33 | 61.62 | +0.00 ± 0.00 | +0.00 ± 0.00 |"
    assert lines[3].startswith("| default | 60.00 | 63.33 | 61.62 |")
    assert lines[4].startswith("| default, class feature alone | 50.00 | 50.00 | 50.00 | -11.5")
