"""The image files of a folder, what changed since the last scan, and which files fall to a shard."""

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dear.data.images.decode import SUFFIXES
from dear.errors import DataError, SettingsError
from dear.reading.files import walk_folders


@dataclass(frozen=True)
class Stamp:
    """Shows without reading whether a file changed: size in bytes, modification time in nanoseconds modulo
    2^63, which any date fits in.
    """

    size: int
    mtime: int


@dataclass(frozen=True)
class Changes:
    """Relative paths, each list sorted."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, order=True)
class Shard:
    """A part of a folder's files: of ``count`` parts the ``number``-th, from 1, by the CRC-32 of the files'
    relative paths. A file stays in its shard whatever files come and go.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "3/8". Raises SettingsError."""
        if (match := re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)) and 1 <= int(match[1]) <= int(match[2]):
            return cls(int(match[1]), int(match[2]))
        raise SettingsError(f"shard {text!r}: give its number, from 1, and how many there are, such as 3/8.")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def folder(self, out: Path) -> Path:
        """The shard's folder in the folder of all shards."""
        return out / f"shard-{self.number}-of-{self.count}"

    def of(self, stamps: Mapping[str, Stamp]) -> dict[str, Stamp]:
        """The shard's files among all."""
        return {path: stamp for path, stamp in stamps.items() if self.has(path)}

    def has(self, path: str) -> bool:
        """True if a file belongs to the shard."""
        return zlib.crc32(os.fsencode(path)) % self.count == self.number - 1


def shards_in(out: Path) -> dict[Shard, Path]:
    """The shards in a folder, by the names that builds give them. Raises DataError if one is a link: whoever
    made the folder would choose what is read elsewhere.
    """
    number = r"([1-9][0-9]{0,5})"
    matches = (
        (re.fullmatch(rf"shard-{number}-of-{number}", path.name), path) for path in out.glob("shard-*-of-*")
    )
    shards = {Shard(int(match[1]), int(match[2])): path for match, path in matches if match}
    if links := [path for path in shards.values() if path.is_symlink()]:
        raise DataError(f"{links[0]} is a link, which is not followed: copy the shard there.")
    return shards


def scan(folder: Path, leave_out: Path | None = None) -> dict[str, Stamp]:
    """Image files below a folder by relative path, ignoring hidden files, links to folders and everything
    below ``leave_out``. Raises DataError.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give the folder that contains the images.")
    avoided = leave_out.resolve() if leave_out else None
    top, stamps = folder.resolve(), dict[str, Stamp]()
    for parent, folders, files in walk_folders(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and top / (parent / name).relative_to(folder) != avoided
        )
        for name in sorted(files):
            path = parent / name
            if name.startswith(".") or path.suffix.lower() not in SUFFIXES:
                continue
            if (stamp := stamp_of(path)) is not None:
                stamps[path.relative_to(folder).as_posix()] = stamp
    return stamps


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file; None if it is gone."""
    try:
        metadata = path.stat()
    except OSError:
        return None
    return Stamp(metadata.st_size, metadata.st_mtime_ns % 2**63)


def compare(before: Mapping[str, Stamp], now: Mapping[str, Stamp]) -> Changes:
    """The changes between two scans of a folder."""
    return Changes(
        added=tuple(sorted(now.keys() - before.keys())),
        changed=tuple(sorted(path for path in now.keys() & before.keys() if now[path] != before[path])),
        removed=tuple(sorted(before.keys() - now.keys())),
    )
