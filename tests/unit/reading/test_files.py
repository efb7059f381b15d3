"""Bytes and lines of files: regular ones alone, bounded, in UTF-8; the folders below a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dear.errors import DataError
from dear.limits import LimitError
from dear.reading.files import (
    ReadingError,
    expanded,
    read_bytes,
    read_lines,
    read_text,
    walk_folders,
)

LATE = 60  # seconds; what would wait for a writer waits for ever


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pipe", "not a regular"),
        ("device", "not a regular"),
        ("folder", "is a folder"),
        ("none", "No such file"),
    ],
)
def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str, reason: str) -> None:
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    # In a process of its own: a reader that waits would take the tests with it.
    code = "import sys, pathlib; from dear.reading.files import *; read_bytes(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=LATE
    )
    assert reason in done.stderr.splitlines()[-1]
    assert str(path) in done.stderr.splitlines()[-1]


def test_a_file_of_the_limit_is_read_and_one_byte_more_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    monkeypatch.setenv("DEAR_LIMIT_JSON_BYTES", "7")
    path.write_bytes(b"1234567")
    assert read_bytes(path, "json_bytes") == b"1234567"
    path.write_bytes(b"12345678")
    with pytest.raises(LimitError, match=r"file: 8 bytes .* DEAR_LIMIT_JSON_BYTES"):
        read_bytes(path, "json_bytes")


def test_a_sparse_file_of_a_terabyte_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(LimitError, match="1,099,511,627,776 bytes"):
        read_bytes(path, "json_bytes")


def test_text_is_utf_8_with_or_without_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfr\xc3\xb6d\n")
    assert read_text(path) == "röd\n"
    assert read_lines(path) == ["röd"]
    path.write_bytes(b"r\xf6d")
    with pytest.raises(ReadingError, match=r"not in UTF-8 \(byte 1 is 0xf6\).*iconv"):
        read_text(path)


def test_folders_are_walked_as_by_the_system(tmp_path: Path) -> None:
    for name in ("b/.d/1", "b/c/2", "a/3", "4", ".5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to("self")
    walked = {folder: (sorted(folders), sorted(files)) for folder, folders, files in walk_folders(tmp_path)}
    assert walked == {
        Path(folder): (sorted(folders), sorted(files)) for folder, folders, files in os.walk(tmp_path)
    }
    pruned = []
    for folder, folders, _ in walk_folders(tmp_path):
        folders[:] = [name for name in folders if name != "b"]
        pruned.append(folder.relative_to(tmp_path).as_posix())
    assert pruned == [".", "a"]
    with pytest.raises(DataError, match=r"cannot read the folder .*/gone: No such file"):
        [*walk_folders(tmp_path / "gone")]


def test_a_name_with_a_zero_byte_is_no_file() -> None:
    with pytest.raises(ReadingError, match="null"):
        read_bytes(Path("a\0b"))


def test_the_folder_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded("~/x") == Path("/home/me/x")
    assert expanded("a/~/x") == Path("a/~/x")
    with pytest.raises(ReadingError, match=r"^~no-such-user/x: no user has the name after ~"):
        expanded("~no-such-user/x")
