"""The stored measurements: what a record becomes, and the tables that are made of them."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from dear.data.world.tasks import downstream_names
from dear.report.records import UNLABELLED
from tests.unit.report.samples import record
from tools.document import with_table
from tools.measurements import (
    FIGURE,
    FILE,
    Measurement,
    Results,
    figure,
    generated,
    main_table,
    read_measurements,
    write_measurements,
)
from tools.results_figure import Estimate, Row, results_figure

ROOT = Path(__file__).parents[2]


def measured(data: str, method: str, seed: int, base: float, novel: float) -> Measurement:
    joint = {"decoupled": 0.5, "zero_shot_for_new": 0.25}
    run = record(data, method, base, novel, seed=seed)
    run["results"]["joint"] = {half: {"accuracy": 0.125} | joint for half in ("base", "novel")}
    run["settings"] = {"train": {"batch": 4}}
    run["fewshot"] = {"indices": [*range(9)]}
    run["environment"] = {"code": "0123456789ab"}
    return Measurement.of(run)


def test_what_a_record_becomes(tmp_path: Path) -> None:
    run = measured("toys", "dear", 1, 0.8, 0.6)
    assert (run.base, run.novel, run.joint_base, run.joint_novel_alone) == (80, 60, 12.5, 50)
    assert run.joint_base_switched == 25
    assert run.steps == 2 * 3  # two epochs of nine images in batches of four
    assert run.hm == pytest.approx(9600 / 140)
    assert run.joint_hm == 12.5
    other = measured("cars", "dear", 1, 0.7, 0.5)
    write_measurements([run, other], tmp_path / "runs.csv")
    assert read_measurements(tmp_path / "runs.csv") == [other, run]


def test_differences_are_paired_over_shared_seeds() -> None:
    runs = [measured("toys", "zero-shot", seed, 0.5, 0.5) for seed in (1, 2)]
    runs += [measured("cars", "zero-shot", 1, 0.4, 0.4), measured("cars", "zero-shot", 2, 0.9, 0.9)]
    runs += [measured("toys", "dear", 1, 0.6, 0.6), measured("cars", "dear", 1, 0.7, 0.7)]
    runs += [measured("toys", "dear", 2, 0.9, 0.9)]  # cars were not run with seed 2
    results = Results([*runs, measured("toys", "coop", 1, 0.6, 0.6)], ["toys", "cars"])
    assert {*results.by_method} == {"zero-shot", "dear"}  # coop was not run on cars
    # Differences of 10 and 30; t = 12.706 with one degree of freedom, standard error 10.
    assert results.gap("dear", "zero-shot", lambda run: run.hm) == "+20.0 ± 127.1"
    assert results.gap("dear", "dear", lambda run: run.hm) == ""
    assert results.seeds("zero-shot") == "1, 2"
    assert results.seeds("dear") == "1"


def test_the_main_table_and_the_figure_leave_out_variants() -> None:
    """Base 60 and novel 80 on all tasks: HM 68.57; jointly 12.5 on both halves. No large task was run."""
    runs = [
        measured(task, method, 1, 0.6, 0.8)
        for task in downstream_names()
        for method in ("zero-shot", "dear", "dear (shuffled)", f"promptkd ({UNLABELLED})")
    ]
    lines = main_table(runs).splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]]
    assert {*names} == {"`zero-shot`", "`dear`", "`promptkd` †"}
    row = "60.0 | 80.0 | 68.6 | 12.5 | +0.0 ± 0.0 |  |  |"
    assert lines[2 + names.index("`dear`")] == f"| `dear` | {row}"
    drawn = figure(runs)
    assert drawn.count("<circle") == 1 + 3  # the legend, three methods
    assert ">promptkd †<" in drawn
    assert "shuffled" not in drawn


def test_the_figure_draws_means_and_intervals_on_its_axis() -> None:
    """The axis is 610 wide and starts at 130; an interval ends with the axis."""
    drawn = results_figure([Row("a<b", {"joint HM": Estimate(50, 10), "base": Estimate(99, 5)})], 'a "b"')
    assert '<circle cx="435.0" ' in drawn  # 130 + 0.5 * 610
    assert 'd="M374.0 74H496.0"' in drawn  # 40 and 60%
    assert 'd="M703.4 54H740.0"' in drawn  # 94 and, cut, 100%
    assert "a&lt;b" in drawn
    root = ElementTree.fromstring(drawn)
    assert root.attrib["aria-label"] == 'a "b"'
    without = results_figure([Row("c", {"base": Estimate(50, None)})], "")
    assert 'class="e"' not in without


def test_the_tables_and_the_figure_are_those_of_the_measurements() -> None:
    measurements = read_measurements(ROOT / FILE)
    for path, named in generated(measurements).items():
        page = (ROOT / path).read_text(encoding="utf-8")
        for name, table in named.items():
            assert with_table(page, name, table) == page, f"run `python -m tools.measurements`: {name}"
    assert (ROOT / FIGURE).read_text(encoding="utf-8") == figure(measurements)


def test_a_table_without_its_markers_is_refused() -> None:
    """Else a page whose markers were moved would get the table at its end."""
    for page in ("", "<!-- main: begin -->", "<!-- main: end --> <!-- main: begin -->"):
        with pytest.raises(ValueError, match="no markers of the table main"):
            with_table(page, "main", "a table")
