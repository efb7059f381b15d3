"""Records of odd content: counts, long names, names that are not UTF-8."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dear.errors import DataError
from dear.evaluation.records import read_record
from dear.report.folder import read_folder, write_folder_report
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (mistakes(confusions=[[0, 1, 2**62]]), r"confusions\[0\]\[2\] is 4611686018427387904: .* to 1e\+12"),
        (mistakes(confusions=[[0, 1, 0]]), r"confusions\[0\]\[2\] is 0"),
        (mistakes(images=[2**62, 1]), r"images\[0\] is 4611686018427387904"),
        (mistakes(left_out=2**62), "left_out is 4611686018427387904"),
    ],
)
def test_counts_that_no_data_has(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
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
