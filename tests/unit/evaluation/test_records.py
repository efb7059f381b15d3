"""Run records: of this schema, in a folder that can be written to."""

import json
from pathlib import Path
from typing import Any

import pytest

from dear.errors import DataError, DearError, OutputError
from dear.evaluation.environment import environment
from dear.evaluation.records import make_folder, read_record
from dear.evaluation.schema import SCHEMA
from dear.writing import write_json


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(OutputError, match=r"cannot write to .*--out"):
            make_folder(folder)
    assert (tmp_path / "file").read_text() == "mine"
    make_folder(tmp_path / "new" / "er")
    make_folder(tmp_path / "new" / "er")
    assert (tmp_path / "new" / "er").is_dir()


@pytest.mark.parametrize("content", ["", '{"schema": 1', "[1, 2]", "7", "\x00"])
def test_a_damaged_record_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"run\.json is not a run record"):
        read_record(path)


@pytest.mark.parametrize("record", [{"schema": SCHEMA + 1}, {}])
def test_another_schema_is_refused(record: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=f"this version reads schema {SCHEMA}: .*Remove it and run"):
        read_record(path)


def atomic_write() -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "protocol": "base-to-novel",
        "method": "dear",
        "dataset": {"name": "tools", "title": "Tools", "identity": "x"},
        "weights": {"model": "tiny", "pretrained": "world", "sha256": "ab"},
        "seed": 1,
        "shots": 16,
        "results": {"base": {"accuracy": 0.5}, "novel": {"accuracy": 1}},
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shots": -1}, "its shots is -1: it must be a whole number of at least 0"),
        ({"seed": True}, "its seed is True: it must be a whole number"),
        ({"protocol": ["few-shot"]}, r"its protocol \['few-shot'\] is not one of"),
        ({"dataset": "tools"}, "its dataset is 'tools': it must be keys and values"),
        ({"targets": [{"title": "x"}]}, r"its targets\[0\] lacks the key 'name'"),
        ({"results": {"base": {"accuracy": 0.5}}}, r"lacks 'results\.novel'"),
        ({"results": {part: {"accuracy": 50} for part in ("base", "novel")}}, "accuracy is 50.*from 0 to 1"),
        ({"roles": {"source": "x", "table": {"heads": [{"layer": 0}]}}}, r"heads\[0\] lacks the key 'head'"),
    ],
)
def test_a_record_with_a_wrong_value_inside_is_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(atomic_write()))
    assert read_record(path) == atomic_write()
    path.write_text(json.dumps(atomic_write() | changes))
    with pytest.raises(DearError, match=reason):
        read_record(path)


def test_the_environment_is_plain(tmp_path: Path) -> None:
    write_json(tmp_path / "e.json", environment())
    assert {"dear", "python", "torch", "open_clip", "threads"} <= set(
        json.loads((tmp_path / "e.json").read_text())
    )
