"""The bytes and the lines of a file: of a plain file only, and of no more bytes than a limit allows."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dear.errors import DataError
from dear.limits import at_most, limit

KINDS = (
    (stat.S_ISDIR, "it is a folder"), (stat.S_ISFIFO, "it is a pipe, no plain file"),
    (stat.S_ISCHR, "it is a device, no plain file"), (stat.S_ISBLK, "it is a device, no plain file"),
)  # fmt: skip


class ReadingError(DataError):
    """A file from outside that is not what it should be.

    Attributes:
        reason: what is wrong, without the file's name and without a full stop: for callers that say more.
        missing: whether there is no such file.
    """

    def __init__(self, where: object, reason: str, *, missing: bool = False) -> None:
        self.reason, self.missing = reason.rstrip("."), missing
        super().__init__(f"{where}: {self.reason}.")


def read_bytes(path: Path, most: str = "json_bytes") -> bytes:
    """All of a plain file of at most as many bytes as a limit, by its name, allows. Raises ReadingError,
    LimitError.
    """
    with opened(path) as file:
        at_most(most, os.fstat(file.fileno()).st_size, path)
        try:
            content = file.read(limit(most) + 1)  # it may have grown, and those of /proc say 0
        except OSError as error:
            raise ReadingError(path, _told(error)) from error
    at_most(most, len(content), path)
    return content


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A plain file, open to be read. Raises ReadingError for a folder, a pipe or a device, which it neither
    waits for nor reads from.
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer. Windows has no such flag and wants another.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        require_plain(path)
        file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115 (below)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise ReadingError(path, _told(error), missing=isinstance(error, FileNotFoundError)) from error
    with file:
        _plain(path, os.fstat(file.fileno()).st_mode)  # what was looked at may have been exchanged
        yield file


def require_plain(path: Path) -> None:
    """Raise ReadingError for what is there and is no plain file; OSError where it cannot be looked at."""
    _plain(path, os.stat(path).st_mode)


def read_text(path: Path, most: str = "text_bytes") -> str:
    """The text of a file in UTF-8, with or without a byte order mark. Raises ReadingError, LimitError."""
    return decoded(path, read_bytes(path, most))


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


def read_lines(path: Path) -> list[str]:
    """The lines of a text file. Raises ReadingError, LimitError."""
    lines = read_text(path).splitlines()
    at_most("text_lines", len(lines), path)
    return lines


def _plain(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ReadingError(
            path, next((said for is_one, said in KINDS if is_one(mode)), "it is no plain file")
        )


def _told(error: OSError | ValueError) -> str:
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
