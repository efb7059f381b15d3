"""Files and folders, written whole or not at all."""

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from dear.errors import OutputError

LIST = ".files"
"""The name of a file that lists the files written with it, a line of SHA-256 and name for each: the next
write may remove those."""
UNFINISHED = "unfinished"
"""The folder of checkpoints inside the output folder of a command."""
PART = ".dear.part"
"""The end of the name of what is being written: a killed process leaves it, and no one else makes it."""
CHECKPOINT = re.compile(rf"\.pt({re.escape(PART)}|\.damaged\d*)?$")
"""The end of the names in it."""
CHECKPOINT_MARK = b"dear checkpoint "
"""The first bytes of one."""
LONGEST_LIST, LARGEST_LISTED = 2**20, 2**28  # bytes of the list, and of a file that is compared with it
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux


@contextmanager
def atomic_write(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """A temporary file to write to, which replaces ``path`` at the end; its folder is created.

    On any error within, the temporary file is removed and an existing ``path`` stays unchanged. Cache files
    are ``shared``: other processes may write the same one at the same time, and it need not survive a power
    loss. Raises OSError.
    """
    # A killed process leaves at most one temporary file, which the next one replaces; not so if shared.
    part = path.with_name(f"{path.name}.{uuid4().hex[:8]}{PART}") if shared else part_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.unlink(missing_ok=True)  # a link would be written through
        with part.open("xb") as file:
            yield file
            if not shared:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


@contextmanager
def opened_plain(path: Path) -> Iterator[BinaryIO]:
    """A regular file, made if it is missing, to be changed where it is. Raises OSError for a link, also in a
    folder that cannot be listed, and for a pipe or a device, without waiting for it.
    """
    if path.parent.is_symlink() or path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, or lies behind one", str(path))
    wanted = ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")  # some systems lack some
    flags = os.O_RDWR | os.O_CREAT | sum(getattr(os, name, 0) for name in wanted)
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with os.fdopen(descriptor, "r+b") as file:
        yield file


def part_of(path: Path) -> Path:
    """The temporary file that becomes a file once it is whole."""
    return path.with_name(f"{path.name}{PART}")


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """The name of a folder to create and write in, which is removed at the end, unless it was renamed."""
    try:
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:  # also a signal during the removal
        shutil.rmtree(folder, ignore_errors=True)
        raise


def within(folder: Path, name: str, option: str = "--out") -> Path:
    """The path of a subfolder to write to. Raises OutputError for a file, and for a link: whoever made the
    folder would choose what is overwritten elsewhere. The folder itself, which the user names, may be one.
    """
    path = folder / name
    if path.is_symlink():
        raise OutputError(f"{path} is a link, which is not followed: remove it, or choose another {option}.")
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path} is not a folder: remove it, or choose another {option}.")
    return path


def first_link(path: Path) -> Path | None:
    """The first part of a path that is a link, if there is one. Raises OSError for too long a name."""
    return next((part for part in reversed((path, *path.parents)) if part.is_symlink()), None)


def default_output(name: str) -> Path:
    """A file or folder in the current folder, to write to if the user names no other. Raises OutputError if
    it is a link or lies behind one: whoever made the current folder would choose what is overwritten
    elsewhere.
    """
    path = Path(name)
    if (link := first_link(path)) is not None:
        raise OutputError(
            f"{link} is a link, which is not followed: name the place yourself, with --out (in Python out=)."
        )
    return path


