"""The titles of data sets tell their rows apart, whatever they are called."""

from typing import Any

import pytest

from dear.errors import DataError
from dear.report.protocols import tables_of
from dear.report.records import checked, data_set_title, readable
from tests.unit.report.samples import record


def runs(*data_sets: tuple[str, str | None]) -> list[dict[str, Any]]:
    """A run on each data set, given by name and title."""
    return [
        record(name, "dear", 0.1 * at, 0.5, dataset={"name": name, "identity": name} | titled)
        for at, (name, title) in enumerate(data_sets, start=1)
        for titled in [{} if title is None else {"title": title}]
    ]


@pytest.mark.parametrize(
    ("data_sets", "titles"),
    [
        ([("a", "A"), ("b", "B")], ["A", "B"]),
        ([("average", "Average"), ("a", "A")], ["Average (average)", "A"]),
        ([("Average", None), ("a", "average")], ["Average (Average)", "average"]),
        ([("pets", None), ("a", "pets")], ["pets (pets)", "pets (a)"]),
    ],
)
def test_a_title_has_its_name_added_once(data_sets: list[tuple[str, str | None]], titles: list[str]) -> None:
    records = runs(*data_sets)
    assert [data_set_title(run) for run in readable(records)] == titles
    assert [data_set_title(run) for run in checked(checked(records))] == titles


def test_titles_that_no_name_tells_apart() -> None:
    with pytest.raises(DataError, match=r"'X \(a\)'"):
        readable(runs(("a", "X"), ("b", "X"), ("c", "X (a)")))


def test_a_data_set_called_average_keeps_its_numbers() -> None:
    few = runs(("average", "Average"), ("pets", "Pets"))
    for run, accuracy in zip(few, (0.1, 0.9), strict=True):
        run |= {"protocol": "few-shot", "results": {"all": {"accuracy": accuracy}}}
    (grid,) = tables_of(few)
    percent = {row.label: row.cells[0] and row.cells[0].mean for row in grid.rows}
    assert percent == {"Average (average): dear": 10, "Pets: dear": 90, "Average: dear": 50}
    table = tables_of(runs(("average", "Average"), ("pets", "Pets")))[0]
    assert [row.label for row in table.rows] == ["Average (average): dear", "Pets: dear", "Average: dear"]
