"""Folders: all old files or all new ones, and nothing of anybody else's lost."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from dear.writing import folders
from dear.writing.folders import LIST, others, write_folder

OLD = {"a.txt": b"old", "b.txt": b"old", LIST: b"a.txt\nb.txt"}
NEW = {"a.txt": b"new", "c.txt": b"new", LIST: b"a.txt\nc.txt"}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def there(folder: Path, files: Mapping[str, bytes] = OLD) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_bytes(text)
    return folder


def test_a_new_folder_and_those_above_it(tmp_path: Path) -> None:
    write_folder(tmp_path / "x" / "out", NEW)
    assert content(tmp_path / "x" / "out") == NEW
    assert os.listdir(tmp_path / "x") == ["out"]


def test_what_was_written_before_makes_room_for_the_new(tmp_path: Path) -> None:
    out = there(tmp_path / "out")
    out.chmod(0o750)
    write_folder(out, NEW)
    assert content(out) == NEW
    assert out.stat().st_mode & 0o777 == 0o750
    assert os.listdir(tmp_path) == ["out"]


def test_by_a_link_the_folder_behind_it_is_meant(tmp_path: Path) -> None:
    out = there(tmp_path / "out")
    (tmp_path / "link").symlink_to(out)
    write_folder(tmp_path / "link", NEW)
    assert content(out) == NEW
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["notes.txt", "folder"])
def test_what_is_somebody_elses_stays(name: str, tmp_path: Path) -> None:
    out = there(tmp_path / "out")
    (out / "folder").mkdir() if name == "folder" else (out / name).write_bytes(b"mine")
    inode = (out / name).stat().st_ino
    write_folder(out, NEW)
    assert (out / name).stat().st_ino == inode
    assert {n: (out / n).read_bytes() for n in NEW} == NEW
    assert (out / "b.txt").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_without_room_the_old_folder_stays(
    at: int, exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls = there(tmp_path / "out"), []

    def full(_file: int) -> None:
        calls.append(1)
        if len(calls) == at:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    if not exchange:
        monkeypatch.setattr(folders, "_exchanged", lambda *_: False)
    with pytest.raises(OSError, match="No space left"):
        write_folder(out, NEW)
    assert content(out) == OLD
    assert os.listdir(tmp_path) == ["out"]


def test_without_an_exchange_each_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = there(tmp_path / "out")
    monkeypatch.setattr(folders, "_exchanged", lambda *_: False)
    write_folder(out, NEW)
    assert content(out) == {**OLD, **NEW}


def test_what_a_killed_writing_left_is_cleared_up(tmp_path: Path) -> None:
    out = there(tmp_path / "out")
    for above in (tmp_path, out):
        there(above / ".out.part")
    assert others(out) == sorted(OLD)
    write_folder(out, NEW)
    assert content(out) == NEW
    assert os.listdir(tmp_path) == ["out"]


def test_a_place_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="file"):
        write_folder(tmp_path / "file" / "out", NEW)
    with pytest.raises(OSError, match="file"):
        folders.try_place(tmp_path / "file" / "out")
    assert os.listdir(tmp_path) == ["file"]
