"""What an index keeps on the disk: facts and files in SQLite, a file of float16 rows for each feature.

A build writes vectors first, then their files in one transaction: what is committed is always whole. Names of
files are stored as their bytes, which need not be UTF-8.
"""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dear.errors import DataError, OutputError

FILE, LOCK, SCHEMA = "index.sqlite", "lock.sqlite", 4
TABLES = """
    CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE files (
        path BLOB PRIMARY KEY, size INTEGER, mtime INTEGER, sha256 TEXT, row INTEGER, reason TEXT
    );
    CREATE INDEX by_content ON files (sha256);
    CREATE INDEX by_row ON files (row, path);
"""
SET_FACT = "INSERT OR REPLACE INTO facts VALUES (?, ?)"
OF_MODEL = ("identity", "features", "embed", "folder")
"""Facts that no build of an index changes."""
AT_ONCE = 2**21  # numbers of rows in float32 that are compared at a time: 4,096 rows of 512
DEAD_SHARE = 0.2  # share of unused rows at which they are removed
TOLERANCE = 0.05  # for the length of a stored float16 unit vector

Stamp = tuple[int, int]
"""Shows without reading whether a file changed: size in bytes, modification time in nanoseconds."""


class Entry(NamedTuple):
    """A file: its row of vectors, or the reason why it has none. Files with the same content share a row."""

    path: str
    stamp: Stamp
    sha256: str | None = None
    row: int | None = None
    reason: str | None = None


def similarity(
    rows: Float[Tensor, "row embed"], lengths: Float[Tensor, "row"], query: Float[Tensor, "embed"]
) -> Float[Tensor, "row"]:
    """The score of rows for a unit query, the larger the nearer: their cosine. ``lengths`` are those of the
    rows, which are 1 but for the rounding to float16. The rows are overwritten.
    """
    # Not ``rows @ query``, whose rounding depends on a row's place: equal vectors must have equal scores.
    return rows.mul_(query).sum(dim=1) / lengths


