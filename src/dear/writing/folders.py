"""Folders whose files belong together, written whole or not at all."""

import ctypes
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

LIST = ".files"
"""The name of a file that lists the others written with it, one a line: the next writing may remove those."""
HERE, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is made: where there is no room for all, it stays as it was.

    A folder of nothing but these files, and those that its list names, is exchanged for the new one in one
    step: whenever the process is killed, it is the old or the new one. In a folder of other things, or
    where there is no such step (another system than Linux, a closed folder or another disk above), the files
    are replaced one after the other once all are written. Raises OSError.
    """
    folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in (folder.parent, folder):  # by one that was killed
        shutil.rmtree(left / _name(folder), ignore_errors=True)
    part = _part(folder)
    try:
        part.mkdir()
        for name, content in files.items():
            with (part / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if not folder.exists():
            part.rename(folder)
        elif part.parent == folder or not (_is_of(folder, files) and _exchanged(part, folder)):
            for name in files:
                os.replace(part / name, folder / name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def try_place(folder: Path) -> None:
    """Raise OSError where no folder can be written, as far as that can be told before."""
    above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    probe = above / _name(folder)
    probe.mkdir(exist_ok=True)
    with suppress(OSError):  # another process has made it, and writes
        probe.rmdir()


def others(folder: Path) -> list[str]:
    """The names in a folder, but for what a killed writing left."""
    return sorted({*os.listdir(folder)} - {_name(folder)})


def _part(folder: Path) -> Path:
    """Where the files are written first: beside the folder, or in it where only that can be."""
    above = folder.parent
    beside = not folder.exists() or (
        os.access(above, os.W_OK | os.X_OK) and above.stat().st_dev == folder.stat().st_dev
    )
    return (above if beside else folder) / _name(folder)


def _name(folder: Path) -> str:
    return f".{folder.name}.part"


def _is_of(folder: Path, files: Iterable[str]) -> bool:
    """Whether there is nothing in a folder but files that are to be written, or were."""
    listed = folder / LIST
    before = listed.read_text(encoding="utf-8", errors="replace").splitlines() if listed.is_file() else []
    known = {*files, *before, LIST}
    return all(name in known and (folder / name).is_file() for name in others(folder))


def _exchanged(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; False where the system or the disk has none."""
    shutil.copymode(other, one)
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and not rename(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE)
