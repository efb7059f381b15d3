"""The stored measurements: what a record becomes, and the tables that are made of them."""

import json
import re
from dataclasses import replace
from html import escape
from operator import attrgetter
from pathlib import Path
from typing import get_args

import pytest

from dear.data.world.names import Size
from dear.data.world.tasks import downstream_names
from dear.errors import DataError
from dear.methods.registry import FIT_METHOD
from tests.unit.report.samples import record
from tools.class_counts import COUNTS, FIGURE, TASK, Counts, base_classes, counts
from tools.document import with_table
from tools.measurements import (
    FILE,
    Measurement,
    Results,
    generated,
    read_measurements,
    write_measurements,
)
from tools.role_controls import CONTROLS, control_of, role_controls

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
    runs = [measured(data, "zero-shot", seed, 0.5, 0.5) for data in ("toys", "tools") for seed in (1, 2)]
    runs += [measured("tools", "dear", seed, 0.7, 0.7) for seed in (1, 2)]
    runs += [measured("cars", "zero-shot", 1, 0.4, 0.4), measured("cars", "zero-shot", 2, 0.9, 0.9)]
    runs += [measured("toys", "dear", 1, 0.6, 0.6), measured("cars", "dear", 1, 0.7, 0.7)]
    runs += [measured("toys", "dear", 2, 0.9, 0.9)]  # cars were not run with seed 2
    results = Results([*runs, measured("toys", "coop", 1, 0.6, 0.6)], ["toys", "tools", "cars"])
    assert {*results.by_method} == {"zero-shot", "dear"}  # coop was not run on cars
    # Differences of 10, 20 and 30; t = 4.3027 with two degrees of freedom, standard error 10 / sqrt(3).
    assert results.gap("dear", "zero-shot", lambda run: run.hm) == "+20.0 ± 24.8"
    assert results.gap("dear", "dear", lambda run: run.hm) == ""
    assert results.seeds("zero-shot") == "1, 2"
    assert results.seeds("dear") == "1"


def test_what_the_page_says_of_the_best_methods_is_measured() -> None:
    page = (ROOT / "docs/choose.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| `dear\+` \| ([^|]+) \|$", page, re.MULTILINE))
    everything = [run for run in read_measurements(ROOT / FILE) if "(" not in run.method]  # no variants
    for size in get_args(Size):
        results = Results(everything, downstream_names(size=size))

        def joint(method: str, results: Results = results) -> float:
            return results.hm(method, attrgetter("joint_base"), attrgetter("joint_novel"))

        base = {method: results.mean(method, attrgetter("base")) for method in results.by_method}
        for numbers, row in (
            (base, rows["images of every class"]),
            (
                {method: joint(method) for method in base},
                rows["images of some classes, only names of others"],
            ),
        ):
            best, second = sorted(numbers, key=lambda method: -numbers[method])[:2]
            assert best == FIT_METHOD
            assert f" {numbers[best]:.1f}" in row
            assert f"`{second}`" in row
            assert f", {numbers[second]:.1f}" in row
        said = re.findall(r"(\d+\.\d) (± \d+\.\d)(?: points)? above `([\w-]+)`", page)
        for difference, width, other in said:
            if (other == "promptsrc") == (size == "large"):
                gap = results.gap(FIT_METHOD, other, attrgetter("joint_hm"))
                assert gap == f"+{difference} {width}"
        assert {other for *_, other in said} == {"tac", "clip-adapter", "promptsrc"}


def test_the_tables_of_the_study_are_those_of_the_measurements() -> None:
    measurements = read_measurements(ROOT / FILE)
    for path, named in generated(measurements).items():
        page = (ROOT / path).read_text(encoding="utf-8")
        for name, table in named.items():
            assert with_table(page, name, table) == page, f"run `python -m tools.measurements`: {name}"


def controls() -> list[Measurement]:
    tasks = {"toys": 0, "tools": 0.1, "cars": 0.2}
    roles = [measured(data, "dear+", 1, 0.6 + more, 0.6 + more) for data, more in tasks.items()]
    names = {"shuffled 1": 0, "shuffled 2": -0.1, "random 1": -0.2}
    return roles + [
        replace(measured(data, "dear+", 1, 0.6 + more + less, 0.6 + more + less), method=name)
        for data, more in tasks.items()
        for name, less in names.items()
    ]


