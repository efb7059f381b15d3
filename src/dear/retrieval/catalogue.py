"""The files of an index and their rows, in one SQLite file: every change is whole or not there at all."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Bool

from dear.errors import DataError, OutputError
from dear.retrieval.scan import Stamp

FILE = "index.sqlite"
SCHEMA = 1
TABLES = """
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime INTEGER NOT NULL,
    sha256 TEXT, row INTEGER, reason TEXT
);
CREATE INDEX IF NOT EXISTS by_content ON files (sha256);
CREATE INDEX IF NOT EXISTS by_row ON files (row);
"""


class Entry(NamedTuple):
    """A file: its row of vectors, or the reason why it has none. Copies of one content share a row."""

    path: str
    stamp: Stamp
    sha256: str | None
    row: int | None
    reason: str | None = None


class Catalogue:
    """Facts about an index (what it was made with, how many rows it has) and its files."""

    def __init__(self, folder: Path, database: sqlite3.Connection) -> None:
        self.folder, self.database = folder, database

    @classmethod
    def create(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """A new catalogue with its first facts. Raises OutputError."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            database = _connect(folder / FILE)
            database.executescript(TABLES)
        except (OSError, sqlite3.Error) as error:
            raise OutputError(f"cannot write an index to {folder}: {error}. Choose another place.") from error
        made = cls(folder, database)
        with made.change():
            made.set(**{"schema": SCHEMA, "rows": 0, "generation": 1} | dict(facts))
        return made

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Raises DataError if there is none, or one of another schema."""
        if not (folder / FILE).is_file():
            raise DataError(f"{folder} is no index of images: `dear index build` makes one.")
        try:
            found = cls(folder, _connect(folder / FILE))
            schema = found.facts().get("schema")
        except sqlite3.Error as error:
            raise DataError(f"the index {folder} is damaged ({error}): build it again elsewhere.") from error
        if schema != SCHEMA:
            raise DataError(
                f"the index {folder} has schema {schema}, this version reads {SCHEMA}: build it again."
            )
        return found

    def close(self) -> None:
        self.database.close()

    @contextmanager
    def change(self) -> Iterator[None]:
        """What is done within becomes visible at once at its end, or never. Raises OutputError."""
        try:
            with self.database:
                self.database.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.Error as error:
            raise OutputError(f"cannot change the index {self.folder}: {error}.") from error

    def facts(self) -> dict[str, Any]:
        return {key: json.loads(value) for key, value in self.database.execute("SELECT * FROM facts")}

    def set(self, **facts: Any) -> None:
        self.database.executemany(
            "INSERT OR REPLACE INTO facts VALUES (?, ?)", [(k, json.dumps(v)) for k, v in facts.items()]
        )

    def stamps(self) -> dict[str, Stamp]:
        """All files that were looked at, those that could not be read too."""
        rows = self.database.execute("SELECT path, size, mtime FROM files")
        return {path: Stamp(size, mtime) for path, size, mtime in rows}

    def broken(self) -> dict[str, str]:
        """Files that could not be read: path and reason."""
        return dict(self.database.execute("SELECT path, reason FROM files WHERE row IS NULL ORDER BY path"))

    def row_of(self, sha256: str) -> int | None:
        """The row of a content, if a file has it."""
        found = self.database.execute(
            "SELECT row FROM files WHERE sha256 = ? AND row IS NOT NULL LIMIT 1", (sha256,)
        ).fetchone()
        return None if found is None else int(found[0])

    def paths_of(self, row: int) -> list[str]:
        return [
            path
            for (path,) in self.database.execute("SELECT path FROM files WHERE row = ? ORDER BY path", (row,))
        ]

    def live(self, rows: int) -> Bool[np.ndarray, "row"]:
        """Which of so many rows belong to a file."""
        alive = np.zeros(rows, dtype=bool)
        for (row,) in self.database.execute("SELECT DISTINCT row FROM files WHERE row < ?", (rows,)):
            alive[row] = True
        return alive

    def put(self, entries: Iterable[Entry]) -> None:
        self.database.executemany(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)",
            [(e.path, e.stamp.size, e.stamp.mtime, e.sha256, e.row, e.reason) for e in entries],
        )

    def remove(self, paths: Sequence[str]) -> None:
        self.database.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in paths])

    def renumber(self, kept: Iterable[int]) -> None:
        """Rows become their places in ``kept``, in which each row of a file stands."""
        self.database.execute("CREATE TEMP TABLE places (old INTEGER PRIMARY KEY, new INTEGER)")
        self.database.executemany(
            "INSERT INTO places VALUES (?, ?)", ((old, new) for new, old in enumerate(kept))
        )
        self.database.execute(
            "UPDATE files SET row = (SELECT new FROM places WHERE old = row) WHERE row IS NOT NULL"
        )
        self.database.execute("DROP TABLE places")


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep a second `dear index build` out; the lock ends with the process. Raises OutputError."""
    with closing(sqlite3.connect(folder / "lock.sqlite", timeout=0, isolation_level=None)) as lock:
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            taken = "locked" in str(error)
            why = "another process is writing it, wait for its end" if taken else str(error)
            raise OutputError(f"cannot change the index {folder}: {why}.") from error
        yield


def _connect(path: Path) -> sqlite3.Connection:
    # Transactions are begun in `change` alone; a server reads from more than one thread, each in turn.
    return sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
