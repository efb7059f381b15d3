"""Retrievals averaged by hand in their table."""

from typing import Any

from dear.report.protocols.retrieval import precision_grid


def result(cls: float, shape: float, chance: float) -> dict[str, Any]:
    precision = {"cls": {"color": cls, "shape": shape}, "shape": {"color": 0.25, "shape": 0.75}}
    return {"precision": precision, "chance": {"color": 0.125, "shape": chance}}


def rows(*results: dict[str, Any]) -> dict[str, list[Any]]:
    grid = precision_grid(results)
    assert grid is not None
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
