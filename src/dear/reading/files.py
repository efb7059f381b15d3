"""The content of files, with errors that name the file and say what is wrong; the folders below a folder."""

import hashlib
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

from dear.errors import DataError
from dear.limits import at_most, limit


class ReadingError(DataError):
    """A file that is missing or malformed.

    Attributes:
        reason: what is wrong, without the file name and the full stop, for callers that add to it.
        missing: whether the file does not exist.
    """

    def __init__(self, where: object, reason: str, *, missing: bool = False) -> None:
        self.reason, self.missing = reason.rstrip("."), missing
        super().__init__(f"{where}: {self.reason}.")


@contextmanager
def opened(path: Path, **_: bool) -> Iterator[BinaryIO]:
    """A regular file, opened for reading. Raises ReadingError, also for a pipe, without waiting for it."""
    try:
        if path.exists() and not path.is_file():
            raise ReadingError(path, "it is a folder" if path.is_dir() else "it is not a regular file")
        file = path.open("rb")
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if isinstance(error, PermissionError):
            why = "no permission to read it"
        raise ReadingError(path, why, missing=isinstance(error, FileNotFoundError)) from error
    with file:
        yield file


def read_bytes(path: Path, size_limit: str = "json_bytes", **_: bool) -> bytes:
    """The content of a file; ``size_limit`` names the limit of its size. Raises ReadingError, LimitError."""
    with opened(path) as file:
        at_most(size_limit, os.fstat(file.fileno()).st_size, path)
        return file.read()


def read_text(path: Path, size_limit: str = "text_bytes", **_: bool) -> str:
    """The text of a file in UTF-8, with or without a byte order mark; errors as in `read_bytes`."""
    return decoded(path, read_bytes(path, size_limit))


def read_lines(path: Path, **_: bool) -> list[str]:
    """The lines of a text file; errors as in `read_bytes`."""
    return read_text(path).splitlines()


def decoded(path: object, content: bytes) -> str:
    """Bytes in UTF-8 as text, without a byte order mark. Raises ReadingError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReadingError(
            path,
            f"it is not in UTF-8 (byte {error.start} is {error.object[error.start]:#04x}): "
            "save it in UTF-8, for example with `iconv -t UTF-8`",
        ) from error


def file_size(path: Path) -> int | None:
    """Bytes of a regular file; None if there is none of this name, or none can have it. Raises ReadingError
    without permission to look.
    """
    try:
        status = path.stat()
    except PermissionError as error:
        raise ReadingError(path, "no permission to read it") from error
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def expanded(path: str | Path) -> Path:
    """A path with ~ or ~NAME at its beginning replaced by a user's folder. Raises ReadingError for an unknown
    user.
    """
    text = os.path.expanduser(path)
    if text.startswith("~"):
        raise ReadingError(path, "no user has the name after ~: give the full path")
    return Path(text)


def walk_folders(top: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Each folder, before those in it, with the names of its folders and files; one that the caller removes
    from the list is not entered, nor is a link. Raises DataError for a folder that cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise DataError(f"cannot read the folder {error.filename}: {error.strerror}.") from error

    for folder, folders, files in os.walk(top, onerror=refuse):
        yield Path(folder), folders, files


BLOCK = 2**20  # bytes, or characters
SHARED_BLOB = re.compile(r"[0-9a-f]{64}")
OF_MARKS = "\u0f73\u0f75\u0f81"
"""The only letters that are no marks but become two."""
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""The characters at which `str.splitlines` divides a text; \\r\\n together end one line."""
LINE_END = re.compile(f"\r\n|[{LINE_ENDS}]")


def sha256(file: BinaryIO, size_limit: str) -> str:
    """The SHA-256 of what follows in a file, read in blocks, in all up to the limit."""
    digest, room = hashlib.sha256(), limit(size_limit)
    while block := file.read(min(BLOCK, room)):
        digest.update(block)
        room -= len(block)
    return digest.hexdigest()


def resolved(path: str | Path) -> Path:
    """A path with its links followed, whether or not it is there. Raises ReadingError for endless links."""
    try:
        return Path(os.path.realpath(path))
    except RecursionError as error:
        raise ReadingError(path, "it is a link to a link, more often than can be followed") from error


