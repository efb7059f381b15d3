"""Averages, deviations and harmonic means against values worked out by hand."""

import io

import pytest
from rich.console import Console

from dear.errors import DataError
from dear.report.base_to_novel import base_to_novel_table
from tests.unit.report.samples import record


def test_rows_and_average(records: list[dict]) -> None:
    table = base_to_novel_table(records)
    assert table.methods == ("zero-shot", "dear")
    assert [row.title for row in table.rows] == ["Tools", "Toys"]
    tools = table.entry("dear", "Tools")
    assert tools is not None
    assert [tools[m].mean for m in ("base", "novel", "hm")] == pytest.approx([80, 60, 68.5714], abs=1e-4)
    average = table.entry("dear")
    assert average is not None
    # Base (80 + 40) / 2 = 60, novel (60 + 90) / 2 = 75, their HM 9000 / 135; the mean of HMs would be 61.98.
    assert [average[m].mean for m in ("base", "novel", "hm")] == pytest.approx([60, 75, 66.6667], abs=1e-4)
    mean_of_hms = (9600 / 140 + 7200 / 130) / 2
    assert abs(average["hm"].mean - mean_of_hms) > 4


def test_the_recorded_hm_is_not_trusted(records: list[dict]) -> None:
    assert all(run["results"]["hm"] == 0.5 for run in records)
    entry = base_to_novel_table(records).entry("zero-shot", "Toys")
    assert entry is not None
    assert entry["hm"].mean == pytest.approx(40)


def test_seeds_give_mean_and_sample_deviation() -> None:
    runs = [record("tools", "dear", base, 0.5, seed=seed) for seed, base in ((1, 0.70), (2, 0.72), (3, 0.74))]
    runs += [record("toys", "dear", base, 0.5, seed=seed) for seed, base in ((1, 0.80), (2, 0.80), (3, 0.86))]
    table = base_to_novel_table(runs)
    entry, average = table.entry("dear", "Tools"), table.entry("dear")
    assert entry is not None
    assert average is not None
    assert entry["base"].mean == pytest.approx(72)
    assert entry["base"].spread == pytest.approx(2)
    assert entry["base"].seeds == 3
    assert entry["novel"].spread == 0
    assert entry["hm"].mean == pytest.approx(2 * 72 * 50 / 122)
    # The averages by seed are 75, 76, 80: mean 77, deviations -2, -1, 3, variance 14 / 2.
    assert average["base"].mean == pytest.approx(77)
    assert average["base"].spread == pytest.approx(7**0.5)
    assert str(entry["base"]) == "72.00 ± 2.00"


def test_average_of_unequal_seeds_has_no_deviation() -> None:
    runs = [record("tools", "dear", 0.7, 0.5, seed=seed) for seed in (1, 2)] + [
        record("toys", "dear", 0.8, 0.5)
    ]
    average = base_to_novel_table(runs).entry("dear")
    assert average is not None
    assert average["base"].mean == pytest.approx(75)
    assert average["base"].spread is None


def test_a_method_that_lacks_a_data_set_has_no_average(records: list[dict]) -> None:
    table = base_to_novel_table(records[:3])
    assert table.entry("dear") is None
    assert table.entry("dear", "Toys") is None


def test_best_is_marked_ties_too_and_alone_is_not_best(records: list[dict]) -> None:
    def best(runs: list[dict], title: str = "Tools") -> dict[str, dict[str, bool]]:
        table = base_to_novel_table(runs)
        found = {method: table.entry(method, title) for method in table.methods}
        return {method: {m: one[m].mark == "best" for m in one} for method, one in found.items() if one}

    alone = dict.fromkeys(("base", "novel", "hm"), True)
    none = dict.fromkeys(alone, False)
    assert best(records) == {"zero-shot": none, "dear": alone}
    assert best(records[1::2]) == {"dear": none}
    tied = [record("tools", "dear", 0.8, 0.6), record("tools", "coop", 0.8, 0.5)]
    assert [one["base"] for one in best(tied).values()] == [True, True]


def test_variants_are_columns_of_their_own() -> None:
    runs = [record("tools", "dear", 0.8, 0.6), record("tools", "dear", 0.7, 0.5, variant="all-mixed")]
    assert base_to_novel_table(runs).methods == ("dear", "dear (all-mixed)")


def test_render_prints_every_number(records: list[dict]) -> None:
    records[1]["dataset"]["title"] = records[0]["dataset"]["title"] = "[red]Tools"
    console = Console(width=120, record=True, file=io.StringIO())
    base_to_novel_table(records).render(console)
    text = console.export_text()
    assert "66.67" in text
    assert "[red]Tools" in text


def test_mixed_weights_are_refused(records: list[dict]) -> None:
    records[2]["weights"] = records[2]["weights"] | {"sha256": "cd" * 32}
    with pytest.raises(DataError, match="mix different weights"):
        base_to_novel_table(records)


@pytest.mark.parametrize("change", [{"sha256": "cd" * 32}, {}])
def test_seeds_with_other_teachers_are_refused(change: dict) -> None:
    """The path of a teacher's weights is the same, and the file another; their epochs are of each run."""
    runs = [record("tools", "promptkd", 0.7, 0.5, seed=seed) for seed in (1, 2)]
    for seed, run in enumerate(runs):
        weights = {"model": "tiny", "pretrained": "w.pt", "sha256": "ab" * 32}
        run["teacher"] = {"method": "promptsrc", "weights": weights, "train": {"epochs": [{"loss": seed}]}}
    base_to_novel_table(runs)
    runs[1]["teacher"] = runs[1]["teacher"] | {"weights": weights | change} if change else None
    with pytest.raises(DataError, match="promptkd mix different teachers"):
        base_to_novel_table(runs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 3}, "schema 3"),
        ({"protocol": "few-shot"}, "few-shot"),
        ({"shots": 4}, "numbers of shots"),
        ({"dataset": {"name": "tools", "identity": "other"}}, "different data"),
        ({"results": {"novel": {"accuracy": 0.5}}}, r"lacks 'results\.base'"),
        ({"results": {"base": {"accuracy": 83.1}, "novel": {"accuracy": 0.5}}}, "base accuracy"),
    ],
)
def test_records_that_do_not_belong_are_refused(records: list[dict], change: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        base_to_novel_table([*records, record("tools", "dear", 0.5, 0.5, seed=2, **change)])


def test_a_run_twice_and_no_run_are_refused(records: list[dict]) -> None:
    with pytest.raises(DataError, match="two records of one run"):
        base_to_novel_table([*records, records[0] | {"key": "another"}])
    assert base_to_novel_table([*records, records[0]]) == base_to_novel_table(
        records
    )  # copied to two folders
    with pytest.raises(DataError, match="no run record"):
        base_to_novel_table([])
