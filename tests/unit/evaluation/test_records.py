"""Run records: whole or not at all, and of this schema."""

import json
import os
from pathlib import Path

import pytest

from dear.errors import DataError, OutputError
from dear.evaluation.records import SCHEMA, environment, make_folder, read_record, write_json


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "run.json"
    write_json(path, {"schema": SCHEMA, "x": [1, 0.5, None, "é"]})
    assert read_record(path) == {"schema": SCHEMA, "x": [1, 0.5, None, "é"]}
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


@pytest.mark.parametrize("old", [None, '{"old": 1}'])
def test_a_value_that_json_does_not_hold_leaves_nothing(old: str | None, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    if old:
        path.write_text(old)
    with pytest.raises(TypeError):
        write_json(path, {"schema": SCHEMA, "long": list(range(10_007)), "bad": object()})
    assert [p.read_text() for p in tmp_path.iterdir()] == ([old] if old else [])


def test_ctrl_c_during_the_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_json(tmp_path / "run.json", {"schema": SCHEMA})
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*run\.json: .*No space left.*--out"):
        write_json(tmp_path / "run.json", {"schema": SCHEMA})
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file" / "run.json", tmp_path / "file" / "deeper" / "run.json"):
        with pytest.raises(OutputError, match="cannot write"):
            write_json(place, {})
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
    with pytest.raises(DataError, match=f"reads {SCHEMA}. Remove it and run"):
        read_record(path)


def test_the_environment_is_plain(tmp_path: Path) -> None:
    write_json(tmp_path / "e.json", environment())
    assert {"dear", "python", "torch", "open_clip", "threads"} <= set(
        json.loads((tmp_path / "e.json").read_text())
    )
