"""The study's rows, tables and numbers, from made runs whose numbers are known by hand."""

from pathlib import Path
from typing import Any

import pandas
import pytest

from benchmarks.study import runs as module
from benchmarks.study.pages import merge, written
from benchmarks.study.runs import collect, complete, difference, mean, read
from benchmarks.study.values import value
from dear.errors import DataError
from dear.world.names import downstream_names
from tests.helpers.errors import refuses
from tests.helpers.records import record

SMALL = downstream_names()


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return tmp_path


def run(
    data: str, method: str, base: float, novel: float, code: str = "new", **changes: Any
) -> dict[str, Any]:
    """A record whose joint accuracies are half of the others, and those of the class feature a quarter."""

    def part(accuracy: float) -> dict[str, float]:
        return {"accuracy": accuracy, "decoupled": accuracy / 4, "zero_shot_for_new": accuracy}

    results = {"base": part(base), "novel": part(novel)}
    results |= {"joint": {"base": part(base / 2), "novel": part(novel / 2)}}
    facts = {"results": results, "environment": {"code": code}, "fewshot": {"indices": [*range(64)]}}
    facts |= {"settings": {"method": {}, "train": {"epochs": 2, "batch": 16}}}
    return record(data, method, 0, 0, **facts | changes)


def test_a_run_is_a_row_in_place_of_the_same_run_before() -> None:
    first = [run("mixed-paints", "dear", 0.5, 0.25, "old"), run("mixed-paints", "zero-shot", 0.4, 0.4, "old")]
    assert collect(first) == {"base_to_novel": 2}
    collect([run("mixed-paints", "dear", 0.75, 0.25)])
    rows = read("base_to_novel").set_index("method")
    assert rows.code.to_dict() == {"dear": "new", "zero-shot": "old"}
    dear = rows.loc["dear"]
    assert (dear.base, dear.novel, dear.joint_base, dear.base_alone) == (75, 25, 37.5, 18.75)
    assert (dear.steps, dear.seconds, dear.hm) == (8, 4, 37.5)  # 64 images in batches of 16, two epochs
    assert rows.loc["zero-shot"].steps == 0


def test_each_record_is_in_the_file_of_its_kind() -> None:
    shots = {"protocol": "few-shot", "results": {"all": {"accuracy": 0.7}}, "shots": 2}
    found = collect(
        [
            run("holiday-albums", "dear", 0.5, 0.5),
            run("holiday-albums-15a", "dear", 0.5, 0.5),
            run("mixed-paints", "dear", 0.5, 0.5, variant="batch 4"),
            run("mixed-paints", "dear+", 0.5, 0.5, variant="shuffled 3"),
            run("mixed-paints", "dear+", 0.5, 0.5, **shots),
        ]
    )
    assert found == dict.fromkeys(module.KEYS, 1)
    assert read("role_controls").method.tolist() == ["shuffled 3"]
    assert read("variants").method.tolist() == ["dear (batch 4)"]
    assert read("few_shot")[["shots", "accuracy"]].to_numpy().tolist() == [[2, 70]]
    refuses(DataError, "photos", collect, [run("photos", "dear", 0.5, 0.5)])
    with pytest.raises(DataError, match="settings"):
        collect([run("mixed-paints", "dear", 0.5, 0.5, overrides={"method": {"beta": 0.5}, "train": {}})])
    with pytest.raises(DataError, match="weights"):
        collect([run("mixed-paints", "dear", 0.5, 0.5, weights={"sha256": "cd" * 32})])


def test_means_and_differences_by_hand() -> None:
    def rows(method: str, *halves: float) -> pandas.DataFrame:
        of = [{"data": name, "hm": half, "base": half} for name, half in zip("abc", halves, strict=True)]
        return pandas.DataFrame(of).assign(method=method, seed=1, novel=60.0)

    # Differences 10, 20 and 30: deviation 10, and t of two degrees of freedom is 4.3027.
    ours, theirs = rows("ours", 60, 70, 80), rows("theirs", 50, 50, 50)
    points, half = difference(ours, theirs, "hm")
    assert (points, half) == (20, pytest.approx(4.3027 * 10 / 3**0.5, abs=1e-3))
    assert mean(ours, "base") == 70
    assert mean(ours, "hm") == pytest.approx(2 * 70 * 60 / 130)  # of the means, not the mean of HMs
    both = pandas.concat([ours, theirs.assign(method="ours", seed=2)[:2]])
    assert {*complete(both, ["a", "b", "c"]).seed} == {1}  # seed 2 lacks a task
    assert complete(both, ["a", "b", "c", "d"]).empty


def test_numbers_of_sentences() -> None:
    collect([run(task, "dear", 0.6, 0.6, seed=seed) for task in SMALL for seed in (1, 2)])
    collect([run(task, "tac", 0.5, 0.5 + 0.1 * (task == "mixed-paints")) for task in SMALL])
    collect([run(task, "dear", 0.9, 0.9, variant="batch 4") for task in SMALL])
    assert value("HM dear") == "60.0"
    assert value("joint HM dear (batch 4); whole") == "45"
    assert value("class feature base dear") == "15.0"
    assert value("HM dear (batch 4) - HM dear") == "+30.0"  # the same each time: no interval
    assert value("novel tac - novel dear; task mixed-paints") == "+0.0"
    assert value("novel tac - novel dear; task street-signs; plain") == "-10.0"
    mean_only, whole = (value(f"novel tac - novel dear{end}") for end in ("; mean", ""))
    assert mean_only == "-9.2"  # eleven of twelve tasks by 10
    assert whole.startswith("-9.2 ± ")
    assert (value("above tac in HM"), value("near dear in novel")) == ("`dear`", "no method")
    for wrong in ("HM dear; medium", "speed dear", "HM dear - HM tac - HM gda"):
        refuses(ValueError, "dear", value, wrong)


def test_a_page_takes_what_there_are_rows_for() -> None:
    collect([run(task, "dear", 0.6, 0.6) for task in SMALL])
    page = "HM is <!-- study: HM dear -->1.0<!-- end -->, <!-- study: HM tac -->2.0<!-- end -->."
    page += " <!-- study: tables and numbers without rows -->7<!-- end -->"
    assert written(page) == (page.replace("1.0", "60.0").replace("7", "1"), ["HM tac"])


def test_lines_without_rows_stay_in_merged_tables() -> None:
    old = ["| variant | HM |", "| --- | ---: |", "| gone | 3 |", "| batch 4 | 1 |"]
    new = [
        "| variant | HM | version |",
        "| --- | ---: | --- |",
        "| batch 4 | 2 | today |",
        "| eq9 | 5 | today |",
    ]
    assert merge(old, new) == [*new[:2], "| gone | 3 |  |", *new[2:]]
    assert merge(old, new[:2]) == old