class Store:
    """The facts, files and vectors in a folder: those of an index or of one of its shards.

    Attributes:
        metadata: The facts: how the index was made, how many ``rows`` it has, the ``generation`` of its
            vectors, and whether a build has ``completed``.
        live: Which rows belong to a file.
        vectors: The rows of each feature, memory-mapped.
    """

    def __init__(self, folder: Path) -> None:
        """Raises DataError if there is no index, or it is damaged or of another version."""
        if not self.exists(folder):
            raise DataError(f"{folder} is not an index of images: `dear index build` makes one.")
        self.folder = folder
        self.metadata: dict[str, Any] = {}
        self._state: tuple[object, ...] = ()
        with self.reading():
            pass

    @staticmethod
    def exists(folder: Path) -> bool:
        """True if there is a store, possibly a damaged one."""
        return (folder / FILE).exists()

    @classmethod
    @contextmanager
    def writing(cls, folder: Path, metadata: Mapping[str, Any]) -> Iterator["Store"]:
        """Context of a build, one at a time: the store in a folder, made with these facts if there is none.
        Raises OutputError.
        """
        facts = {"schema": SCHEMA, "rows": 0, "generation": 1, "completed": False, **metadata}
        part = folder / f"{FILE}.part"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)
            lock.execute("BEGIN EXCLUSIVE")  # until the process ends, however it does
            if not cls.exists(folder):
                part.unlink(missing_ok=True)
                with closing(sqlite3.connect(part)) as database, database:
                    database.executescript(TABLES)
                    database.executemany(SET_FACT, [(key, json.dumps(fact)) for key, fact in facts.items()])
                part.replace(folder / FILE)
        except (OSError, sqlite3.Error) as error:
            why = "another process is writing it, wait for it to finish" if "locked" in str(error) else error
            raise OutputError(f"cannot write the index {folder}: {why}.") from error
        with closing(lock), closing(cls(folder)) as store:
            yield store

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Context in which the store is as the last commit left it, and no build changes it. Raises DataError
        for one that is damaged, was removed, or was replaced by one of another model or folder.
        """
        try:
            status = (self.folder / FILE).stat()
            if self._state[:2] != (file := (status.st_ino, status.st_mtime_ns)):
                if self._state:
                    self.close()
                # A server reads from several threads, one at a time.
                self.database = sqlite3.connect(
                    self.folder / FILE, timeout=30, isolation_level=None, check_same_thread=False
                )
            with self.database:
                self.database.execute("BEGIN")
                state = (*file, *self.ask("PRAGMA data_version").fetchone())
                if state != self._state:
                    self._state = ()
                    self._load()
                    self._state = state
                yield
        except FileNotFoundError as error:
            raise DataError(f"the index {self.folder} is no longer there: build it again.") from error
        except (OSError, sqlite3.OperationalError) as error:  # locked, no permission, too many open files
            raise DataError(f"cannot read the index {self.folder}: {error}. Try again soon.") from error
        except sqlite3.DatabaseError as error:
            raise self.damaged(error) from error

    @contextmanager
    def change(self) -> Iterator[None]:
        """Context of a transaction: its changes become visible together at the end. Raises OutputError."""
        try:
            with self.database:
                self.database.execute("BEGIN IMMEDIATE")
                yield
        except (OSError, sqlite3.Error) as error:  # locked, no permission, disk full
            raise OutputError(f"cannot change the index {self.folder}: {error}.") from error

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def _load(self) -> None:
        try:
            facts = {key: json.loads(fact) for key, fact in self.ask("SELECT key, value FROM facts")}
            if facts["schema"] != SCHEMA:
                raise DataError(
                    f"the index {self.folder} was made by another version of dear: remove it and run "
                    "`dear index build` again."
                )
            if self.metadata and any(facts[key] != self.metadata[key] for key in OF_MODEL):
                raise DataError(f"the index {self.folder} was replaced by another: open it again.")
            self.metadata = facts
            self.vectors = {
                feature: np.memmap(self._path(feature), "<f2", "c", shape=(self.rows, facts["embed"]))
                for feature in facts["features"]
                if self.rows
            }
            self._lengths = dict[str, Float[Tensor, "row"]]()
            self.live: Bool[np.ndarray, row] = np.zeros(self.rows, dtype=bool)
            for (row,) in self.ask("SELECT DISTINCT row FROM files WHERE row IS NOT NULL"):
                self.live[row] = True
        except (IndexError, KeyError, ValueError, FileNotFoundError) as error:
            raise self.damaged(error) from error

    @property
    def rows(self) -> int:
        """The number of rows, including those of removed files."""
        return int(self.metadata["rows"])

    def damaged(self, why: object) -> DataError:
        """The error for a store that a build cannot repair."""
        return DataError(
            f"the index {self.folder} is damaged ({why}): remove it and run `dear index build` again."
        )

    def ask(self, question: str, *values: object) -> sqlite3.Cursor:
        """Ask the database."""
        return self.database.execute(question, values)

    def set(self, **metadata: Any) -> None:
        """Change facts."""
        self.database.executemany(SET_FACT, [(key, json.dumps(fact)) for key, fact in metadata.items()])
        self.metadata |= metadata

    def stamps(self) -> dict[str, Stamp]:
        """All files, including unreadable ones."""
        files = self.ask("SELECT path, size, mtime FROM files")
        return {os.fsdecode(name): (size, mtime) for name, size, mtime in files}

    def broken(self) -> dict[str, str]:
        """Unreadable files: path and reason."""
        files = self.ask("SELECT path, reason FROM files WHERE row IS NULL ORDER BY path")
        return {os.fsdecode(name): reason for name, reason in files}

    def row_of(self, sha256: str | None) -> int | None:
        """The row of a content, if a file has it."""
        rows = self.ask("SELECT row FROM files WHERE sha256 = ? LIMIT 1", sha256).fetchone()
        return rows and int(rows[0])

    def files_of(self, row: int, most: int) -> tuple[list[str], int, str]:
        """The first files of a row by path; how many more there are; and the SHA-256 of their bytes."""
        question = "SELECT path, sha256 FROM files WHERE row = ? ORDER BY path LIMIT ?"
        files = self.ask(question, row, most).fetchall()
        ((count,),) = self.ask("SELECT COUNT(*) FROM files WHERE row = ?", row)
        return [os.fsdecode(name) for name, _ in files], count - len(files), files[0][1]

    def put(self, entries: Iterable[Entry]) -> None:
        """Add or replace files."""
        rows = ((os.fsencode(path), *stamp, *others) for path, stamp, *others in entries)
        self.database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files; their rows stay until `finish`."""
        names = ((os.fsencode(path),) for path in paths)
        self.database.executemany("DELETE FROM files WHERE path = ?", names)

    def write(self, start: int, vectors: Float[Tensor, "row feature embed"]) -> None:
        """Write vectors of every feature, starting at row ``start``. Raises DataError unless they are unit
        vectors, OutputError.
        """
        if not _are_units(torch.linalg.vector_norm(vectors, dim=-1)):
            raise DataError("the model's features of an image are not finite, or not of length 1.")
        values = vectors.cpu().numpy().astype("<f2")
        try:
            for number, feature in enumerate(self.metadata["features"]):
                self._path(feature).parent.mkdir(exist_ok=True)
                with self._path(feature).open("ab") as file:
                    file.truncate(start * values[0, 0].nbytes)  # what an interrupted build left
                    file.write(values[:, number].tobytes())
        except OSError as error:
            raise OutputError(f"cannot write the vectors of the index {self.folder}: {error}.") from error

    def finish(self) -> None:
        """Mark a build as completed. The rows of removed files are dropped once there are many: the others
        are copied before their files follow and the old ones go, so that queries always find some. Raises
        OutputError.
        """
        with self.change():
            self._load()
            if self.rows and 1 - self.live.mean() > DEAD_SHARE:
                kept, vectors = np.flatnonzero(self.live), self.vectors
                self.set(rows=len(kept), generation=self.metadata["generation"] + 1)
                for feature, values in vectors.items():
                    self._path(feature).parent.mkdir(exist_ok=True)
                    with self._path(feature).open("wb") as file:
                        for part in np.array_split(kept, len(kept) // 4096 + 1):
                            file.write(values[part].tobytes())
                # Upwards, so that no number is taken before its files have moved on.
                self.database.executemany("UPDATE files SET row = ? WHERE row = ?", enumerate(kept.tolist()))
            self.set(completed=True)
        old = self.folder / f"vectors-{self.metadata['generation'] - 1}"
        shutil.rmtree(old, ignore_errors=True)

    def scores(self, feature: str, query: Float[Tensor, "embed"]) -> Float[Tensor, "row"]:
        """The `similarity` of each row to a query. Raises DataError unless all rows are unit vectors, which
        is checked once: their lengths are kept, 4 bytes a row.
        """
        known = self._lengths.get(feature)
        scores, lengths = torch.empty(self.rows), torch.empty(self.rows) if known is None else known
        at_once = max(1, AT_ONCE // len(query))
        buffer = torch.empty(min(at_once, self.rows), len(query))
        for start in range(0, self.rows, at_once):
            part = slice(start, start + at_once)
            stored = torch.from_numpy(self.vectors[feature][part])
            values = buffer[: len(stored)].copy_(stored)
            if known is None:
                lengths[part] = torch.linalg.vector_norm(values, dim=1)
            scores[part] = similarity(values, lengths[part], query)
        if known is None and not _are_units(lengths):
            raise self.damaged(f"{self._path(feature).name} holds rows that are not unit vectors")
        self._lengths[feature] = lengths
        return scores

    def _path(self, feature: str) -> Path:
        number = self.metadata["features"].index(feature)
        return self.folder / f"vectors-{self.metadata['generation']}" / f"{number}.f16"


def _are_units(lengths: Float[Tensor, "*rows"]) -> bool:
    return bool(((lengths - 1).abs() < TOLERANCE).all())  # False for NaN
