"""The content of files, with errors that name the file and say what is wrong; the folders below a folder."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dear.errors import DataError
from dear.limits import limit, require_at_most
from dear.reading.remote import Address, as_path, is_address
from dear.reading.remote import ReadingError as ReadingError

CORRECTIONS = "corrections.csv"
"""The table of corrections beside data (`dear.data.sources.corrections`)."""
PASSED_OVER = frozenset([
    CORRECTIONS,
    "#recycle", "#snapshot", "$recycle.bin", "@eadir", "@recycle", "@tmp", "__macosx", "__pycache__",
    "desktop.ini", "lost+found", "system volume information", "thumbs.db",
])  # fmt: skip
"""Corrections, and what systems leave beside data, such as a NAS its thumbnails; in lower case."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, opened for reading. Raises ReadingError, also for a pipe, without waiting for it."""
    try:
        if not isinstance(path, Address) and path.exists() and not path.is_file():
            raise ReadingError(path, "it is a folder" if path.is_dir() else "it is not a regular file")
        file = path.open("rb")
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ReadingError(path, reason, missing=isinstance(error, FileNotFoundError)) from error
    with file:
        yield file


def read_bytes(path: Path, size_limit: str | None = None) -> bytes:
    """The content of a file, whose size has a limit of this name. Raises ReadingError, LimitError."""
    if isinstance(path, Address):
        return _fetch(path, size_limit or "remote_bytes")
    with opened(path) as file:
        if size_limit is not None:
            require_at_most(size_limit, os.fstat(file.fileno()).st_size, path)
        return file.read()


def _fetch(address: Address, size_limit: str) -> bytes:
    """The content of a file that is not here, of which no more than its limit is taken."""
    try:
        content = address.fetch(limit(size_limit) + 1)
    except FileNotFoundError as error:
        raise ReadingError(address, "No such file", missing=True) from error
    require_at_most(size_limit, len(content), address)
    return content


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, with or without a byte order mark. Raises ReadingError."""
    return decoded(path, read_bytes(path))


def read_lines(path: Path) -> list[str]:
    """The lines of a text file. Raises ReadingError."""
    return read_text(path).splitlines()


def decoded(path: object, content: bytes) -> str:
    """Bytes in UTF-8 as text, without a byte order mark. Raises ReadingError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"it is not in UTF-8 (byte {error.start}): save it in UTF-8, as `iconv -t UTF-8` does"
        raise ReadingError(path, reason) from error


def file_size(path: Path) -> int | None:
    """Bytes of a regular file; None if there is none of this name. Raises ReadingError if that is unknown."""
    try:
        status = path.stat()
    except PermissionError as error:
        raise ReadingError(path, "no permission to read it") from error
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def expanded(path: str | Path) -> Path:
    """A path with ~ or ~NAME at its beginning replaced by a user's folder, or an address. Raises ReadingError
    for an unknown user, DataError for an address that is not read.
    """
    if is_address(path):
        return as_path(path)
    text = os.path.expanduser(path)
    if text.startswith("~"):
        raise ReadingError(path, "no user has the name after ~: give the full path")
    return Path(text)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """True for a folder, here or at an address; false for a name that no file can have."""
    return as_path(path).is_dir() if is_address(path) else os.path.isdir(path)


def is_file(path: str | os.PathLike[str]) -> bool:
    """True for a file, here or at an address; false for a name that no file can have."""
    return as_path(path).is_file() if is_address(path) else os.path.isfile(path)


def whole_path(path: Path) -> str:
    """A path from the root, without links being followed, or an address."""
    return str(path) if isinstance(path, Address) else os.path.abspath(path)


def is_passed_over(name: str) -> bool:
    """True for the name of a folder or file that is no data: hidden, or in `PASSED_OVER`."""
    return name.startswith(".") or name.casefold() in PASSED_OVER


def walk_folders(
    top: Path, *, follow: bool = False, passed_over: list[Path] | None = None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """`os.walk` without what `is_passed_over`, which is added to that list; into links too with ``follow``.
    Raises DataError for a folder that cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise DataError(f"cannot read the folder {error.filename}: {error.strerror}.") from error

    walk = top.walk_tree() if isinstance(top, Address) else os.walk(top, onerror=refuse, followlinks=follow)
    for parent, folders, files in walk:
        folder = as_path(parent)
        if passed_over is not None:
            passed_over += [folder / name for name in (*folders, *files) if is_passed_over(name)]
        folders[:] = [name for name in folders if not is_passed_over(name)]
        yield folder, folders, [name for name in files if not is_passed_over(name)]
