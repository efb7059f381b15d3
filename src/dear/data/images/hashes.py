"""What is computed of the contents of image files, such as their hashes and features, remembered in the cache
folder: unchanged files are read once.
"""

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from dear.data.images.photos import HASH_BYTES, in_parallel

FILE, FEATURES = "image-hashes.sqlite", "features.sqlite"
FEATURE_BYTES = 2 * 2**30
"""What the file of features may have; the oldest go first."""
SETTLED = 2 * 10**9
"""Nanoseconds after which a file that changes again has another time; that of FAT is the coarsest."""
VARIABLES_AT_ONCE = 500  # of SQLite's variables

Stamp = bytes
"""What says that a file is the same as before: a hash of its path, size, times and inode."""


def hash_files(paths: Sequence[Path], threads: int, cache: Path) -> list[bytes]:
    """BLAKE2b of the bytes of each file; empty for one that cannot be read. Remembered."""
    return read_once(paths, _hash_file, threads, cache, "hashes")


def read_once(
    paths: Sequence[Path], compute: Callable[[Path], bytes], threads: int, cache: Path, table: str
) -> list[bytes]:
    """What ``compute`` makes of each file, remembered in a table of a file in the folder ``cache``, if that
    can be written; what is empty is not remembered. A file that was changed within the last two seconds is
    read again: the time of its next change may be the same.
    """
    stamps = [*map(_stamp, paths)]
    known = _recall(cache / FILE, [stamp for stamp in stamps if stamp], table)
    new = [number for number, stamp in enumerate(stamps) if stamp not in known]
    computed = dict(zip(new, in_parallel(lambda number: compute(paths[number]), new, threads), strict=True))
    remembered = {stamp: computed[number] for number in new if (stamp := stamps[number]) and computed[number]}
    if remembered:
        _remember(cache / FILE, remembered, table)
    return [computed[number] if number in computed else known[stamp] for number, stamp in enumerate(stamps)]


def recall_features(cache: Path, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """What is remembered of images by these keys in the folder ``cache``."""
    return _recall(cache / FEATURES, keys, "features")


def remember_features(cache: Path, contents: dict[bytes, bytes]) -> None:
    """Remember what was computed of images, if the folder ``cache`` can be written."""
    _remember(cache / FEATURES, contents, "features", FEATURE_BYTES)


def _hash_file(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=HASH_BYTES)).digest()
    return b""


def _stamp(path: Path) -> Stamp:
    """The stamp of a file; empty if it was changed just now, or is missing."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return b""
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < SETTLED:
        return b""
    numbers = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    facts = os.fsencode(os.path.abspath(path)), *(str(number).encode() for number in numbers)
    return hashlib.blake2b(b"\0".join(facts), digest_size=16).digest()


def _recall(file: Path, stamps: Sequence[Stamp], table: str) -> dict[Stamp, bytes]:
    """What is remembered of these stamps."""
    known = dict[Stamp, bytes]()
    if file.is_file():
        with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as database:
            for start in range(0, len(stamps), VARIABLES_AT_ONCE):
                part = stamps[start : start + VARIABLES_AT_ONCE]
                marks = ",".join("?" * len(part))
                known |= database.execute(f"SELECT * FROM {table} WHERE stamp IN ({marks})", part).fetchall()
    return known


def _remember(file: Path, contents: dict[Stamp, bytes], table: str, most_bytes: int | None = None) -> None:
    with suppress(OSError, sqlite3.Error):  # without a cache they are computed again
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(f"CREATE TABLE IF NOT EXISTS {table} (stamp BLOB PRIMARY KEY, content BLOB)")
            database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", contents.items())
            if most_bytes is not None and file.stat().st_size > most_bytes:
                oldest = f"SELECT rowid FROM {table} ORDER BY rowid LIMIT ?"
                database.execute(f"DELETE FROM {table} WHERE rowid IN ({oldest})", (len(contents),))
