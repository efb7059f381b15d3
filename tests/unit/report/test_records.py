"""Which records may stand in one table, and how their data sets are called there."""

from dataclasses import asdict
from itertools import combinations
from typing import Any

import pytest

from dear.errors import DataError
from dear.methods.registry import METHODS
from dear.report.protocols import tables_of
from dear.report.records import checked, data_set_title, deviations_of, distinct, distinct_by_key, readable
from dear.report.report_page import report_page
from dear.training.settings import TrainSettings
from tests.helpers.errors import refuses
from tests.helpers.records import record, records, report_html, role_table


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
    made = runs(*data_sets)
    assert [data_set_title(run) for run in readable(made)] == titles
    assert [data_set_title(run) for run in checked(checked(made))] == titles


def test_a_data_set_called_average_keeps_its_numbers() -> None:
    few = runs(("average", "Average"), ("pets", "Pets"))
    for run, accuracy in zip(few, (0.1, 0.9), strict=True):
        run |= {"protocol": "few-shot", "results": {"all": {"accuracy": accuracy}}}
    (grid,) = tables_of(few)
    percent = {row.label: row.cells[0] and row.cells[0].mean for row in grid.rows}
    assert percent == {"Average (average): dear": 10, "Pets: dear": 90, "Average: dear": 50}


def roles(seed: int = 1, source: str = "discovered", **changes: Any) -> dict[str, Any]:
    """Roles whose first head has changes."""
    table = role_table()
    table["heads"][0] |= changes
    return {"source": source.format(seed), "table": table}


def teacher(loss: float, sha256: str = "ab" * 32) -> dict[str, Any]:
    """The path of a teacher's weights is the same, the file may be another; its epochs are of each run."""
    weights = {"model": "tiny", "pretrained": "w.pt", "sha256": sha256}
    return {"method": "promptsrc", "weights": weights, "train": {"epochs": [{"loss": loss}]}}


TRAIN, METHOD = asdict(TrainSettings()), asdict(METHODS["dear"].settings())
SHUFFLED = "shuffled (seed {}), from discovered"
OTHER = {"role": "mixed", "attribute": None}


@pytest.mark.parametrize(
    ("part", "first", "second", "key"),
    [
        ("roles", roles(), roles(**OTHER), r"role tables .layer 9 head 0: core \w+.*, mixed"),
        ("roles", roles(), roles(share={"color": 0.6, "shape": 0.4}), "role tables .layer 9 head 0"),
        ("roles", roles(), roles() | {"source": "by hand"}, "role tables"),
        ("roles", roles(), roles(phrases=["red"], concept="Color", entropy=0.3), ""),  # no run depends on it
        ("roles", roles(1, SHUFFLED), roles(2, SHUFFLED, **OTHER), ""),
        ("selection", {"rule": "last"}, {"rule": "val"}, "--select"),
        ("settings", {"method": METHOD}, {"method": METHOD | {"tokens": 4}}, "tokens: 1, 4"),
        ("settings", {"train": TRAIN}, {"train": TRAIN | {"crop": 0.2}}, "crop: 0.5, 0.2"),
        # An older record lacks a setting that was added since: it had its default.
        ("settings", {"method": {}, "train": {}}, {"method": METHOD, "train": TRAIN}, ""),
        ("teacher", teacher(0.5), teacher(0.7), ""),
        ("teacher", teacher(0.5), teacher(0.5, "cd" * 32), "dear on tools mix different teachers"),
        ("teacher", teacher(0.5), None, "teachers"),
    ],
)
def test_seeds_of_different_kinds_are_not_averaged(part: str, first: Any, second: Any, key: str) -> None:
    seeds = [record("tools", "dear", 0.5, 0.5, seed=n) | {part: p} for n, p in ((1, first), (2, second))]
    if key:
        with pytest.raises(DataError, match=key) as refused:
            checked(seeds)
        # A label is the way out where an entry of a recipe can have what differs.
        assert ("label" in str(refused.value)) == key.startswith(("role", "tokens", "dear on", "teachers"))
        seeds[1]["variant"] = "another"  # a column of its own
    assert len(checked(seeds)) == 2