def require_inside(path: Path, folder: Path | None = None) -> Path:
    """The path of a file in a folder that may be a stranger's, by default the one that it lies in. Raises
    ReadingError for a link that leads out of the folder, except to the blobs of the same repository in the
    hub's cache, whose files are such links, or through them to those that all repositories share.
    """
    folder, file = resolved(folder or path.parent), resolved(path)
    if not (file.is_relative_to(folder) or (folder.parent.name == "snapshots" and _is_blob(file, folder))):
        raise ReadingError(path, "it is a link out of its folder: put the file itself there")
    return path


def _is_blob(file: Path, snapshot: Path) -> bool:
    """True for a blob of a snapshot's repository, or one of all: cache/blobs/ab/ab..., by its other hash."""
    repository = snapshot.parents[1]
    if file.parent == repository / "blobs":
        return True
    shared = repository.parent / "blobs" / file.name[:2] / file.name
    return file == shared and SHARED_BLOB.fullmatch(file.name) is not None


def has_links(path: Path, top: Path) -> bool:
    """True if a path below a folder is a link or goes through one. Raises ReadingError if it cannot be
    checked: it is too long, for example.
    """
    if not path.is_relative_to(top):
        return False
    part = str(top)
    try:
        for name in path.parts[len(top.parts) :]:
            part = os.path.join(part, name)
            if stat.S_ISLNK(os.lstat(part).st_mode):
                return True
    except (FileNotFoundError, NotADirectoryError):  # nor is there anything behind it
        return False
    except OSError as error:
        raise ReadingError(path, error.strerror or str(error)) from error
    return False


def size_on_disk(file: Path) -> int:
    """Bytes of a file, without its holes. Raises ReadingError."""
    try:
        facts = file.stat()
    except OSError as error:
        raise ReadingError(file, error.strerror or str(error)) from error
    return min(facts.st_size, 512 * getattr(facts, "st_blocks", facts.st_size))


def first_line(text: str) -> str:
    """The beginning of a text, up to its first line end."""
    line = re.match(f"[^{LINE_ENDS}]*", text)
    assert line is not None  # it may be empty
    return line[0]


def split_lines(text: str, path: object) -> Iterator[str]:
    """The lines of a file's text, a block at a time: together they take far more memory than their text.
    Raises LimitError for too many, before the first.
    """
    at_most("text_lines", line_ends(text) + (text[-1:] not in LINE_ENDS), path)
    start = 0
    while start < len(text):
        last = LINE_END.search(text, start + BLOCK)
        end = last.end() if last else len(text)
        yield from text[start:end].splitlines()
        start = end


def line_ends(text: str) -> int:
    """How often a text's lines end."""
    return sum(map(text.count, LINE_ENDS)) - text.count("\r\n")


def text_bytes(texts: Iterable[str]) -> int:
    """The bytes of texts in UTF-8, which tokenizers take apart: an emoji has four."""
    return sum(len(text) if text.isascii() else len(text.encode(errors="surrogatepass")) for text in texts)


def require_few_marks(text: str, where: object) -> None:
    """Raise LimitError for many combining marks in a row: bringing them into their order takes the square of
    their number. Unicode's stream-safe texts (UAX #15) have 30.
    """
    most = limit("marks")
    # A longer row has one of these letters, and few texts have a mark there.
    if text.isascii() or _marks().isdisjoint(text[most :: most + 1]):
        return
    if many := _more_marks(most).search(text):
        at_most("marks", len(many[0]), where)


@cache
def _marks() -> frozenset[str]:
    combining = (letter for letter in map(chr, range(sys.maxunicode + 1)) if unicodedata.combining(letter))
    return frozenset([*combining, *OF_MARKS])


@cache
def _more_marks(most: int) -> re.Pattern[str]:
    """A row of more combining marks."""
    return re.compile(f"[{''.join(map(re.escape, sorted(_marks())))}]{{{most + 1},}}")


def require_plain(path: Path) -> None:
    """Raise ReadingError if the path exists but is not a regular file; OSError if it is not there."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ReadingError(path, "it is not a regular file")
