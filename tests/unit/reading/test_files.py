"""Bytes and lines of files: plain ones alone, bounded, in UTF-8; folders, of so many levels."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from dear.errors import DataError
from dear.limits import LimitError
from dear.reading import files
from dear.reading.files import (
    LINE_ENDS,
    ReadingError,
    expanded,
    has_links,
    read_bytes,
    read_lines,
    read_text,
    require_inside,
    resolved,
    split_lines,
    walk_folders,
)

LATE = 60  # seconds; what would wait for a writer waits for ever


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize(
    ("kind", "reason"),
    [("pipe", "is a pipe"), ("device", "is a device"), ("folder", "is a folder"), ("none", "No such file")],
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
    code = (
        "import sys, pathlib; from dear.reading.files import *; "
        "read_bytes(pathlib.Path(sys.argv[1]), links=True)"
    )
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
    assert read_bytes(path) == b"1234567"
    path.write_bytes(b"12345678")
    with pytest.raises(LimitError, match=r"file: 8 bytes .* DEAR_LIMIT_JSON_BYTES"):
        read_bytes(path)


def test_a_file_that_says_it_is_empty_is_bounded_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path("/proc/self/status")
    if not place.exists():
        pytest.skip("there is no /proc")
    assert place.stat().st_size == 0
    monkeypatch.setenv("DEAR_LIMIT_JSON_BYTES", "7")
    with pytest.raises(LimitError):
        read_bytes(place)


def test_a_sparse_file_of_a_terabyte_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(LimitError, match="1,099,511,627,776 bytes"):
        read_bytes(path)


def test_text_is_utf_8_with_or_without_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfr\xc3\xb6d\n")
    assert read_text(path) == "röd\n"
    path.write_bytes(b"r\xf6d")
    with pytest.raises(ReadingError, match=r"not in UTF-8 \(byte 1 is 0xf6\).*iconv"):
        read_text(path)


def test_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("a\nb\nc\n")
    assert read_lines(path) == ["a", "b", "c"]
    monkeypatch.setenv("DEAR_LIMIT_TEXT_LINES", "2")
    with pytest.raises(LimitError, match="3 lines"):
        read_lines(path)


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


def test_levels_of_folders_are_bounded(tmp_path: Path) -> None:
    deepest = tmp_path.joinpath(*"d" * 63)
    deepest.mkdir(parents=True)
    assert sum(1 for _ in walk_folders(tmp_path)) == 64
    (deepest / "d").mkdir()
    with pytest.raises(LimitError, match=r"65 levels of folders, above the limit of 64\.$"):
        [*walk_folders(tmp_path)]


def test_a_name_with_a_zero_byte_is_no_file() -> None:
    with pytest.raises(ReadingError, match="null"):
        read_bytes(Path("a\0b"))


def test_chains_of_links(tmp_path: Path) -> None:
    """Python follows them itself, and calls itself for each."""
    (tmp_path / "file").write_text("x")
    previous = "file"
    for number in range(1200):
        (tmp_path / f"l{number}").symlink_to(previous)
        previous = f"l{number}"
    assert resolved(tmp_path / "l10") == tmp_path.resolve() / "file"
    with pytest.raises(ReadingError, match="a link to a link, more often than can be followed"):
        resolved(tmp_path / "l1199")


def test_the_folder_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded("~/x") == Path("/home/me/x")
    assert expanded("a/~/x") == Path("a/~/x")
    with pytest.raises(ReadingError, match=r"^~no-such-user/x: no user has the name after ~"):
        expanded("~no-such-user/x")


def test_links_below_a_folder(tmp_path: Path) -> None:
    inner = tmp_path / "top" / "a"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "top")
    (tmp_path / "top" / "b").symlink_to(inner)
    assert not has_links(inner / "file", tmp_path / "top")
    assert has_links(tmp_path / "top" / "b" / "file", tmp_path / "top")
    assert not has_links(tmp_path / "link" / "a" / "file", tmp_path / "link")  # the folder itself may be one
    assert has_links(tmp_path / "link" / "b", tmp_path / "link")
    with pytest.raises(ReadingError, match="x: File name too long"):
        has_links(tmp_path / ("x" * 300), tmp_path)


def test_links_out_of_a_folder(tmp_path: Path) -> None:
    """A snapshot in the hub's cache consists of links to the blobs of its repository."""
    repository = tmp_path / "models--owner--name"
    snapshot, blob, elsewhere = repository / "snapshots" / "3", repository / "blobs" / "b", tmp_path / "mine"
    for file in (snapshot / "plain", blob, elsewhere, tmp_path / "models--owner--other" / "blobs" / "b"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    allowed = {"near": "plain", "cached": "../../blobs/b"}
    refused = {
        "out": "../../../mine", "absolute": elsewhere, "repository": "../../mine",
        "other": "../../../models--owner--other/blobs/b",
    }  # fmt: skip
    for name, target in (allowed | refused).items():
        (snapshot / name).symlink_to(target)
    (repository / "mine").write_text("x")
    (tmp_path / "link").symlink_to(snapshot)
    for folder in (snapshot, tmp_path / "link"):
        for name in ("plain", *allowed):
            assert require_inside(folder / name) == folder / name
        for name in refused:
            with pytest.raises(ReadingError, match="it is a link out of its folder: put the file itself"):
                require_inside(folder / name)
    (snapshot / "pooling").mkdir()
    (snapshot / "pooling" / "cached").symlink_to("../../../blobs/b")
    (snapshot / "linked").symlink_to(elsewhere.parent)
    assert require_inside(snapshot / "pooling" / "cached", snapshot)
    with pytest.raises(ReadingError, match="it is a link out of its folder"):
        require_inside(snapshot / "linked" / "mine", snapshot)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "blob").symlink_to(blob)
    with pytest.raises(ReadingError, match="it is a link out of its folder"):
        require_inside(tmp_path / "folder" / "blob")


class Unsplit(str):
    """A text that is not to be divided."""

    def splitlines(self, keepends: bool = False) -> list[str]:
        raise AssertionError(f"divided, {keepends=}")


def test_lines_are_counted_before_a_text_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEAR_LIMIT_TEXT_LINES", "3")
    for lines in ("a\nb\nc", "a\r\nb\r\nc\r\n", "\n\n\n", "a", ""):
        assert [*split_lines(lines, "it")] == lines.splitlines()
    for lines in ("a\nb\nc\nd", "\n\n\n\n", "\r\n\r\r\n\r"):
        with pytest.raises(LimitError, match="it: 4 lines of a text file, above the limit of 3"):
            next(split_lines(Unsplit(lines), "it"))


@pytest.mark.parametrize("block", [1, 2, 3])
def test_a_text_is_divided_in_blocks(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(files, "BLOCK", block)
    for letters in product("a\r\n\u2028", repeat=5):
        text = "".join(letters)
        assert [*split_lines(text, "it")] == text.splitlines(), repr(text)


def test_every_end_of_a_line_is_known() -> None:
    assert {*LINE_ENDS} == {
        chr(code) for code in range(sys.maxunicode + 1) if len(f"a{chr(code)}b".splitlines()) > 1
    }
