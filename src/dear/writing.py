"""Files and folders, written whole or not at all."""

import csv
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, BinaryIO
from uuid import uuid4

from dear.errors import OutputError
from dear.text import printable

fcntl: Any = None
with suppress(ImportError):  # Windows has none
    fcntl = import_module("fcntl")

UNFINISHED = "unfinished"
"""The folder of checkpoints inside the output folder of a command."""
PART = ".dear.part"
"""The end of the name of what is being written: a killed process leaves it, and no one else makes it."""
FRESH = 60
"""Seconds for which a part is taken for one of a running process, whether it is locked or not."""
SIGN = r"['\s]*[=+\-@\uff1d\uff0b\uff0d\uff20]"
FORMULA = re.compile(rf"(^|[;\t\n])(?={SIGN})|^(?='*\t)")
"""Where a cell begins that a spreadsheet takes for a formula; it takes full-width signs too. An
apostrophe before it counts as its beginning, so that text with one is read again as it was.
"""
ESCAPED = re.compile(rf"(^|[;\t\n])'(?={SIGN})|^'(?='*\t)")
"""The apostrophes that `csv_text` writes there."""


@contextmanager
def atomic_write(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """A temporary file to write to, which replaces ``path`` at the end; its folder is created.

    On any error within, the temporary file is removed and an existing ``path`` stays unchanged. Of several
    processes that write the same file at the same time each writes a whole one, and the last one stays. Cache
    files are ``shared``: they need not survive a power loss. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not shared:
        _remove_abandoned(path)
    part = path.with_name(f"{path.name}.{uuid4().hex[:8]}{PART}")
    try:
        with part.open("xb") as file:
            _hold(file)
            yield file
            if not shared:
                _flush(file)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _hold(file: BinaryIO) -> bool:
    """Lock a part as long as it is open, so that no other process removes it. False if another one has it, or
    where files cannot be locked.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_abandoned(path: Path) -> None:
    """Remove the parts of a file that killed processes left: those that no process holds."""
    part_name = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(PART)}")
    with suppress(OSError):
        for name in filter(part_name.fullmatch, os.listdir(path.parent)):
            part = path.with_name(name)
            with suppress(OSError):
                # One that was created this moment may not be locked yet.
                if part.is_symlink() or time.time() - part.stat().st_mtime < FRESH:
                    continue
                with part.open("rb") as file:
                    is_abandoned = _hold(file)
                if is_abandoned:
                    part.unlink()


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """The name of a folder to create and write in, which is removed at the end, unless it was renamed."""
    try:
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:  # also a signal during the removal
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def writing(path: Path, what: str = "", advice: str = "with --out") -> Iterator[None]:
    """Context in which an OSError becomes an OutputError: ``what`` is written there, and by which ``advice``
    another place is chosen.
    """
    try:
        yield
    except OSError as error:
        reason, title = error.strerror or error, f"{what} {path}".strip()
        raise OutputError(f"cannot write {title}: {reason}. Choose another place {advice}.") from error


@contextmanager
def output_file(path: Path, what: str = "", advice: str = "with --out") -> Iterator[BinaryIO]:
    """`atomic_write` for a file that the user asked for. Raises OutputError as `writing`."""
    with writing(path, what, advice), atomic_write(path) as file:
        yield file


@contextmanager
def locked(path: Path, cache: Path, seconds: float = 0) -> Iterator[None]:
    """Context in which no other process of this machine, with the same cache folder, has ``path``. Raises
    OutputError if another one keeps it for these seconds. Without a cache folder that can be written nothing
    is locked.
    """
    from filelock import FileLock, Timeout

    name = sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:16]
    lock = FileLock(cache / "locks" / f"{name}.lock", timeout=seconds)
    try:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise OutputError(
            f"another process is writing {path}: wait until it is done, or choose another place with --out."
        ) from error
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.release()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON atomically. Raises OutputError."""
    text = json.dumps(value, indent=1)
    with output_file(path) as file:
        file.write(text.encode())


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder; if they do not all fit on the disk, it stays unchanged.

    A new folder appears whole. In an old one each file replaces that of its name once all are written, and
    others stay. Raises OSError.
    """
    folder = Path(os.path.realpath(folder))
    is_new = not folder.exists()
    with temporary_folder(_part_of_folder(folder.parent if is_new else folder, folder.name)) as part:
        shutil.rmtree(part, ignore_errors=True)  # of a killed process
        part.mkdir(parents=True)
        for name, content in files.items():
            with (part / name).open("wb") as file:
                file.write(content)
                _flush(file)
        if is_new:
            os.replace(part, folder)
        else:
            for name in files:
                os.replace(part / name, folder / name)


def output_folder(
    folder: Path, files: Mapping[str, bytes], what: str, advice: str = "with --out"
) -> tuple[Path, ...]:
    """`write_folder` for files that the user asked for; returns them. Raises OutputError as `writing`."""
    with writing(folder, what, advice):
        write_folder(folder, files)
    return tuple(folder / name for name in files)


def try_place(folder: Path) -> None:
    """Raise OSError if the folder cannot be written, as far as that can be checked beforehand."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with tempfile.TemporaryDirectory(dir=existing, prefix=".dear"):
        pass


def require_writable(path: Path, what: str = "", advice: str = "with --out", *, folder: bool = False) -> None:
    """Raise OutputError as `writing` for a file, or a ``folder``, that cannot be written, before its content
    is computed.
    """
    with writing(path, what, advice):
        if path.is_dir() and not folder:
            raise IsADirectoryError("it is a folder")
        try_place(path if folder else path.parent)


def make_folder(folder: Path, advice: str = "with --out") -> None:
    """Create a folder before what is written into it is computed. Raises OutputError as `writing`."""
    require_writable(folder, "to", advice, folder=True)
    folder.mkdir(parents=True, exist_ok=True)


def foreign_files(folder: Path) -> list[str]:
    """The names in a folder, except what an unfinished or killed command left there."""
    return sorted({*os.listdir(folder)} - {UNFINISHED, _part_of_folder(folder, folder.name).name})


def _part_of_folder(parent: Path, name: str) -> Path:
    """Where the files of a folder are written first."""
    return parent / f".{name}{PART}"


def csv_text(text: str) -> str:
    """Text that no spreadsheet takes for a formula: prefixed with an apostrophe if it looks like one, also
    after a semicolon, which separates cells in some languages. Control characters are escaped.
    """
    return FORMULA.sub(lambda start: f"{start[0]}'", printable(text, lines=True))


def read_csv_text(cell: str) -> str:
    """The text of a cell that `csv_text` wrote."""
    return ESCAPED.sub(lambda start: start[1] or "", cell)


@contextmanager
def csv_rows(file: IO[bytes]) -> Iterator[Any]:
    """A writer of CSV rows. Names of files keep their bytes; a mark at the start says that it is UTF-8."""
    text = TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
    yield csv.writer(text, lineterminator="\n")
    text.detach()


def csv_path(image: str, table: Path) -> str:
    """The file of an image as a table names it: from the table's folder on if it is below that, else whole.
    A name that is no file stays.
    """
    folder, path = os.path.dirname(os.path.abspath(table)), Path(os.path.abspath(image))
    if "://" in image:  # an address
        return csv_text(image)
    if image and path.is_relative_to(folder):
        image = path.relative_to(folder).as_posix()
    elif path.is_file():
        image = path.as_posix()
    # An apostrophe, which keeps spreadsheets from taking it for a formula, would be part of the path.
    return csv_text(image if csv_text(image) == image else f"./{image}")
