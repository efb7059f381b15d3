"""Folders of records that a stranger made: what is read is within limits, and in the folder."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dear.errors import DataError
from dear.evaluation.records import read_record
from dear.limits import LimitError
from dear.report.folder import read_folder, write_folder_report
from dear.report.protocols.retrieval import averaged
from tests.unit.report.samples import record

CAFE = os.fsdecode(b"caf\xe9.png")
EXAMPLE = {"index": 0, "label": 0, "prediction": 1, "confidence": 0.5, "probability": 0.1}


def mistakes(**changes: Any) -> dict[str, Any]:
    """The record's mistakes on two classes of a million images each."""
    counts = [10**6, 10**6]
    entry = {
        "part": ["base"], "classes": ["ant", "bee"], "images": counts, "correct": [0, 0], "predicted": counts,
        "confusions": [[0, 1, 5], [1, 0, 5]], "left_out": 0, "examples": [EXAMPLE],
    }  # fmt: skip
    return {"mistakes": [entry | changes]}


def dataset(**changes: Any) -> dict[str, Any]:
    return {"dataset": {"name": "tools", "classes": ["ant", "bee"]} | changes}


def weights(**changes: str) -> dict[str, Any]:
    return {"weights": {"model": "tiny", "sha256": "ab" * 32} | changes}


NAME = "tools-dear-16shot-seed1-0123abcd.json"


def written(folder: Path, **changes: Any) -> Path:
    path = folder / NAME
    path.write_text(json.dumps(record("tools", "dear", 0.5, 0.6) | changes))
    return path


TEACHER = {
    "method": "dear",
    "weights": {"sha256": "ab"},
    "settings": {str(key): key for key in range(20_000)},
}


TRANSFER = {"protocol": "cross-dataset", "targets": [{"name": "a"}]}
SCORES = {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            {"a": SCORES | {"per_class": 5}},
            r"results\.targets\.a\.per_class is 5: it must be keys and values",
        ),
        (5, r"results\.targets is 5: it must be keys and values"),
    ],
)
def test_results_of_a_transfer(targets: Any, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, **TRANSFER, results={"source": SCORES, "targets": targets})
    with pytest.raises(DataError, match=message):
        read_record(path)


def test_a_number_of_retrievals_is_counted() -> None:
    """A record of one could claim any, in any type."""
    assert averaged([{"runs": "x", "precision": {}}]) == {"precision": {}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"method": {"a": "\ud800"}}}, "half of a character"),
        ({"settings": {"method": {"\ud800": 1}}}, "half of a character"),
        ({"settings": {"train": {"a": CAFE}}}, "half of a character"),
        ({"environment": {"\ud800": "x"}}, "half of a character"),
        ({"environment": {CAFE: "x"}}, "half of a character"),
        ({"fusion_weights": {"\ud800": 0.5}}, "half of a character"),
        ({"tuned_on_targets": {CAFE: {"a": 1}}}, "half of a character"),
        ({"published": ["x"] * 1_000_000}, r"1,000,\d+ keys and values in a run record.*RECORD_VALUES"),
        (
            {"train": {"epochs": [{"loss": 1.0} | {str(key): 1.0 for key in range(100)}] * 5000}},
            "keys and values",
        ),
        ({"environment": {"python": "3" * 50_001}}, "50,001 characters of a text in a run record"),
        ({"environment": {str(key): 0 for key in range(20_000)}}, "characters of the settings and the env"),
        ({"settings": {"method": {"a": [7] * 40_000}}}, "characters of the settings and the environment"),
        ({"tuned_on_targets": {"toys": {"a": [7] * 40_000}}}, "characters of the settings and the env"),
        ({"teacher": TEACHER}, "characters of the settings and the environment"),
        ({"fusion_weights": {str(key): 0.1 for key in range(201)}}, "201 attributes, concepts, features"),
        (weights(model="x" * 1001), "1,001 characters of the name of a model"),
        (weights(pretrained="x" * 1001), "1,001 characters of the name of a model"),
        (weights(sha256="a" * 1001), "1,001 characters of the name of a model"),
        (dataset(classes=["ant"] * 25_001), "25,001 class names"),
        (dataset(classes=["a" * 1001]), "1,001 characters of a class name"),
        ({"targets": [{"name": "toys", "classes": ["ant"] * 25_001}]}, "25,001 class names"),
        (mistakes(confusions=[[0, 1, 1]] * 100_001), "100,001 confusions in a part"),
        (mistakes(examples=[EXAMPLE] * 1001), "1,001 examples of mistakes in a part"),
        (mistakes(confusions=[[0, 1, 5], [1, 0, 5], [0, 1, 5]]), "a pair of classes twice"),
        (mistakes(confusions=[[0, 1, 2**62]]), r"confusions\[0\]\[2\] is 4611686018427387904: .* to 1e\+12"),
        (mistakes(confusions=[[0, 1, 0]]), r"confusions\[0\]\[2\] is 0"),
        (mistakes(images=[2**62, 1]), r"images\[0\] is 4611686018427387904"),
        (mistakes(left_out=2**62), "left_out is 4611686018427387904"),
    ],
)
def test_what_is_beyond_a_limit_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path, **changes)
    for read in (lambda: read_folder(tmp_path), lambda: read_record(path)):
        with pytest.raises(DataError, match=rf"{NAME}.*{message}") as told:
            read()
        assert "\n" not in str(told.value)
        assert len(str(told.value)) < 500


