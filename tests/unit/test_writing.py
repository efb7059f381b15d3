"""Files: whole or not at all. Folders: all old files or all new ones, and nothing of anybody else's lost."""

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear import writing
from dear.errors import OutputError
from dear.writing import (
    atomic_write,
    csv_text,
    foreign_files,
    read_csv_text,
    try_place,
    write_folder,
    write_json,
)
from tests.helpers.errors import refuses
from tests.interrupts import interrupt_at_each_line


def test_what_is_written_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "run.json"
    write_json(path, {"x": [1, 0.5, None, "é"]})
    assert json.loads(path.read_text()) == {"x": [1, 0.5, None, "é"]}
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space left"), OutputError)],
)
def test_ctrl_c_or_a_full_disk_leaves_nothing(
    error: BaseException, raised: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_file: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(raised):
        write_json(tmp_path / "run.json", {})
    assert [*tmp_path.iterdir()] == []


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


OLD = {"a.txt": b"old", "b.txt": b"old"}
NEW = {"a.txt": b"new", "c.txt": b"new"}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def there(folder: Path, files: Mapping[str, bytes] = OLD) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_bytes(text)
    return folder


def test_new_files_replace_old_ones_of_their_names(tmp_path: Path) -> None:
    """In the folder itself, also by a link: it may be the current one of a shell."""
    out = there(tmp_path / "out")
    (tmp_path / "link").symlink_to(out)
    inode = out.stat().st_ino
    write_folder(tmp_path / "link", NEW)
    assert content(out) == OLD | NEW
    assert out.stat().st_ino == inode
    assert sorted(os.listdir(tmp_path)) == ["link", "out"]


@pytest.mark.parametrize("at", [1, 2])
def test_without_room_the_old_folder_stays(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, calls = there(tmp_path / "out"), []

    def full(_file: int) -> None:
        calls.append(1)
        if len(calls) == at:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refuses(OSError, "No space left", write_folder, out, NEW)
    assert content(out) == OLD
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_killed_writing_left_is_cleared_up(tmp_path: Path) -> None:
    there(tmp_path / ".out.dear.part")
    write_folder(tmp_path / "out", NEW)
    assert content(tmp_path / "out") == NEW
    assert os.listdir(tmp_path) == ["out"]
    there(tmp_path / "out" / ".out.dear.part")
    assert foreign_files(tmp_path / "out") == sorted(NEW)
    write_folder(tmp_path / "out", NEW)
    assert content(tmp_path / "out") == NEW


@pytest.mark.parametrize("old", [OLD, OLD | {"mine.txt": b"mine"}, None])
def test_ctrl_c_at_any_line_leaves_no_part(old: dict[str, bytes] | None, tmp_path: Path) -> None:
    def work() -> None:
        try_place(out)
        shutil.rmtree(out, ignore_errors=True)
        if old:
            there(out, old)
        write_folder(out, NEW)

    def check() -> None:
        left = {path.name for path in tmp_path.rglob("*")} - {"mine.txt"}
        assert not {name for name in left if name.endswith(".part")}
        assert left <= {"out", *OLD, *NEW}

    out = tmp_path / "out"
    assert interrupt_at_each_line(writing, work, check) > 20
    assert content(out).items() >= NEW.items()


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refuses(OSError, "file", write_folder, tmp_path / "file" / "out", NEW)
    refuses(OSError, "file", writing.try_place, tmp_path / "file" / "out")
    assert os.listdir(tmp_path) == ["file"]


def test_two_that_write_the_same_file_each_write_a_whole_one(tmp_path: Path) -> None:
    """The last one stays, whichever began first; a part of a running process is left alone."""
    path = tmp_path / "p.csv"
    with atomic_write(path) as first:
        first.write(b"first, ")
        with atomic_write(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        first.write(b"and last")
    assert content(tmp_path) == {"p.csv": b"first, and last"}


@pytest.mark.parametrize(
    ("age", "is_held", "stays"), [(90, False, False), (90, True, True), (0, False, True)]
)
def test_a_part_of_a_killed_process_is_removed(age: int, is_held: bool, stays: bool, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    part, other = tmp_path / "p.csv.0123abcd.dear.part", tmp_path / "q.csv.0123abcd.dear.part"
    for name in (part, other):
        name.write_bytes(b"half")
        os.utime(name, (time.time() - age,) * 2)
    with part.open("rb") as file:
        if is_held:
            fcntl.flock(file, fcntl.LOCK_EX)
        with atomic_write(tmp_path / "p.csv") as whole:
            whole.write(b"whole")
    expected = {"p.csv": b"whole", other.name: b"half"} | ({part.name: b"half"} if stays else {})
    assert content(tmp_path) == expected


@given(st.text(alphabet="ab';-=+@ \uff1d\uff0d"))
def test_text_in_a_csv_is_read_again_as_it_was(text: str) -> None:
    """And a spreadsheet takes no cell of it for a formula."""
    written = csv_text(text)
    assert read_csv_text(written) == text
    assert not any(cell.lstrip()[:1] in [*"=+-@\uff1d\uff0d"] for cell in written.split(";") if cell.strip())