def test_records_of_two_versions_of_a_methods_code_are_told_by_their_files() -> None:
    versions = (("old", "12345678aa"), ("old", "23456789aa"), ("new", "3456789aaa"))
    records = [
        record("tools", "mine:Shift", 0.5, 0.5, seed=seed) | {"source": source, "key": key}
        for seed, (source, key) in enumerate(versions)
    ]
    with pytest.raises(DataError, match=r"of mine:Shift .* 12345678, 23456789 and 3456789a:"):
        checked(records)
    assert len(checked(records[:2])) == 2


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"weights": {"sha256": "cd" * 32}}, "weights"),
        ({"schema": 3}, "schema 3"),
        ({"protocol": "few-shot"}, "few-shot"),
        ({"shots": 4}, "shots"),
        ({"dataset": {"name": "tools", "identity": "other"}}, "data"),
        ({"results": {"novel": {"accuracy": 0.5}}}, r"results\.base"),
        ({"results": {"base": {"accuracy": 83.1}, "novel": {"accuracy": 0.5}}}, "base accuracy"),
        ({"seed": 1}, "two records of one run"),
    ],
)
def test_records_that_do_not_belong_are_refused(change: dict[str, Any], key: str) -> None:
    with pytest.raises(DataError, match=key):
        checked([*records(), record("tools", "dear", 0.5, 0.5, **({"seed": 2} | change))])


def test_a_copy_is_counted_once_and_no_run_is_refused() -> None:
    assert len(checked([*records(), records()[0]])) == len(records())
    refuses(DataError, "no run record", checked, [])


def test_the_page_shows_one_value_of_a_setting_that_an_older_record_lacks() -> None:
    settings = {"method": {}}, {"method": METHOD}
    seeds = [record("tools", "dear", 0.5, 0.5, seed=n, settings=of) for n, of in enumerate(settings)]
    (line,) = [line for line in report_html(title="t", records=seeds).splitlines() if ">tokens<" in line]
    assert ">1<" in line


def test_distinct_values() -> None:
    """Equal are 1 and 1.0, lists, and mappings in any order."""
    values = [1, "1", 1.0, [1, {"a": [2]}], {"a": 1, "b": []}, None, {"b": [], "a": 1.0}, [1.0, {"a": [2]}]]
    assert distinct(values) == [1, "1", [1, {"a": [2]}], {"a": 1, "b": []}, None]
    assert distinct_by_key([{"a": 1, "b": [2]}, {"b": [2], "c": 3}, {"b": [4]}]) == {
        "a": [1, None], "b": [[2], [4]], "c": [3, None],
    }  # fmt: skip


SETUPS = [
    ("promptsrc", None), ("dear", None), ("dear", "baseline"), ("dear", "shuffled"), ("dear", "all-mixed"),
    ("dear", "eq9"), ("dear", "CE"), ("dear+", "shuffled"),
]  # fmt: skip
"""Rows of ablations, with and without the row that they are compared with, and what is called like one."""


def run_of(protocol: str, number: int, data: str = "tools") -> dict[str, Any]:
    """A run of a setup with a base accuracy, or whatever the protocol measures, that no other has."""
    method, variant = SETUPS[number]
    share = round(0.101 + 0.037 * number + 0.4 * (data == "toys"), 3)
    results: dict[str, Any] = {
        "base-to-novel": {
            "base": {"accuracy": share, "decoupled": share},
            "novel": {"accuracy": 0.5, "decoupled": 0.5},
            "hm": 0.5,
        },
        "few-shot": {"all": {"accuracy": share, "decoupled": share}},
        "cross-dataset": {
            "source": {"accuracy": share, "decoupled": share},
            "targets": {"toys": {"accuracy": 0.5, "decoupled": 0.5}},
        },
        "retrieval": {"precision": {"cls": {"color": share}}, "chance": {"color": 0.05}},
    }
    toys = {"name": "toys", "title": "Toys", "identity": "toys"}
    made = record(data, method, 0, 0, variant=variant, protocol=protocol, results=results[protocol])
    return made | {"targets": [toys] if protocol == "cross-dataset" else [], "share": share}


def missing(runs: list[dict[str, Any]]) -> list[str]:
    """Runs whose number is in no table."""
    printed = {
        cell.value for grid in tables_of(runs) for row in grid.rows for cell in row.cells if cell is not None
    }
    return [run["key"] for run in runs if f"{100 * run['share']:.2f}" not in printed]