def test_what_dear_itself_writes_is_read(tmp_path: Path) -> None:
    """The largest counts, a list of few-shot images with names that are not UTF-8, and many classes."""
    most = 10**12
    parts = mistakes(confusions=[[0, 1, most], [1, 0, most]], images=[most] * 2, predicted=[most] * 2)
    names = [f"class {number}" for number in range(25_000)]
    path = written(tmp_path, fewshot={"files": [CAFE]}, **parts, **dataset(classes=names))
    assert read_record(path)["fewshot"]["files"] == [CAFE]
    assert "confusions.csv" in {file.name for file in write_folder_report(tmp_path).files}


def test_files_of_long_names(tmp_path: Path) -> None:
    """Two data sets whose names begin alike have figures of their own, of names that any disk takes."""
    for number in range(2):
        run = record(f"tools{number}", "dear", 0.5, 0.6) | mistakes() | dataset(name="n" * 299 + str(number))
        (tmp_path / f"{number}.json").write_text(json.dumps(run))
    files = [file.name for file in write_folder_report(tmp_path).files]
    assert (
        len([name for name in files if name.startswith("figure-confusion-") and name.endswith(".svg")]) == 2
    )
    assert len({*files}) == len(files)
    assert max(map(len, files)) < 128


def test_no_record_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    mine = written(tmp_path / "mine")
    runs = tmp_path / "runs"
    (runs / "below").mkdir(parents=True)
    written(runs)
    (runs / "below" / "folder").symlink_to(tmp_path / "mine")
    assert len(read_folder(runs)) == 1
    (runs / "below" / "linked.json").symlink_to(mine)
    assert len(read_folder(runs)) == 1
    linked = runs / "below" / NAME
    linked.symlink_to(mine)
    with pytest.raises(DataError, match=f"{NAME} is not a run record: it is a link"):
        read_folder(runs)
    with pytest.raises(DataError, match="it is a link"):
        read_record(linked)
    (tmp_path / "named").symlink_to(tmp_path / "mine")  # this the user names
    assert len(read_folder(tmp_path / "named")) == 1


def test_records_of_too_many_folders(tmp_path: Path) -> None:
    written(tmp_path)
    tmp_path.joinpath(*"d" * 64).mkdir(parents=True)
    with pytest.raises(LimitError, match="65 levels of folders"):
        read_folder(tmp_path)
