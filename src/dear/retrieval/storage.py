"""What an index keeps on the disk, as readers see it: facts and files in SQLite, and a file of float16 rows
for each feature. Names of files are stored as their bytes, which need not be UTF-8.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.errors import DataError, OutputError

FILE = "index.sqlite"
TABLES = """
    BEGIN;
    CREATE TABLE metadata (state TEXT, facts TEXT);
    CREATE TABLE files (
        path BLOB PRIMARY KEY, size INTEGER, mtime INTEGER, sha256 TEXT, row INTEGER, reason TEXT
    );
    CREATE INDEX by_content ON files (sha256, path);
    CREATE INDEX by_row ON files (row);
"""
OF_MODEL = ("identity", "features", "embed", "folder")
"""Facts that no build of an index changes."""
AT_ONCE = 2**21  # numbers of rows in float32 that are compared at a time: 4,096 rows of 512
TOLERANCE = 0.05  # for the length of a stored float16 unit vector


class Store:
    """The files and vectors in a folder: those of an index or of one of its shards.

    Attributes:
        metadata: Facts: how the index was made, how many ``rows`` it has, the ``generation`` of its vectors,
            and whether a build has ``completed``.
        vectors: The rows of each feature, memory-mapped.
    """

    def __init__(self, folder: Path) -> None:
        """Raises DataError as `transaction`."""
        self.folder, self.metadata, self._state = folder, dict[str, Any](), ""
        self._used: Int[np.ndarray, used] | None = None
        with self.transaction():
            pass

    @staticmethod
    def exists(folder: Path) -> bool:
        """True if there is a store, possibly a damaged one."""
        return (folder / FILE).exists()

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        """Context in which the store is as the last commit left it. With ``writes`` what is changed, facts
        too, becomes visible together at the end.

        Raises DataError for a store that does not exist, is damaged, was replaced by one of another model or
        folder, or cannot be read now; OutputError for one that cannot be changed.
        """
        if not self.exists(self.folder):
            raise DataError(f"{self.folder} is not an index of images: `dear index build` makes one.")
        try:
            connection = sqlite3.connect(self.folder / FILE, timeout=30, isolation_level=None)
            with closing(connection) as database, database:
                database.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                ((state, facts),) = database.execute("SELECT state, facts FROM metadata")
                if state != self._state:
                    self._load(json.loads(facts))
                    self._state = state
                yield database
                if writes:
                    new = uuid4().hex, json.dumps(self.metadata)
                    database.execute("UPDATE metadata SET state = ?, facts = ?", new)
        except sqlite3.Error as error:
            if writes:
                raise OutputError(f"cannot change the index {self.folder}: {error}.") from error
            if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                raise DataError(f"cannot read the index {self.folder}: {error}. Try again soon.") from error
            raise self.damaged(error) from error

    def _load(self, facts: dict[str, Any]) -> None:
        if any(facts[key] != self.metadata.get(key, facts[key]) for key in OF_MODEL):
            raise DataError(f"the index {self.folder} was replaced by another: open it again.")
        self.metadata, shape = facts, (facts["rows"], facts["embed"])
        try:
            self.vectors = {
                name: np.memmap(self.path(name), "<f2", "c", shape=shape)
                for name in facts["features"]
                if self.rows
            }
        except (FileNotFoundError, ValueError) as error:
            raise self.damaged(error) from error
        self._lengths, self._used = dict[str, Float[Tensor, "row"]](), None

    @property
    def rows(self) -> int:
        """The number of rows, including those of removed files."""
        return int(self.metadata["rows"])

    def used_rows(self, database: sqlite3.Connection) -> Int[np.ndarray, "used"]:
        """The rows that belong to a file."""
        if self._used is None:
            rows = database.execute("SELECT DISTINCT row FROM files WHERE row IS NOT NULL ORDER BY row")
            self._used = np.fromiter((row for (row,) in rows), dtype=np.int64)
        return self._used

    def path(self, feature: str) -> Path:
        """The file of a feature's rows."""
        number = self.metadata["features"].index(feature)
        return self.folder / f"vectors-{self.metadata['generation']}" / f"{number}.f16"

    def damaged(self, why: object) -> DataError:
        """The error for a store that a build cannot repair."""
        return DataError(
            f"the index {self.folder} is damaged, or of another version of dear ({why}): remove it and run "
            "`dear index build` again."
        )

    def scores(self, feature: str, query: Float[Tensor, "embed"]) -> Float[Tensor, "row"]:
        """The cosine of each row to a unit query. Raises DataError unless all rows are unit vectors, which is
        checked once: their lengths, which float16 rounds, are kept, 4 bytes a row.
        """
        if feature not in self._lengths:
            self._lengths[feature] = self._map_rows(feature, lambda rows: rows.norm(dim=1))
            if not are_units(self._lengths[feature]):
                raise self.damaged(f"{self.path(feature).name} holds rows that are not unit vectors")
        # Not ``rows @ query``, whose rounding depends on a row's place: equal vectors must have equal scores.
        return self._map_rows(feature, lambda rows: rows.mul_(query).sum(dim=1)) / self._lengths[feature]

    def _map_rows(self, feature: str, work: Callable[[Tensor], Tensor]) -> Float[Tensor, "row"]:
        """A number for each row, from its float32 values: some rows at a time, which may be overwritten."""
        results, at_once = torch.empty(self.rows), max(1, AT_ONCE // self.metadata["embed"])
        buffer = torch.empty(min(at_once, self.rows), self.metadata["embed"])
        for start in range(0, self.rows, at_once):
            stored = torch.from_numpy(self.vectors[feature][start : start + at_once])
            results[start : start + at_once] = work(buffer[: len(stored)].copy_(stored))
        return results


def are_units(lengths: Float[Tensor, "*rows"]) -> bool:
    """True if all lengths are 1, but for rounding."""
    return bool(((lengths - 1).abs() < TOLERANCE).all())  # False for NaN