def test_every_run_is_in_a_table() -> None:
    for subset in (*combinations(range(len(SETUPS)), 2), range(len(SETUPS))):
        assert missing([run_of("base-to-novel", number) for number in subset]) == []
    for name in ("few-shot", "cross-dataset", "retrieval"):
        assert missing([run_of(name, number) for number in range(len(SETUPS))]) == []
    # A row of an ablation that was run on more data than the row it is compared with:
    runs = [run_of("base-to-novel", number) for number in (1, 3)]
    assert missing([*runs, run_of("base-to-novel", 3, "toys")]) == []


def test_every_table_says_which_settings_are_not_the_authors() -> None:
    changes = {"method": {}, "train": {"epochs": 5}}
    for name in ("base-to-novel", "few-shot", "cross-dataset"):
        runs = [run_of(name, 0) | {"overrides": changes}, run_of(name, 1)]
        for grid in tables_of(runs):
            (note,) = [note for note in grid.notes if note.startswith("Not with the settings")]
            assert note == "Not with the settings of their authors: promptsrc (epochs 5)."
        assert "Not with" not in " ".join(tables_of([run_of(name, 1)])[0].notes)


def test_only_settings_that_differ_from_the_authors_are_deviations() -> None:
    run = run_of("base-to-novel", 0)
    authors = asdict(METHODS["promptsrc"].settings())
    published = TrainSettings(**METHODS["promptsrc"].settings.training)
    same = {"method": {"text_tokens": authors["text_tokens"]}, "train": {"epochs": published.epochs}}
    assert deviations_of(run | {"overrides": same}) == {}
    other = {"method": {"text_tokens": authors["text_tokens"] + 1}, "train": {"epochs": published.epochs + 1}}
    both = {"text_tokens": authors["text_tokens"] + 1, "epochs": published.epochs + 1}
    assert deviations_of(run | {"overrides": other}) == both
    closed_form = run | {"overrides": {"method": {}, "train": {"epochs": 1, "crop": 0.3}}, "train": {}}
    assert deviations_of(closed_form) == {"crop": 0.3}
    # The label of a variant tells its settings, but not its training.
    assert deviations_of(run | {"overrides": other, "variant": "more tokens"}) == {"epochs": both["epochs"]}


def test_a_method_of_others_is_called_by_its_title() -> None:
    """In tables and LaTeX, and in options of the report; its path is told where another has the title too."""
    gated = record("tools", "gated:Gated", 0.6, 0.6, title="Gated CoOp", roles=None, fusion_weights=None)
    runs = [record("tools", "coop", 0.5, 0.5), gated]
    for name in ("gated:Gated", "Gated CoOp"):
        page = report_page(title="t", records=runs, against=name, main=name)
        (against,) = [grid for grid in page.tables if grid.name == "base-to-novel-against"]
        assert [row.label for row in against.rows] == ["coop − Gated CoOp"]
        assert "Tools: Gated CoOp & " in page.tables[0].to_latex()
    twin = record("tools", "other:Gated", 0.7, 0.7, title="Gated CoOp", roles=None, fusion_weights=None)
    labels = [row.label for row in report_page(title="t", records=[*runs, twin]).tables[0].rows]
    assert {"Tools: gated:Gated", "Tools: other:Gated"} < {*labels}
    as_coop = [runs[0], {**gated, "title": "coop"}]
    labels = [row.label for row in report_page(title="t", records=as_coop).tables[0].rows]
    assert {"Tools: coop", "Tools: gated:Gated"} < {*labels}


def test_settings_of_steps_part_no_records_of_methods_without_steps() -> None:
    """Also of records that hold all settings."""
    made = records_of_training([{"epochs": 5}, {"epochs": 9}], epochs=[])
    assert len(checked(made)) == 2
    with pytest.raises(DataError, match="mix different training"):
        checked(records_of_training([{"crop": 0.5}, {"crop": 0.9}], epochs=[]))
    with pytest.raises(DataError, match="mix different training"):
        checked(records_of_training([{"epochs": 5}, {"epochs": 9}], epochs=[{"epoch": 1}]))


def records_of_training(settings: list[dict[str, Any]], epochs: list[Any]) -> list[dict[str, Any]]:
    """A record of the linear probe for each seed, with other settings of training."""
    return [
        record("pets", "linear-probe", 0.5, 0.5, seed=seed)
        | {"settings": {"train": TRAIN | changed, "method": {}}, "train": {"epochs": epochs}}
        for seed, changed in enumerate(settings, start=1)
    ]
