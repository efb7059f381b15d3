"""The stored vectors of an index, and how near two of them are.

There is one append-only file of float16 rows per feature, memory-mapped to read. `METRIC` and `similarity`
are all that an index knows of nearness: another distance is defined here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from dear.errors import DataError, OutputError
from dear.reading.files import require_plain
from dear.retrieval.results import damaged

METRIC = "METRIC_INNER_PRODUCT"
"""FAISS's name of the measure by which it proposes candidates. An index of another one is built again."""
BYTES = 2  # of a float16
CHUNK = 16_384  # rows checked or copied at a time
SCORED = 1024  # rows scored at a time: they stay in the processor's cache
TOLERANCE = 0.05  # for the length of a stored float16 unit vector


def similarity(
    rows: Float[np.ndarray, "row embed"], lengths: Float[np.ndarray, "row"], query: Float[np.ndarray, "embed"]
) -> Float[np.ndarray, "row"]:
    """The score of rows for a unit query, the larger the nearer: their cosine. ``lengths`` are those of the
    rows, which are 1 but for the rounding to float16.
    """
    scores: Float[np.ndarray, row] = rows @ query / lengths
    return scores


class Vectors:
    """Rows of unit vectors of every feature, in the order in which they were added.

    Rows past the number recorded in the catalogue are left over from an interrupted build: the next build
    overwrites them.
    """

    def __init__(self, folder: Path, features: int, embed: int) -> None:
        self.folder, self.features, self.embed = folder, features, embed

    @classmethod
    def of(cls, index: Path, metadata: Mapping[str, Any]) -> Self:
        """The vectors of an index's generation."""
        folder = index / f"vectors-{metadata['generation']}"
        return cls(folder, len(metadata["features"]), metadata["embed"])

    def path(self, feature: int) -> Path:
        return self.folder / f"{feature}.f16"

    def index(self, feature: int) -> Path:
        """Path of the FAISS index of a feature."""
        return self.folder / f"{feature}.faiss"

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

    def read(self, feature: int, rows: int) -> Float[np.ndarray, "row embed"]:
        """The first ``rows`` rows of a feature, memory-mapped. Raises DataError if there are fewer."""
        if not rows:
            return np.zeros((0, self.embed), dtype=np.float16)
        path = self.path(feature)
        try:
            require_plain(path)
            return np.memmap(path, dtype="<f2", mode="r", shape=(rows, self.embed))
        except (DataError, OSError, ValueError) as error:  # missing, not mappable, too short
            why = "is truncated" if isinstance(error, ValueError) else "is missing or unreadable"
            raise damaged(self.folder.parent, f"{path.relative_to(self.folder.parent)} {why}") from error

    def scores(
        self, feature: int, rows: Int[np.ndarray, "candidate"], query: Float[np.ndarray, "embed"], count: int
    ) -> Float[np.ndarray, "candidate"]:
        """The `similarity` of some of the first ``count`` rows to a query, in float32."""
        mapped = self.read(feature, count)
        scores = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), SCORED):
            values = np.asarray(mapped[rows[start : start + SCORED]], dtype=np.float32)
            scores[start : start + SCORED] = similarity(values, self._lengths(feature, values), query)
        return scores

    def require_unit(self, feature: int, start: int, stop: int) -> None:
        """Raise DataError unless the rows from ``start`` to ``stop`` are unit vectors."""
        mapped = self.read(feature, stop)
        for at in range(start, stop, CHUNK):
            self._lengths(feature, np.asarray(mapped[at : at + CHUNK], dtype=np.float32))

    def check(self, rows: int) -> None:
        """Raise DataError unless every feature has at least ``rows`` rows."""
        for feature in range(self.features):
            self.read(feature, rows)

    def copy(self, selected: Int[np.ndarray, "row"], rows: int, to: "Vectors") -> None:
        """Copy some of the first ``rows`` rows to another folder, in chunks. Raises OutputError."""
        try:
            to.folder.mkdir(parents=True, exist_ok=True)
            for feature in range(self.features):
                mapped = self.read(feature, rows)
                with to.path(feature).open("wb") as file:
                    for start in range(0, len(selected), CHUNK):
                        file.write(np.ascontiguousarray(mapped[selected[start : start + CHUNK]]).tobytes())
        except OSError as error:
            raise to._unwritable(error) from error

    def _lengths(self, feature: int, rows: Float[np.ndarray, "row embed"]) -> Float[np.ndarray, "row"]:
        """Lengths of rows of a feature, in float32. Raises DataError unless all are unit vectors."""
        lengths: Float[np.ndarray, row] = np.sqrt(np.einsum("re,re->r", rows, rows))
        if not (np.abs(lengths - 1) < TOLERANCE).all():  # also true for NaN
            path = self.path(feature).relative_to(self.folder.parent)
            raise damaged(self.folder.parent, f"{path} holds rows that are not unit vectors")
        return lengths

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(f"cannot write the vectors to {self.folder}: {error}.")
