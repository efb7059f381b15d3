"""Files: whole or not at all."""

import json
import os
from pathlib import Path

import pytest

from dear.errors import OutputError
from dear.writing.files import atomic_write, write_json


def test_what_is_written_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "run.json"
    write_json(path, {"x": [1, 0.5, None, "é"]})
    assert json.loads(path.read_text()) == {"x": [1, 0.5, None, "é"]}
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


@pytest.mark.parametrize("old", [None, '{"old": 1}'])
def test_a_value_that_json_does_not_hold_leaves_nothing(old: str | None, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    if old:
        path.write_text(old)
    with pytest.raises(TypeError):
        write_json(path, {"long": list(range(10_007)), "bad": object()})
    assert [p.read_text() for p in tmp_path.iterdir()] == ([old] if old else [])


def test_ctrl_c_during_the_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_json(tmp_path / "run.json", {})
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*run\.json: .*No space left.*--out"):
        write_json(tmp_path / "run.json", {})
    assert [*tmp_path.iterdir()] == []


def test_a_place_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file" / "run.json", tmp_path / "file" / "deeper" / "run.json"):
        with pytest.raises(OutputError, match="cannot write"):
            write_json(place, {})
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("shared", [False, True])
def test_what_was_there_stays_until_all_is_written(shared: bool, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError), atomic_write(path, shared=shared) as file:
        file.writelines([b"half", "no bytes"])  # type: ignore[list-item]
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"file": "old"}
    with atomic_write(path, shared=shared) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"file": "new"}


def test_two_may_write_one_shared_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_write(path, shared=True) as first:
        with atomic_write(path, shared=True) as second:
            first.write(b"one")
            second.write(b"two")
        assert path.read_text() == "two"
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"file": "one"}
