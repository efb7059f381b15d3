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


def test_no_published_average_stands_beside_a_data_set_of_its_name() -> None:
    names = ("average", "DTD")
    run = record("tools", "dear", 0.5, 0.5, protocol="cross-dataset")
    run["targets"] = [{"name": name, "title": name, "identity": name} for name in names]
    scores = {"accuracy": 0.5, "decoupled": 0.5}
    run["results"] = {"source": scores, "targets": dict.fromkeys(names, scores)}
    (transfer,) = tables_of([run])
    printed = [row for row in transfer.rows if row.published]
    assert printed
    assert all(row.cells[1:3] == (None, None) and row.cells[3] for row in printed)
    run = record("Average", "dear", 0.5, 0.5)
    run["weights"] |= {"model": "ViT-B-16", "pretrained": "openai"}
    assert "base-to-novel-published" not in {grid.name for grid in tables_of([run])}
