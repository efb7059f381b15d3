"""Averages, deviations and harmonic means against values worked out by hand."""

from typing import Any

import pytest

from dear.report.protocols.base_to_novel import Cells, Results, probabilities_grid, results_grid
from dear.report.protocols.retrieval import precision_grid
from tests.helpers.records import record, records

RECORDS = records()


def numbers(records: list[dict[str, Any]], method: str, title: str | None = None) -> Any:
    """Base, novel and HM of a method on a data set, or on average."""
    return [cell and cell.mean for cell in cells(records, method, title)]


def cells(records: list[dict[str, Any]], method: str, title: str | None = None) -> Cells:
    return Results(records).cells(method, title and [title])  # type: ignore[arg-type]


def test_rows_and_average() -> None:
    results = Results(RECORDS)
    assert (results.methods, results.titles) == (["zero-shot", "dear"], ["Tools", "Toys"])
    assert numbers(RECORDS, "dear", "Tools") == pytest.approx([80, 60, 68.5714], abs=1e-4)
    # Base (80 + 40) / 2 = 60, novel (60 + 90) / 2 = 75, their HM 9000 / 135; the mean of HMs would be 61.98.
    assert numbers(RECORDS, "dear") == pytest.approx([60, 75, 66.6667], abs=1e-4)
    labels = [row.label for row in results_grid(results).rows if "chance" not in row.label]
    assert labels == [
        f"{name}: {method}" for name in ("Tools", "Toys", "Average") for method in results.methods
    ]


def test_the_recorded_hm_is_not_trusted() -> None:
    assert all(run["results"]["hm"] == 0.5 for run in RECORDS)
    assert numbers(RECORDS, "zero-shot", "Toys")[2] == pytest.approx(40)


def with_probabilities(run: dict[str, Any], log_loss: float) -> dict[str, Any]:
    parts = {half: {"log_loss": log_loss, "calibration_error": log_loss / 10} for half in ("base", "novel")}
    results = {half: run["results"][half] | numbers for half, numbers in parts.items()}
    return run | {"results": run["results"] | results | {"joint": {"novel": {"auroc": 0.75}}}}


def test_measures_of_probabilities_are_averaged_over_data_sets() -> None:
    """In nats and percent; without a deviation where seeds differ, and none without all data sets."""
    losses = {("tools", 1): 0.4, ("toys", 1): 0.8, ("tools", 2): 1.0, ("toys", 2): 2.0}
    runs = [with_probabilities(record(data, "dear", 0.5, 0.5, seed=seed), loss)
            for (data, seed), loss in losses.items()]  # fmt: skip
    runs += [record(data, "zero-shot", 0.4, 0.4) for data in ("tools", "toys")]
    runs.append(with_probabilities(record("tools", "coop", 0.5, 0.5), 1.0))
    (row,) = probabilities_grid(Results(runs)).rows
    # Seed 1: 0.6, seed 2: 1.5; the mean is 1.05, the deviation 0.9 / sqrt(2).
    assert row.label == "dear"
    expected = [1.05, 1.05, 10.5, 10.5, 75]
    assert [cell and cell.mean for cell in row.cells] == pytest.approx(expected)
    assert row.cells[0] is not None
    assert row.cells[0].spread == pytest.approx(0.6364, abs=1e-4)
    (row,) = probabilities_grid(Results(runs[:3])).rows
    # Tools 0.4 and 1.0, toys 0.8: 0.7 and 0.8 on average.
    assert row.cells[0] is not None
    assert row.cells[0].mean == pytest.approx(0.75)
    assert row.cells[0].spread is None


def test_seeds_give_mean_and_sample_deviation() -> None:
    runs = [record("tools", "dear", base, 0.5, seed=seed) for seed, base in ((1, 0.70), (2, 0.72), (3, 0.74))]
    runs += [record("toys", "dear", base, 0.5, seed=seed) for seed, base in ((1, 0.80), (2, 0.80), (3, 0.86))]
    base, novel, hm = cells(runs, "dear", "Tools")
    assert (base.mean, base.spread, base.seeds) == (pytest.approx(72), pytest.approx(2), 3)
    assert (novel.spread, str(base)) == (0, "72.00 ± 2.00")
    assert hm.mean == pytest.approx(2 * 72 * 50 / 122)
    # The averages by seed are 75, 76, 80: mean 77, deviations -2, -1, 3, variance 14 / 2.
    average = cells(runs, "dear")[0]
    assert (average.mean, average.spread) == (pytest.approx(77), pytest.approx(7**0.5))


def test_a_note_tells_of_deviations_where_there_are_any() -> None:
    runs = [record("tools", "dear", 0.7, 0.5, seed=seed) for seed in (1, 2)]
    for some, told in ((runs, True), (runs[:1], False)):
        (note,) = results_grid(Results(some)).notes
        assert ("deviation" in note) is told


def test_average_of_unequal_seeds_has_no_deviation() -> None:
    runs = [record("tools", "dear", 0.7, 0.5, seed=seed) for seed in (1, 2)]
    base = cells([*runs, record("toys", "dear", 0.8, 0.5)], "dear")[0]
    assert (base.mean, base.spread, base.seeds) == (pytest.approx(75), None, 1)


def test_a_method_that_lacks_a_data_set_has_no_average() -> None:
    assert [row.label for row in results_grid(Results(RECORDS[1:2])).rows] == ["Tools: chance", "Tools: dear"]
    assert numbers(RECORDS[:3], "dear") == numbers(RECORDS[:3], "dear", "Toys") == [None] * 3
    assert numbers(RECORDS[:3], "zero-shot")[0] == pytest.approx(35)


def result(cls: float, shape: float, chance: float) -> dict[str, Any]:
    precision = {"cls": {"color": cls, "shape": shape}, "shape": {"color": 0.25, "shape": 0.75}}
    return {"precision": precision, "chance": {"color": 0.125, "shape": chance}}


def rows(*results: dict[str, Any]) -> dict[str, list[Any]]:
    grid = precision_grid(results)
    return {row.label: [cell and (cell.mean, cell.mark) for cell in row.cells] for row in grid.rows}


def test_a_factor_that_does_not_vary_in_a_task_is_left_out_of_its_mean() -> None:
    """Chance stands below and is never best."""
    assert rows(result(0.5, 0.5, 0.25), result(0.25, 1.0, 1.0)) == {
        "cls": [(37.5, "best"), (50.0, None)],
        "shape": [(25.0, None), (75.0, "best")],
        "(chance)": [(12.5, None), (25.0, None)],
    }


def test_nothing_varies() -> None:
    assert precision_grid([{"precision": {"cls": {"color": 1.0}}, "chance": {"color": 1.0}}]) is None
