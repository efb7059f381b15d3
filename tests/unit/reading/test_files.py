"""Bytes and lines of files: regular ones alone, bounded, in UTF-8; the folders below a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dear.errors import DataError
from dear.limits import LimitError
from dear.reading.files import ReadingError, expanded, read_bytes, read_lines, read_text, walk_folders
from tests.helpers.errors import refuses

LATE = 60  # seconds; what would wait for a writer waits for ever


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "none"])
def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
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
    assert done.stderr.splitlines()[-1].startswith(f"dear.reading.remote.ReadingError: {path}: ")


def test_a_file_of_the_limit_is_read_and_one_byte_more_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    monkeypatch.setenv("DEAR_LIMIT_JSON_BYTES", "7")
    path.write_bytes(b"1234567")
    assert read_bytes(path, "json_bytes") == b"1234567"
    for size in (8, 2**40):
        with path.open("wb") as file:
            file.truncate(size)
        refuses(LimitError, "DEAR_LIMIT_JSON_BYTES", read_bytes, path, "json_bytes")


def test_text_is_utf_8_with_or_without_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfr\xc3\xb6d\n")
    assert read_text(path) == "röd\n"
    assert read_lines(path) == ["röd"]
    path.write_bytes(b"r\xf6d")
    refuses(ReadingError, "byte 1", read_text, path)
    with pytest.raises(ReadingError):
        read_bytes(Path("a\0b"))


def test_folders_are_walked_without_what_is_no_data(tmp_path: Path) -> None:
    for name in ("b/.d/1", "b/@eaDir/2", "a/3", "4", "Thumbs.db"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    walked = {folder: (sorted(folders), files) for folder, folders, files in walk_folders(tmp_path)}
    assert walked == {
        tmp_path: (["a", "b"], ["4"]), tmp_path / "a": ([], ["3"]),
        tmp_path / "b": ([], []),
    }  # fmt: skip
    with pytest.raises(DataError, match="gone"):
        [*walk_folders(tmp_path / "gone")]


def test_the_folder_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded("~/x") == Path("/home/me/x")
    assert expanded("a/~/x") == Path("a/~/x")
    refuses(ReadingError, "~no-such-user/x", expanded, "~no-such-user/x")
