"""Retrievals averaged by hand, and the table of them."""

from dear.report.protocols.retrieval import averaged, precision_grid


def result(query: str, cls: float, shape: float, chance: float) -> dict:
    precision = {"cls": {"color": cls, "shape": shape}, "shape": {"color": 0.25, "shape": 0.75}}
    return {"queries": [query], "precision": precision, "chance": {"color": 0.125, "shape": chance}}


def test_a_factor_that_does_not_vary_in_a_task_is_left_out_of_its_mean() -> None:
    found = averaged([result("first", 0.5, 0.5, 0.25), result("second", 0.25, 1.0, 1.0)])
    assert found["queries"] == ["first"]
    assert found["runs"] == 2
    assert found["precision"] == {
        "cls": {"color": 0.375, "shape": 0.5},
        "shape": {"color": 0.25, "shape": 0.75},
    }
    assert found["chance"] == {"color": 0.125, "shape": 0.25}


def test_records_without_chance_are_shown_as_they_are() -> None:
    old = {"queries": [], "precision": {"cls": {"color": 0.5}}}
    assert averaged([old]) == old


def test_chance_stands_below_and_is_never_best() -> None:
    shares = {"cls": {"color": 0.3, "shape": 0.25}, "color": {"color": 0.35, "shape": 0.2}}
    grid = precision_grid({"precision": shares, "chance": {"color": 0.4}})
    assert grid is not None
    assert [(row.label, [cell and (str(cell), cell.mark) for cell in row.cells]) for row in grid.rows] == [
        ("cls", [("30.00", None), ("25.00", "best")]),
        ("color", [("35.00", "best"), ("20.00", None)]),
        ("(chance)", [("40.00", None), None]),
    ]
    assert precision_grid({"chance": {"color": 0.4}}) is None
