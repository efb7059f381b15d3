"""Which records may stand in one table, and how their data sets are called there."""

from dataclasses import asdict
from typing import Any

import pytest

from dear.errors import DataError
from dear.methods.registry import METHODS
from dear.report.protocols import tables_of
from dear.report.records import checked, data_set_title, distinct, distinct_by_key, readable
from dear.training.settings import TrainSettings
from tests.unit.report.samples import record, report_html, role_table


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
        ([("pets", None), ("a", "pets")], ["pets (pets)", "pets (a)"]),
    ],
)
def test_a_title_has_its_name_added_once(data_sets: list[tuple[str, str | None]], titles: list[str]) -> None:
    records = runs(*data_sets)
    assert [data_set_title(run) for run in readable(records)] == titles
    assert [data_set_title(run) for run in checked(checked(records))] == titles


def test_a_data_set_called_average_keeps_its_numbers() -> None:
    few = runs(("average", "Average"), ("pets", "Pets"))
    for run, accuracy in zip(few, (0.1, 0.9), strict=True):
        run |= {"protocol": "few-shot", "results": {"all": {"accuracy": accuracy}}}
    (grid,) = tables_of(few)
    percent = {row.label: row.cells[0] and row.cells[0].mean for row in grid.rows}
    assert percent == {"Average (average): dear": 10, "Pets: dear": 90, "Average: dear": 50}


def seeds(part: str, first: Any, second: Any) -> list[dict[str, Any]]:
    """Two seeds of DeAR that differ in a part."""
    return [
        record("tools", "dear", 0.5 + 0.1 * n, 0.5, seed=n) | {part: p} for n, p in ((1, first), (2, second))
    ]


def roles(seed: int = 1, source: str = "discovered", **changes: Any) -> dict[str, Any]:
    """Roles whose first head has changes."""
    table = role_table()
    table["heads"][0] |= changes
    return {"source": source.format(seed), "table": table}


TRAIN, METHOD = asdict(TrainSettings()), asdict(METHODS["dear"].settings())
SHUFFLED = "shuffled (seed {}), from discovered"
OTHER = {"role": "mixed", "attribute": None}


@pytest.mark.parametrize(
    ("part", "first", "second", "message"),
    [
        ("roles", roles(), roles(**OTHER), "role tables .layer 9 head 0"),
        ("roles", roles(), roles(share={"color": 0.6, "shape": 0.4}), "role tables .layer 9 head 0"),
        ("roles", roles(), roles() | {"source": "by hand"}, "role tables"),
        (
            "roles",
            roles(),
            roles(phrases=["red"], concept="Colour", entropy=0.3),
            "",
        ),  # on which no run depends
        ("roles", roles(1, SHUFFLED), roles(2, SHUFFLED, **OTHER), ""),
        ("selection", {"rule": "last"}, {"rule": "val"}, "rules of --select"),
        (
            "settings",
            {"method": METHOD, "train": {}},
            {"method": METHOD | {"tokens": 4}, "train": {}},
            "tokens: 1, 4",
        ),
        ("settings", {"train": TRAIN}, {"train": TRAIN | {"crop": 0.2}}, "crop: 0.5, 0.2"),
        # An older record lacks a setting that was added since: it had its default.
        ("settings", {"method": {}, "train": {}}, {"method": METHOD, "train": TRAIN}, ""),
    ],
)
def test_seeds_of_different_kinds_are_not_averaged(part: str, first: Any, second: Any, message: str) -> None:
    records = seeds(part, first, second)
    if not message:
        assert len(checked(records)) == 2
        return
    with pytest.raises(DataError, match=message):
        checked(records)
    records[1]["variant"] = "another"  # a column of its own
    assert len(checked(records)) == 2


def test_the_page_shows_one_value_of_a_setting_that_an_older_record_lacks() -> None:
    text = report_html(title="t", records=seeds("settings", {"method": {}}, {"method": METHOD}))
    (line,) = [line for line in text.splitlines() if ">tokens<" in line]
    assert ">1<" in line


def test_distinct_values() -> None:
    """Equal are 1 and 1.0, lists, and mappings in any order."""
    values = [1, "1", 1.0, [1, {"a": [2]}], {"a": 1, "b": []}, None, {"b": [], "a": 1.0}, [1.0, {"a": [2]}]]
    assert distinct(values) == [1, "1", [1, {"a": [2]}], {"a": 1, "b": []}, None]
    assert distinct_by_key([{"a": 1, "b": [2]}, {"b": [2], "c": 3}, {"b": [4]}]) == {
        "a": [1, None], "b": [[2], [4]], "c": [3, None],
    }  # fmt: skip
