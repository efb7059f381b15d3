"""The stored vectors of an index, and how near they are to a query.

There is one append-only file of float16 rows per feature. A query is compared with all rows, some of them in
memory at a time. `similarity` is all that an index knows of nearness: another distance is defined here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.errors import DataError, OutputError
from dear.reading.files import opened
from dear.retrieval.results import damaged, opens_no_more, unopened

BYTES = 2  # of a float16
CHUNK = 16_384  # rows copied at a time
NUMBERS = 2**21  # numbers of rows in float32 that are scored at a time: 4,096 rows of 512
MODEST, HOLES = 2**28, 25
"""Bytes of vectors that a copy may write whatever they take on the disk, and times that for larger ones."""
FOLDER = re.compile(r"vectors-[0-9]+")
OF_FAISS = re.compile(r"[0-9]+\.faiss(\.part)?")
"""The files with which FAISS searched earlier indexes."""
OWN = re.compile(rf"[0-9]+\.f16|{OF_FAISS.pattern}")
TOLERANCE = 0.05  # for the length of a stored float16 unit vector


def similarity(
    rows: Float[Tensor, "row embed"], lengths: Float[Tensor, "row"], query: Float[Tensor, "embed"]
) -> Float[Tensor, "row"]:
    """The score of rows for a unit query, the larger the nearer: their cosine. ``lengths`` are those of the
    rows, which are 1 but for the rounding to float16. The rows are overwritten.
    """
    # Not ``rows @ query``, whose rounding depends on a row's place: equal vectors must have equal scores.
    return rows.mul_(query).sum(dim=1) / lengths


def remove(folder: Path, names: re.Pattern[str] = OWN) -> None:
    """Remove the files of a folder of vectors that have these names, and the folder if it is empty then. A
    link stays, as do the files of others.
    """
    with suppress(OSError):
        if folder.is_symlink():
            return
        for path in [*folder.iterdir()]:
            if names.fullmatch(path.name):
                path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()


class Vectors:
    """Rows of unit vectors of every feature, in the order in which they were added.

    Rows past the number recorded in the catalogue are left over from an interrupted build: the next build
    overwrites them.
    """

    def __init__(self, folder: Path, features: int, embed: int) -> None:
        self.folder, self.features, self.embed = folder, features, embed
        self._checked: dict[int, Float[Tensor, row]] = {}  # lengths of rows, by feature

    @classmethod
    def of(cls, index: Path, metadata: Mapping[str, Any]) -> Self:
        """The vectors of an index's generation."""
        folder = index / f"vectors-{metadata['generation']}"
        return cls(folder, len(metadata["features"]), metadata["embed"])

    def path(self, feature: int) -> Path:
        return self.folder / f"{feature}.f16"

    def write(self, start: int, rows: Float[Tensor, "row feature embed"]) -> None:
        """Write rows of every feature, starting at row ``start``. Raises OutputError."""
        values = rows.cpu().numpy().astype("<f2")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for feature in range(self.features):
                self.path(feature).touch()
                with self.path(feature).open("r+b") as file:
                    file.truncate(start * self.embed * BYTES)
                    file.seek(0, 2)
                    file.write(np.ascontiguousarray(values[:, feature]).tobytes())
        except OSError as error:
            raise self._unwritable(error) from error

    def write_feature(self, feature: int, parts: Iterable[Float[np.ndarray, "row embed"]]) -> None:
        """Write all rows of a feature, which come in parts. Raises OutputError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self.path(feature).open("wb") as file:
                for rows in parts:
                    file.write(np.ascontiguousarray(rows).tobytes())
        except OSError as error:
            raise self._unwritable(error) from error

    def read(self, feature: int, rows: int) -> Float[np.ndarray, "row embed"]:
        """The first ``rows`` rows of a feature, memory-mapped. Raises DataError if there are fewer."""
        if not rows:
            return np.zeros((0, self.embed), dtype=np.float16)
        try:
            return np.memmap(self.path(feature), dtype="<f2", mode="r", shape=(rows, self.embed))
        except (DataError, OSError, ValueError) as error:
            raise self._unreadable(feature, error) from error

    def scores(self, feature: int, rows: int, query: Float[Tensor, "embed"]) -> Float[Tensor, "row"]:
        """The `similarity` of each of the first ``rows`` rows to a query. Raises DataError unless all are
        unit vectors, which is checked once: their lengths are kept, 4 bytes a row.
        """
        scores, lengths = torch.empty(rows), self._checked.get(feature, torch.empty(0))
        if not (is_checked := len(lengths) >= rows):
            lengths = torch.empty(rows)
        for start, values in self._parts(feature, 0, rows):
            part = slice(start, start + len(values))
            if not is_checked:
                lengths[part] = self._lengths(feature, values)
            scores[part] = similarity(values, lengths[part], query)
        if not scores.isfinite().all():  # rows were changed after the check
            raise self._not_unit(feature)
        self._checked[feature] = lengths
        return scores

    def scores_of(
        self, feature: int, rows: Int[np.ndarray, "candidate"], query: Float[Tensor, "embed"]
    ) -> Float[Tensor, "candidate"]:
        """The same of some rows."""
        scores = torch.empty(len(rows))
        mapped = self.read(feature, int(rows.max(initial=-1)) + 1)
        for start in range(0, len(rows), self._at_once):
            values = torch.from_numpy(mapped[rows[start : start + self._at_once]].astype(np.float32))
            lengths = self._lengths(feature, values)
            scores[start : start + len(values)] = similarity(values, lengths, query)
        return scores

    def require_unit(self, feature: int, start: int, stop: int) -> None:
        """Raise DataError unless the rows from ``start`` to ``stop`` are unit vectors."""
        for _, values in self._parts(feature, start, stop):
            self._lengths(feature, values)

    def check(self, rows: int) -> None:
        """Raise DataError unless every feature has at least ``rows`` rows."""
        for feature in range(self.features):
            self.read(feature, rows)

    def copy(self, selected: Int[np.ndarray, "row"], rows: int, to: "Vectors") -> None:
        """Copy some of the first ``rows`` rows to another folder, in chunks. Raises OutputError."""
        parts = [selected[start : start + CHUNK] for start in range(0, len(selected), CHUNK)]
        for feature in range(self.features):
            mapped = self.read(feature, rows)
            to.write_feature(feature, (mapped[part] for part in parts))

    @property
    def _at_once(self) -> int:
        """How many rows are scored at a time."""
        return max(1, NUMBERS // self.embed)

    def _parts(self, feature: int, start: int, stop: int) -> Iterator[tuple[int, Float[Tensor, "row embed"]]]:
        """The rows from ``start`` to ``stop`` in float32, some at a time, each time with the number of the
        first. They share one buffer.
        """
        if start >= stop:
            return
        shape = min(self._at_once, stop - start), self.embed
        stored, buffer = np.empty(shape, dtype="<f2"), torch.empty(shape)
        try:
            with opened(self.path(feature)) as file:
                file.seek(start * self.embed * BYTES)
                for at in range(start, stop, self._at_once):
                    part = stored[: stop - at]
                    if file.readinto(part) < part.nbytes:  # type: ignore[attr-defined]
                        raise ValueError("the file is too short")
                    yield at, buffer[: len(part)].copy_(torch.from_numpy(part))
        except (DataError, OSError, ValueError) as error:
            raise self._unreadable(feature, error) from error

    def _unreadable(self, feature: int, error: Exception) -> DataError:
        """The error for a file that is missing, cannot be mapped, or is too short (a ValueError)."""
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and opens_no_more(cause):
            return unopened(self.folder.parent, cause)
        why = "is truncated" if isinstance(error, ValueError) else "is missing or unreadable"
        path = self.path(feature).relative_to(self.folder.parent)
        return damaged(self.folder.parent, f"{path} {why}")

    def _lengths(self, feature: int, rows: Float[Tensor, "row embed"]) -> Float[Tensor, "row"]:
        """Lengths of rows of a feature, in float32. Raises DataError unless all are unit vectors."""
        lengths: Float[Tensor, row] = torch.linalg.vector_norm(rows, dim=1)
        if not ((lengths - 1).abs() < TOLERANCE).all():  # also true for NaN
            raise self._not_unit(feature)
        return lengths

    def _not_unit(self, feature: int) -> DataError:
        path = self.path(feature).relative_to(self.folder.parent)
        return damaged(self.folder.parent, f"{path} holds rows that are not unit vectors")

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(f"cannot write the vectors to {self.folder}: {error}.")
