"""What is computed from the contents of image files, such as hashes, thumbnails and features. The cache
folder remembers it: an unchanged file is hashed once, and its features are computed once.
"""

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dear.data.images.decode import decode, read_image
from dear.data.images.forms import HASH_BYTES, file_hash, hash_bytes
from dear.data.images.photos import in_parallel
from dear.data.images.thumbnails import pack_thumbnail, thumbnail
from dear.data.images.video import file_of, split_frame
from dear.errors import DataError, warn
from dear.reading.remote import Address

FILE, FEATURES = "image-hashes.sqlite", "features.sqlite"
TABLE = "file_facts"
"""Of hashes and thumbnails; another name makes them anew."""
FEATURE_BYTES = 2 * 2**30
"""What the file of features may have; the oldest go first."""
SETTLED = 2 * 10**9
"""Nanoseconds after which a file that changes again has another time; that of FAT is the coarsest."""
VARIABLES_AT_ONCE = 500  # of SQLite's variables
BUSY = 60  # seconds to wait for another process that writes
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Stamp = bytes
"""What says that a file is the same as before: a hash of its path, size, times and inode."""


class FileFacts(NamedTuple):
    """What a reading of an image file says: the hash of its content, empty if it cannot be read; its
    thumbnail, empty if that was not asked for; and why it has none.
    """

    content: bytes
    thumbnail: bytes = b""
    fault: str = ""


def hash_files(paths: Sequence[Path], threads: int, cache: Path) -> list[bytes]:
    """BLAKE2b of the bytes of each file; empty for one that cannot be read. Remembered."""
    return [facts.content for facts in read_files(paths, threads, cache, decoded=False)]


def read_files(paths: Sequence[Path], threads: int, cache: Path, *, decoded: bool) -> list[FileFacts]:
    """The facts of each file, which is opened once; with ``decoded`` its thumbnail is among them. They are
    remembered in the folder ``cache``, if that can be written, unless the file has a fault. A file that was
    changed within the last two seconds is read again: the time of its next change may be the same.
    """
    stamps = [*map(_stamp, paths)]
    remembered = _recall(cache / FILE, [stamp for stamp in stamps if stamp], TABLE)
    known = {stamp: row for stamp, row in remembered.items() if len(row) > HASH_BYTES or not decoded}
    new = [number for number, stamp in enumerate(stamps) if stamp not in known]
    read = _read_and_decode if decoded else _read
    computed = dict(zip(new, in_parallel(lambda number: read(paths[number]), new, threads), strict=True))
    rows = {stamps[number]: facts.content + facts.thumbnail for number, facts in computed.items()}
    if settled := {stamp: row for stamp, row in rows.items() if stamp and row}:
        _remember(cache / FILE, settled, TABLE)
    facts = {
        stamp: FileFacts(row[:HASH_BYTES], row[HASH_BYTES:] if decoded else b"")
        for stamp, row in known.items()
    }
    return [computed[number] if number in computed else facts[stamp] for number, stamp in enumerate(stamps)]


def recall_features(cache: Path, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """What is remembered of images by these keys in the folder ``cache``."""
    return _recall(cache / FEATURES, keys, "features")


def remember_features(cache: Path, contents: Mapping[bytes, bytes]) -> bool:
    """Remember what was computed of images. False if the folder ``cache`` cannot be written."""
    return _remember(cache / FEATURES, contents, "features", FEATURE_BYTES)


def _read(path: Path) -> FileFacts:
    """The facts of a file of any size, without a thumbnail."""
    if isinstance(path, Address):  # one that is too large is not fetched to be hashed
        with suppress(DataError):
            return FileFacts(hash_bytes(read_image(path)))
    if split_frame(path):
        with suppress(DataError):
            return FileFacts(file_hash(path))
        return FileFacts(b"")
    with suppress(OSError), path.open("rb") as file:
        return FileFacts(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=HASH_BYTES)).digest())
    return FileFacts(b"")


def _read_and_decode(path: Path) -> FileFacts:
    # For a name that no file can have, Path.is_file is an error.
    if not (isinstance(path, Address) or os.path.isfile(file_of(path))):
        return FileFacts(b"", fault=f"the image {path} does not exist")
    try:
        content = read_image(path)
    except DataError as error:  # it is empty or too large: its content still has a hash
        return _read(path)._replace(fault=str(error))
    try:
        pixels = pack_thumbnail(thumbnail(decode(path, data=content, coarse=True)))
        return FileFacts(hash_bytes(content), pixels)
    except DataError as error:
        return FileFacts(hash_bytes(content), fault=str(error))


def _stamp(path: Path) -> Stamp:
    """The stamp of a file; empty if it was changed just now, is missing or at an address: not remembered."""
    if isinstance(path, Address):
        return b""
    try:
        status = file_of(path).stat()
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
        with _replaced_if_damaged(file), closing(sqlite3.connect(file, BUSY)) as database:
            for start in range(0, len(stamps), VARIABLES_AT_ONCE):
                part = stamps[start : start + VARIABLES_AT_ONCE]
                marks = ",".join("?" * len(part))
                known |= database.execute(f"SELECT * FROM {table} WHERE stamp IN ({marks})", part).fetchall()
    return known


def _remember(file: Path, contents: Mapping[Stamp, bytes], table: str, most_bytes: int | None = None) -> bool:
    """Remember contents; beyond ``most_bytes`` the oldest are forgotten. False if they cannot be written."""
    with _replaced_if_damaged(file), suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file, BUSY)) as database, database:
            database.execute("PRAGMA synchronous = OFF")  # a kill leaves it whole, a power failure may not
            database.execute(f"CREATE TABLE IF NOT EXISTS {table} (stamp BLOB PRIMARY KEY, content BLOB)")
            database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", contents.items())
            if most_bytes is not None:
                _forget_oldest(database, table, most_bytes)
        return True
    return False


def _forget_oldest(database: sqlite3.Connection, table: str, most_bytes: int) -> None:
    """Remove the oldest rows until the others take ``most_bytes``. Their pages are used again."""
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    excess, last = (pages - free) * size - most_bytes, 0
    if excess > 0:
        for row, length in database.execute(f"SELECT rowid, length(content) FROM {table} ORDER BY rowid"):
            excess, last = excess - length, row
            if excess <= 0:
                break
        database.execute(f"DELETE FROM {table} WHERE rowid <= ?", (last,))


@contextmanager
def _replaced_if_damaged(file: Path) -> Iterator[None]:
    """Context in which what SQLite cannot do is left: it is computed again. A damaged file is removed."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) in DAMAGED:
            warn(f"{file} is damaged: it is removed, and what it had is computed again")
            for part in (file, file.with_name(f"{file.name}-journal")):
                with suppress(OSError):
                    part.unlink(missing_ok=True)