def test_role_controls_are_compared_with_the_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.role_controls.downstream_names", lambda: ["toys", "tools", "cars"])
    roles, others = controls()[:3], controls()[3:]
    cells = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in role_controls(others, roles).splitlines()
    ]
    assert [row[:5] for row in cells[2:]] == [
        ["discovered", "1", "70.0", "", ""],
        ["shuffled", "2", "65.0 (60.0 to 70.0)", "-5.0 ± 0.0", "1"],
        ["random", "1", "50.0 (50.0 to 50.0)", "-20.0 ± 0.0", "0"],
    ]


def test_a_role_control_is_named_after_its_table(tmp_path: Path) -> None:
    run = record("toys", "dear+", 0.8, 0.6)
    run["roles"] = None
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(DataError, match="neither shuffled nor random"):
        control_of(tmp_path / "run.json")


def test_what_the_study_says_of_roles_is_measured() -> None:
    table = role_controls(read_measurements(ROOT / CONTROLS), read_measurements(ROOT / FILE))
    page = (ROOT / "recipes/study/TABLES.md").read_text(encoding="utf-8")
    assert with_table(page, "role-controls", table) == page, "run `python -m tools.role_controls`"
    rows = {
        (cells := row.split("|"))[1].strip(): [cell.strip() for cell in cells[2:]]
        for row in table.splitlines()
    }
    study = (ROOT / "docs/study.md").read_text(encoding="utf-8")
    said = re.search(
        r"none of (\d+) shuffles .* 1 in (\d+)\)\. Shuffles are (.*?) lower apart and (.*?) jointly, "
        r"random tables (.*?) and (.*?) \(",
        study,
    )
    assert said is not None
    shuffled, random = rows["shuffled"], rows["random"]
    assert said.groups() == (
        shuffled[0],
        str(int(shuffled[0]) + 1),
        *(cells[at].lstrip("-") for cells in (shuffled, random) for at in (2, 5)),
    )
    assert [row[at] for row in (shuffled, random) for at in (3, 6)] == ["0"] * 4


def parts() -> list[Measurement]:
    """Of 60 classes, and of two parts of 6: with as few steps as they take, and with those of the whole."""
    numbers = {"zero-shot": (0, 0.5, 0.5), "dear": (6, 0.6, 0.6), "dear+": (0, 0.7, 0.7)}
    whole = [replace(measured(TASK, name, 1, *hm), steps=60 * n) for name, (n, *hm) in numbers.items()]
    few = [
        replace(run, data=f"{TASK}-6{part}", base=run.base + more, steps=run.steps // 10)
        for run in whole
        for part, more in (("a", 10), ("b", 30))
    ]
    equal = [replace(run, steps=360, novel=80.0) for run in few if run.method == "dear"]
    return [*whole, *few, *equal]


def test_class_counts_tell_steps_apart() -> None:
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in Counts.of(parts()).table().splitlines()
    ]
    # HM of the means of base, 20 points above, and of novel: 2 * 70 * 50 / 120, 2 * 80 * 60 / 140 and so on.
    assert [row[:8] for row in rows[2:]] == [
        ["6", "2", "36, -, -", "58.3", "68.6", "", "", "78.8"],
        ["60", "1", "360, -, -", "50.0", "60.0", "", "", "70.0"],
        ["6", "2", "360, -, -", "58.3", "80.0", "", "", "78.8"],
    ]
    with pytest.raises(DataError, match="no part of holiday-albums"):
        base_classes("toys-6a")


def test_what_the_tables_say_of_the_number_of_classes_is_measured() -> None:
    result = counts(read_measurements(ROOT / COUNTS), read_measurements(ROOT / FILE))
    page = (ROOT / "recipes/study/TABLES.md").read_text(encoding="utf-8")
    assert with_table(page, "class-counts", result.table()) == page, "run `python -m tools.class_counts`"
    assert escape(result.figure().description) in (ROOT / FIGURE).read_text(encoding="utf-8")
