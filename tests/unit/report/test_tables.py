"""Averages, deviations and harmonic means against values worked out by hand."""

import io
from typing import Any

import pytest
from rich.console import Console

from dear.report.protocols.base_to_novel import Cells, Results, results_grid
from tests.unit.report.samples import record


def numbers(records: list[dict[str, Any]], method: str, title: str | None = None) -> Any:
    """Base, novel and HM of a method on a data set, or on average."""
    return [cell and cell.mean for cell in cells(records, method, title)]


def cells(records: list[dict[str, Any]], method: str, title: str | None = None) -> Cells:
    return Results(records).cells(method, title and [title])  # type: ignore[arg-type]


def test_rows_and_average(records: list[dict]) -> None:
    results = Results(records)
    assert (results.methods, results.titles) == (["zero-shot", "dear"], ["Tools", "Toys"])
    assert numbers(records, "dear", "Tools") == pytest.approx([80, 60, 68.5714], abs=1e-4)
    # Base (80 + 40) / 2 = 60, novel (60 + 90) / 2 = 75, their HM 9000 / 135; the mean of HMs would be 61.98.
    assert numbers(records, "dear") == pytest.approx([60, 75, 66.6667], abs=1e-4)
    labels = [row.label for row in results_grid(results).rows if "chance" not in row.label]
    assert labels == [
        f"{name}: {method}" for name in ("Tools", "Toys", "Average") for method in results.methods
    ]


def test_the_recorded_hm_is_not_trusted(records: list[dict]) -> None:
    assert all(run["results"]["hm"] == 0.5 for run in records)
    assert numbers(records, "zero-shot", "Toys")[2] == pytest.approx(40)


def test_seeds_give_mean_and_sample_deviation() -> None:
    runs = [record("tools", "dear", base, 0.5, seed=seed) for seed, base in ((1, 0.70), (2, 0.72), (3, 0.74))]
    runs += [record("toys", "dear", base, 0.5, seed=seed) for seed, base in ((1, 0.80), (2, 0.80), (3, 0.86))]
    base, novel, hm = cells(runs, "dear", "Tools")
    assert base
    assert novel
    assert hm
    assert (base.mean, base.spread, base.seeds) == (pytest.approx(72), pytest.approx(2), 3)
    assert (novel.spread, str(base)) == (0, "72.00 ± 2.00")
    assert hm.mean == pytest.approx(2 * 72 * 50 / 122)
    # The averages by seed are 75, 76, 80: mean 77, deviations -2, -1, 3, variance 14 / 2.
    average = cells(runs, "dear")[0]
    assert average
    assert (average.mean, average.spread) == (pytest.approx(77), pytest.approx(7**0.5))


def test_average_of_unequal_seeds_has_no_deviation() -> None:
    runs = [record("tools", "dear", 0.7, 0.5, seed=seed) for seed in (1, 2)]
    base = cells([*runs, record("toys", "dear", 0.8, 0.5)], "dear")[0]
    assert base
    assert (base.mean, base.spread, base.seeds) == (pytest.approx(75), None, 1)


def test_a_method_that_lacks_a_data_set_has_no_average(records: list[dict]) -> None:
    assert [row.label for row in results_grid(Results(records[1:2])).rows] == ["Tools: chance", "Tools: dear"]
    assert numbers(records[:3], "dear") == numbers(records[:3], "dear", "Toys") == [None] * 3
    assert numbers(records[:3], "zero-shot")[0] == pytest.approx(35)


def test_render_prints_every_number(records: list[dict]) -> None:
    records[1]["dataset"]["title"] = records[0]["dataset"]["title"] = "[red]Tools"
    console = Console(width=120, record=True, file=io.StringIO())
    results_grid(Results(records)).render(console)
    text = console.export_text()
    assert "66.67" in text
    assert "[red]Tools" in text
