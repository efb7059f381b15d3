"""The titles of data sets tell their rows apart, whatever they are called."""

from typing import Any

import pytest

from dear.errors import DataError
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
        ([("a", "X"), ("b", "X"), ("c", "X (a)")], ["X (a)", "X (b)", "X (a) (c)"]),
        (
            [("a", "X"), ("b", "X"), ("c", "X (a)"), ("d", "X (a) (c)")],
            ["X (a)", "X (b)", "X (a) (c)", "X (a) (c) (d)"],
        ),
        ([("pets", None), ("a", "pets")], ["pets (pets)", "pets (a)"]),
    ],
)
def test_a_title_has_its_name_added_once(data_sets: list[tuple[str, str | None]], titles: list[str]) -> None:
    records = runs(*data_sets)
    assert [data_set_title(run) for run in readable(records)] == titles
    assert [data_set_title(run) for run in checked(checked(records))] == titles


def test_titles_that_no_name_tells_apart() -> None:
    same = runs(("a) (b", "X"), ("c", "X"), ("b", "X (a)"), ("d", "X (a)"))
    with pytest.raises(DataError, match=r"two data sets are both called 'X \(a\) \(b\)'; rename one"):
        readable(same)
