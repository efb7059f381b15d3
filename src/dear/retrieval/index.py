"""Search an index by an image, a text or vectors: neighbors by a weighted mixture of
features. Every image is compared, so answers are exact.

A folder has its facts and files in SQLite, and a file of float16 rows for each feature. Names of files are
stored as their bytes, which need not be UTF-8.
"""

import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.data.images.decode import decode, read_image
from dear.data.images.transforms import eval_view
from dear.errors import DataError, OutputError, SettingsError, UnknownNameError, installation
from dear.reading.remote import as_path
from dear.reading.typed import PositiveInt, check_value
from dear.retrieval.results import Hit
from dear.writing import output_file

if TYPE_CHECKING:
    from dear.retrieval.encoder import Encoder

FILE, VERSION = "index.sqlite", 2
OF_MODEL = ("identity", "features", "embed", "folder", "means")
"""Facts that no build of an index changes."""
VALUES_AT_ONCE = 2**21  # numbers of rows in float32 that are compared at a time: 4,096 rows of 512
TOLERANCE = 0.05  # for the length of a stored float16 unit vector
COPIES = 1000  # files that a hit names beside its first
EXPORTED_AT_ONCE = 4096  # files


@dataclass(frozen=True)
class Snapshot:
    """An index as one of its commits left it. Threads that search the index share it, and a thread that sees
    a later commit has another one.

    Attributes:
        folder: The folder of the index.
        state: What names the commit.
        metadata: Facts: how the index was made, how many ``rows`` it has, the ``generation`` of its vectors,
            whether a build has ``completed``, and the ``means`` that features are centered by, which the
            first build fixes: none yet, or () for features that are not.
        vectors: The rows of each feature, memory-mapped.
    """

    folder: Path
    state: str
    metadata: dict[str, Any]
    vectors: Mapping[str, np.memmap]
    _lengths: dict[str, Float[Tensor, "row"]] = field(default_factory=dict)
    _used: list[Int[np.ndarray, "used"]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of rows, including those of removed files."""
        return int(self.metadata["rows"])

    def used_rows(self, database: sqlite3.Connection) -> Int[np.ndarray, "used"]:
        """The rows that belong to a file."""
        if not self._used:
            rows = database.execute("SELECT DISTINCT row FROM files WHERE row IS NOT NULL ORDER BY row")
            self._used.append(np.fromiter((row for (row,) in rows), dtype=np.int64))
        return self._used[0]

    def path(self, feature: str) -> Path:
        """The file of a feature's rows."""
        number = self.metadata["features"].index(feature)
        return self.folder / f"vectors-{self.metadata['generation']}" / f"{number}.f16"

    def center(self, features: Float[Tensor, "*image f e"]) -> Float[Tensor, "*image f e"]:
        """An encoder's features as they are stored: less the means, if there are any, and of length 1."""
        means = self.metadata["means"]
        return normalize(features - torch.tensor(means).to(features), dim=-1) if means else features

    def scores(self, feature: str, query: Float[Tensor, "embed"]) -> Float[Tensor, "row"]:
        """The cosine of each row to a unit query. Raises DataError unless all rows are unit vectors, which is
        checked once: their lengths, which float16 rounds, are kept, 4 bytes a row.
        """
        if feature not in self._lengths:
            self._lengths[feature] = self._map_rows(feature, lambda rows: rows.norm(dim=1))
            if not are_units(self._lengths[feature]):
                why = f"{self.path(feature).name} holds rows that are not unit vectors"
                raise damaged_index(self.folder, why)
        # Not ``rows @ query``, whose rounding depends on a row's place: equal vectors must have equal scores.
        return self._map_rows(feature, lambda rows: rows.mul_(query).sum(dim=1)) / self._lengths[feature]

    def _map_rows(self, feature: str, work: Callable[[Tensor], Tensor]) -> Float[Tensor, "row"]:
        """A number for each row, from its float32 values: some rows at a time, which may be overwritten."""
        results, at_once = torch.empty(self.rows), max(1, VALUES_AT_ONCE // self.metadata["embed"])
        buffer = torch.empty(min(at_once, self.rows), self.metadata["embed"])
        for start in range(0, self.rows, at_once):
            stored = torch.from_numpy(self.vectors[feature][start : start + at_once])
            results[start : start + at_once] = work(buffer[: len(stored)].copy_(stored))
        return results


def damaged_index(folder: Path, why: object) -> DataError:
    """The error for an index that cannot be used."""
    hint = "remove it and run `dear index build` again"
    return DataError(f"the index {folder} is damaged, or of another version of dear ({why}): {hint}.")


class Index:
    """An index of images in a folder. A query sees what builds have committed since the previous one; threads
    may search it at the same time.

    Attributes:
        path: The folder of the index.
    """

    def __init__(self, path: Path) -> None:
        """Raises DataError as `transaction`."""
        self.path = path
        self._snapshot: Snapshot | None = None
        with self.transaction():
            pass

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[tuple[sqlite3.Connection, Snapshot]]:
        """Context in which the index is as the last commit left it. With ``writes`` what is changed, facts
        too, becomes visible together at the end.

        Raises DataError for an index that does not exist, is damaged, was replaced by one of another model or
        folder, or cannot be read now; OutputError for one that cannot be changed.
        """
        if not (self.path / FILE).exists():
            raise DataError(f"{self.path} is not an index of images: `dear index build` makes one.")
        try:
            connection = sqlite3.connect(self.path / FILE, timeout=30, isolation_level=None)
            with closing(connection) as database, database:
                database.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                ((state, facts),) = database.execute("SELECT state, facts FROM metadata")
                snapshot = self._snapshot
                if writes or snapshot is None or snapshot.state != state:
                    snapshot = self._load(state, json.loads(facts))
                yield database, snapshot
                if writes:
                    state = uuid4().hex
                    question = "UPDATE metadata SET state = ?, facts = ?"
                    database.execute(question, (state, json.dumps(snapshot.metadata)))
                    snapshot = self._load(state, snapshot.metadata)
            self._snapshot = snapshot
        except sqlite3.Error as error:
            if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                kind, what = (OutputError, "change") if writes else (DataError, "read")
                raise kind(f"cannot {what} the index {self.path}: {error}. Try again soon.") from error
            raise damaged_index(self.path, error) from error

    def _load(self, state: str, facts: dict[str, Any]) -> Snapshot:
        known = self._snapshot.metadata if self._snapshot else facts
        if facts.get("version") != VERSION:
            raise damaged_index(self.path, f"version {facts.get('version')}")
        if any(facts[key] != known[key] and known[key] is not None for key in OF_MODEL):
            raise DataError(f"the index {self.path} was replaced by another: open it again.")
        snapshot, shape = Snapshot(self.path, state, facts, {}), (facts["rows"], facts["embed"])
        try:
            names = facts["features"] if snapshot.rows else ()
            vectors = {name: np.memmap(snapshot.path(name), "<f2", "c", shape=shape) for name in names}
        except (FileNotFoundError, ValueError) as error:
            raise damaged_index(self.path, error) from error
        return replace(snapshot, vectors=vectors)

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts, as the last transaction read them (`Snapshot.metadata`)."""
        assert self._snapshot is not None
        return self._snapshot.metadata

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(self.metadata["features"])

    @property
    def folder(self) -> Path:
        """The folder of the images."""
        return as_path(self.metadata["folder"])

    @property
    def rows(self) -> int:
        """The number of rows, including those of removed files."""
        return int(self.metadata["rows"])

    def check(self, encoder: "Encoder") -> None:
        """Raise DataError unless the index was built with the encoder's model."""
        facts = self.metadata
        if facts["identity"] != encoder.identity:
            of = f"the bundle {facts['model'] or facts['identity'][:12]}"
            if heads := facts.get("heads"):
                of = f"heads of {heads['model']} by the role table {heads['table']!r}"
            raise DataError(
                f"the index {self.path} holds features of {of}, which are not comparable with those of "
                "another bundle or model: use that one, or build an index with this one elsewhere (--out)."
            )

    def shares(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Weights scaled so that their absolute values sum to one. Raises UnknownNameError for a feature that
        the index does not have, SettingsError if no weight is positive.
        """
        for name in weights:
            if name not in self.features:
                raise UnknownNameError("feature", name, self.features)
        total = sum(map(abs, weights.values()))
        if not (max(weights.values(), default=0) > 0 and total < math.inf):
            raise SettingsError("no feature has a positive weight: give one above 0, and only finite ones.")
        return {name: weight / total for name, weight in weights.items()}

    def vectors(self, names: Sequence[str], features: Float[Tensor, "f e"]) -> dict[str, Float[Tensor, "e"]]:
        """The query vectors of an image, from an encoder's features of it."""
        assert self._snapshot is not None
        return dict(zip(names, self._snapshot.center(features.detach().cpu()), strict=True))

    def query(
        self,
        vectors: Mapping[str, Float[Tensor, "embed"]],
        weights: Mapping[str, float] | None = None,
        *,
        count: int = 10,
        without: str | None = None,
        copies: int = COPIES,
    ) -> list[Hit]:
        """The best images for a query vector per feature, best first.

        Args:
            weights: Weights of the features' cosines, 1 each by default; negative ones prefer dissimilar
                images.
            without: SHA-256 of a content to leave out: the query's own.
            copies: How many files each hit names at most beside its first; the others are counted.

        Raises:
            SettingsError, UnknownNameError: as `shares`, and for a count below 1.
            DataError: for an index that was damaged or removed since it was opened.
        """
        shares = self.shares(weights or dict.fromkeys(vectors, 1.0))
        check_value("count", count, PositiveInt)
        queries = {name: vectors[name].detach().cpu().float() for name in shares}
        with self.transaction() as (database, snapshot):
            rows, by_row = snapshot.used_rows(database), "SELECT sha256 FROM files WHERE row = ? LIMIT 1"
            for (row,) in database.execute("SELECT row FROM files WHERE sha256 = ? LIMIT 1", (without,)):
                rows = rows[rows != row]
            cosines = {name: snapshot.scores(name, query) for name, query in queries.items()}
            scores = torch.zeros(snapshot.rows, dtype=torch.float64)
            for name, share in shares.items():
                scores += share * cosines[name]
            hits, listed = list[Hit](), "SELECT path FROM files WHERE sha256 = ?"
            for row in best_rows(scores.numpy(), rows, count).tolist():
                ((sha256,),) = database.execute(by_row, (row,))
                names = sorted(name for (name,) in database.execute(listed, (sha256,)))
                first, *others = map(os.fsdecode, names[: copies + 1])
                by = {name: float(values[row]) for name, values in cosines.items()}
                unnamed = len(names) - 1 - len(others)
                hits.append(Hit(first, float(scores[row]), by, tuple(others), unnamed, sha256))
            return hits

    def query_image(
        self,
        encoder: "Encoder",
        image: Path,
        weights: Mapping[str, float],
        *,
        count: int = 10,
        itself: bool = False,
        words: Mapping[str, str] | None = None,
    ) -> list[Hit]:
        """The images most similar to an image file, excluding the file itself unless ``itself``.

        ``words`` are texts for some of the features, which are compared with them instead of with the image.
        Raises DataError for an unreadable file, SettingsError for an empty text, or one of a feature that has
        no weight.
        """
        self.check(encoder)
        words = words or {}
        if stray := [name for name in words if name not in weights]:
            raise SettingsError(f"there are words for {stray[0]}, which the images are not compared by.")
        content = read_image(image)
        view = eval_view(decode(image, data=content), encoder.preprocess)
        queries = self.vectors(encoder.features, encoder.images(view[None])[0])
        for name, text in words.items():
            queries[name] = encoder.texts([require_text(text)])[0, encoder.features.index(name)]
        excluded = None if itself else hashlib.sha256(content).hexdigest()
        return self.query(queries, weights, count=count, without=excluded)

    def query_text(
        self, encoder: "Encoder", text: str, weights: Mapping[str, float], *, count: int = 10
    ) -> list[Hit]:
        """The images whose features are nearest to a text's. Raises SettingsError for an empty text."""
        self.check(encoder)
        vectors = dict(zip(encoder.features, encoder.texts([require_text(text)])[0], strict=True))
        return self.query(vectors, weights, count=count)

    def export_parquet(self, path: Path) -> int:
        """Write the index as a Parquet file for other databases; returns the number of its files.

        Each readable file is a row: ``path``, ``class`` (the name of the folder that it is in), ``size``,
        ``mtime`` (nanoseconds), ``sha256``, and for each feature a ``vector_NAME`` of float32. The facts of
        the model are in the file's metadata, as JSON under "index". Raises SettingsError without pyarrow,
        OutputError.
        """
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise SettingsError(f"Parquet requires pyarrow: {installation('datasets')}.") from error
        files, writer = 0, None
        question = "SELECT path, size, mtime, sha256, row FROM files WHERE row >= 0 ORDER BY row"
        with output_file(path) as file, ExitStack() as stack:
            database, snapshot = stack.enter_context(self.transaction())
            listed = database.execute(question)
            while part := listed.fetchmany(EXPORTED_AT_ONCE):
                names, sizes, mtimes, hashes, rows = zip(*part, strict=True)
                paths = [name.decode("utf-8", "replace") for name in names]
                columns = dict[str, Any](path=paths, size=sizes, mtime=mtimes, sha256=hashes)
                columns["class"] = [Path(name).parent.name for name in paths]
                for name, stored in snapshot.vectors.items():
                    numbers = stored[[*rows]].astype(np.float32).ravel()
                    vectors = pa.FixedSizeListArray.from_arrays(numbers, snapshot.metadata["embed"])
                    columns[f"vector_{name}"] = vectors
                table = pa.table(columns, metadata={"index": json.dumps(snapshot.metadata)})
                writer = writer or stack.enter_context(parquet.ParquetWriter(file, table.schema))
                writer.write_table(table)
                files += len(part)
        return files


def read_indexed(path: Path, sha256: str) -> bytes:
    """A file of an index. Raises DataError if it cannot be read, or was changed since it was indexed."""
    content = read_image(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(f"{path} was changed since it was indexed.")
    return content


def open_index(folder: Path) -> Index:
    """Open an index for queries. Raises DataError if there is none, or it is damaged, incomplete or empty."""
    index = Index(folder)
    if not index.metadata["completed"] or not index.rows:
        fault = "empty" if index.metadata["completed"] else "incomplete"
        raise DataError(f"the index {folder} is {fault}: run its `dear index build` again.")
    return index


def are_units(lengths: Float[Tensor, "*rows"]) -> bool:
    """True if all lengths are 1, but for rounding."""
    return bool(((lengths - 1).abs() < TOLERANCE).all())  # False for NaN


def pair_weights(by: Sequence[str], weights: Sequence[float] | None) -> dict[str, float]:
    """Features and weights from the two lists of a command. Raises SettingsError."""
    numbers = weights or [1.0] * len(by)
    if not by or len({*by}) < len(by) or len(numbers) != len(by):
        raise SettingsError(
            f"{len(numbers)} weights for {', '.join(by)}: name each feature once, with a weight."
        )
    return dict(zip(by, numbers, strict=True))


def require_text(text: str) -> str:
    """The text of a query. Raises SettingsError if it is empty."""
    if not text.strip():
        raise SettingsError("the text of the query is empty: give words, such as 'a red ball'.")
    return text


def best_rows(
    scores: Float[np.ndarray, "row"], rows: Int[np.ndarray, "candidate"], count: int
) -> Int[np.ndarray, "neighbor"]:
    """The ``count`` of some rows that have the highest scores, best first; of equal ones the first rows."""
    if count < len(rows):
        least = torch.from_numpy(scores[rows]).topk(count).values[-1].item()
        rows = rows[scores[rows] >= least]
    return rows[np.argsort(-scores[rows], kind="stable")[:count]]