@contextmanager
def output_file(path: Path, what: str = "", advice: str = "with --out") -> Iterator[BinaryIO]:
    """`atomic_write` for a file that the user asked for: an OSError becomes an OutputError that says ``what``
    the file is and how to choose another place (``advice``).
    """
    try:
        with atomic_write(path) as file:
            yield file
    except OSError as error:
        title = f"{what} {path}".strip()
        raise OutputError(f"cannot write {title}: {error}. Choose another place {advice}.") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON atomically. Raises OutputError."""
    text = json.dumps(value, indent=1)
    with output_file(path) as file:
        file.write(text.encode())


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is created; if they do not all fit on the disk, it stays unchanged.

    A folder that holds only these files and those in its list is exchanged for the new one atomically: if the
    process is killed, it is either the old or the new one. If it holds other files or is the current folder
    or one above it, or if an exchange is impossible (not Linux, or a parent folder that is read-only or on
    another disk), the files are replaced one by one once all are written. Raises OSError.
    """
    folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    for parent in (folder.parent, folder):  # a killed process leaves one
        shutil.rmtree(parent / _name(folder), ignore_errors=True)
    with temporary_folder(_part(folder)) as part:
        part.mkdir()
        for name, content in files.items():
            with (part / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if not folder.exists():
            part.rename(folder)
        elif part.parent == folder or not (_is_replaceable(folder, files) and _exchanged(part, folder)):
            for name in files:
                os.replace(part / name, folder / name)


def output_folder(folder: Path, files: Mapping[str, bytes], what: str, advice: str) -> tuple[Path, ...]:
    """`write_folder` for files that the user asked for, with their list; returns them. An OSError becomes an
    OutputError that says ``what`` they are and how to choose another place (``advice``).
    """
    try:
        lines = [f"{hashlib.sha256(content).hexdigest()} {name}" for name, content in files.items()]
        write_folder(folder, {**files, LIST: "\n".join(lines).encode()})
    except OSError as error:
        raise OutputError(f"cannot write {what} to {folder}: {error.strerror or error}; {advice}") from error
    return tuple(folder / name for name in files)


def try_place(folder: Path) -> None:
    """Raise OSError if the folder cannot be written, as far as that can be checked beforehand."""
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    probe = above / _name(folder)
    try:
        probe.mkdir(exist_ok=True)
        _remove_if_empty(probe)
    except BaseException:  # also a signal
        _remove_if_empty(probe)
        raise


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # another process created it and is writing
        folder.rmdir()


def others(folder: Path) -> list[str]:
    """The names in a folder, except what a killed process left: a folder of files that are called as
    checkpoints, with nothing else.
    """
    names = {*os.listdir(folder)} - {_name(folder)}
    if all(CHECKPOINT.search(path.name) and path.is_file() for path in _unfinished(folder)):
        names.discard(UNFINISHED)
    return sorted(names)


def _unfinished(folder: Path) -> list[Path]:
    """What is in its folder of checkpoints; that itself if it is none."""
    inside = folder / UNFINISHED
    return [*inside.iterdir()] if inside.is_dir() else [inside] if os.path.lexists(inside) else []


def _is_checkpoint(path: Path) -> bool:
    """True for a file that a training wrote, by its first bytes, or has begun to write."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return path.name.endswith(PART) or file.read(len(CHECKPOINT_MARK)) == CHECKPOINT_MARK


def _part(folder: Path) -> Path:
    """Where the files are written first: beside the folder, or in it if that is the only possibility."""
    above = folder.parent
    beside = not folder.exists() or (
        os.access(above, os.W_OK | os.X_OK) and above.stat().st_dev == folder.stat().st_dev
    )
    return (above if beside else folder) / _name(folder)


def _name(folder: Path) -> str:
    return f".{folder.name}{PART}"


def _is_replaceable(folder: Path, files: Iterable[str]) -> bool:
    """True if a folder holds only files that are about to be written or are in its list with their content.
    Another file is not of it, whatever a stranger's list names.
    """
    with suppress(FileNotFoundError):  # the current folder may be gone
        if Path.cwd().is_relative_to(folder):  # the user's shell would be in a folder that is removed
            return False
    listed, digests = folder / LIST, dict[str, str]()
    if listed.is_file() and not listed.is_symlink():
        with listed.open(encoding="utf-8", errors="replace") as file:
            for line in file.read(LONGEST_LIST).splitlines():
                digest, _, name = line.partition(" ")
                digests[name] = digest
    new = {*files, LIST}
    return all(map(_is_checkpoint, _unfinished(folder))) and all(
        (folder / name).is_file() and (name in new or _is_listed(folder / name, digests.get(name)))
        for name in others(folder)
    )


def _is_listed(path: Path, digest: str | None) -> bool:
    if digest is None or path.stat().st_size > LARGEST_LISTED:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


def _exchanged(part: Path, folder: Path) -> bool:
    """Exchange two folders atomically; False if the system or the disk does not support it."""
    shutil.copymode(folder, part)
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return not rename(AT_FDCWD, os.fsencode(part), AT_FDCWD, os.fsencode(folder), RENAME_EXCHANGE)
