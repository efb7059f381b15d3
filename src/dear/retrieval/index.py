"""Search an index, whole or in shards, by an image, a text or vectors: neighbors by a weighted mixture of
features. Every image is compared, so answers are exact.
"""

import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.data.images.decode import decode, read_image
from dear.data.images.transforms import eval_view
from dear.errors import DataError, SettingsError, UnknownNameError, installation
from dear.retrieval.results import Hit
from dear.retrieval.storage import OF_MODEL, Store
from dear.writing import output_file

if TYPE_CHECKING:
    from dear.retrieval.encoder import Encoder

COPIES = 1000  # files that a hit names beside its first: an index may have any number of one content
EXPORTED_AT_ONCE = 4096  # files


class Index:
    """An index opened for queries. Its shards are searched together. A query sees what builds have committed
    since the previous one.

    Attributes:
        metadata: Facts of the model and the folder.
        features: The names of the features.
        offered: Those to search by: all but those of attributes that own no head.
    """

    def __init__(self, stores: Sequence[Store]) -> None:
        """Raises DataError for an index that is empty or incomplete, or shards of different models."""
        self.stores, self.metadata = stores, stores[0].metadata
        for store in stores:
            if not store.metadata["completed"]:
                raise DataError(f"the index {store.folder} is incomplete: run its `dear index build` again.")
            if any(store.metadata[fact] != self.metadata[fact] for fact in OF_MODEL):
                raise DataError(
                    f"{stores[0].folder} and {store.folder} are of different models or folders: build one of "
                    "them again."
                )
        if not self.rows:
            raise DataError(f"the index {stores[0].folder} is empty: run `dear index build` again.")
        self.features: tuple[str, ...] = tuple(self.metadata["features"])
        self.offered = self.features

    @property
    def folder(self) -> Path:
        """The folder of the images."""
        return Path(self.metadata["folder"])

    @property
    def rows(self) -> int:
        """The number of rows, including those of removed files."""
        return sum(store.rows for store in self.stores)

    def check(self, encoder: "Encoder") -> None:
        """Raise DataError unless the index was built with the encoder's model. From then on features of
        attributes that own no head are refused.
        """
        require_same_model(self.stores[0], encoder)
        self.offered = tuple(name for name in self.features if name not in encoder.unowned)

    def shares(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Weights scaled so that their absolute values sum to one. Raises UnknownNameError for a feature that
        is not offered, SettingsError if no weight is positive.
        """
        for name in weights:
            if name not in self.offered:
                raise UnknownNameError("feature", name, self.offered)
        total = sum(map(abs, weights.values()))
        if not (max(weights.values(), default=0) > 0 and total < math.inf):
            raise SettingsError(
                "no feature has a positive weight: at least one must be above 0, and all must be finite."
            )
        return {name: weight / total for name, weight in weights.items()}

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
            DataError: for an index that was damaged or removed since it was opened, or a query vector that is
                not finite.
        """
        shares = self.shares(weights or dict.fromkeys(vectors, 1.0))
        if count < 1:
            raise SettingsError(f"count is {count}: it must be at least 1.")
        queries = {name: vectors[name].detach().cpu().float() for name in shares}
        if not all(query.isfinite().all() for query in queries.values()):
            raise DataError("the features of the query are not finite numbers: no image can be near it.")
        with ExitStack() as stack:
            databases = [stack.enter_context(store.transaction()) for store in self.stores]
            found = dict[str, tuple[float, dict[str, float]]]()  # by content
            for store, database in zip(self.stores, databases, strict=True):
                found |= _search(store, database, queries, shares, count, without)
            best = sorted(found.items(), key=lambda item: -item[1][0])[:count]
            return [_hit(databases, sha256, *scores, copies) for sha256, scores in best]

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
        Raises DataError for an unreadable file or an empty text, SettingsError for a text of a feature that
        has no weight.
        """
        words = words or {}
        if stray := [name for name in words if name not in weights]:
            raise SettingsError(f"there are words for {stray[0]}, which the images are not compared by.")
        content = read_image(image)
        view = eval_view(decode(image, data=content), encoder.preprocess)
        queries = dict(zip(encoder.features, encoder.images(view[None])[0], strict=True))
        queries |= {name: _encode_text(encoder, text)[name] for name, text in words.items()}
        excluded = None if itself else hashlib.sha256(content).hexdigest()
        return self.query(queries, weights, count=count, without=excluded)

    def query_text(
        self, encoder: "Encoder", text: str, weights: Mapping[str, float], *, count: int = 10
    ) -> list[Hit]:
        """The images whose features are nearest to a text's. Raises DataError for an empty text."""
        return self.query(_encode_text(encoder, text), weights, count=count)

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
            for store in self.stores:
                listed = stack.enter_context(store.transaction()).execute(question)
                while part := listed.fetchmany(EXPORTED_AT_ONCE):
                    names, sizes, mtimes, hashes, rows = zip(*part, strict=True)
                    paths = [name.decode("utf-8", "replace") for name in names]
                    columns: dict[str, Any] = {
                        "path": paths,
                        "class": [Path(name).parent.name for name in paths],
                    }
                    columns |= {"size": sizes, "mtime": mtimes, "sha256": hashes}
                    for name, stored in store.vectors.items():
                        numbers = stored[[*rows]].astype(np.float32).ravel()
                        columns[f"vector_{name}"] = pa.FixedSizeListArray.from_arrays(
                            numbers, self.metadata["embed"]
                        )
                    table = pa.table(columns, metadata={"index": json.dumps(self.metadata)})
                    writer = writer or stack.enter_context(parquet.ParquetWriter(file, table.schema))
                    writer.write_table(table)
                    files += len(part)
        return files


def open_index(folder: Path) -> Index:
    """Open an index, or all shards of one, for queries. Raises DataError if there is none, it is damaged or
    incomplete, or a shard is missing.
    """
    shards = [] if Store.exists(folder) else list_shards(folder)
    if not shards:
        return Index([Store(folder)])
    count = int(shards[0].name.rpartition("-")[2])
    wanted = [folder / f"shard-{number}-of-{count}" for number in range(1, count + 1)]
    if absent := [number for number, path in enumerate(wanted, start=1) if path not in shards]:
        raise DataError(
            f"{folder} lacks {len(absent)} of its {count} shards: build them, such as with --shard "
            f"{absent[0]}/{count}."
        )
    return Index([Store(path) for path in wanted])


def list_shards(folder: Path) -> list[Path]:
    """The shards in a folder, by the names that builds give them."""
    return sorted(folder.glob("shard-*-of-*"))


def pair_weights(by: Sequence[str], weights: Sequence[float] | None) -> dict[str, float]:
    """Features and weights from the two lists of a command. Raises SettingsError."""
    if not by or len(set(by)) < len(by):
        raise SettingsError(f"there is no feature to compare by, or one twice: {', '.join(by)}.")
    if weights is not None and len(weights) != len(by):
        raise SettingsError(
            f"{len(weights)} weights for {len(by)} features ({', '.join(by)}): give one weight per feature."
        )
    return dict(zip(by, weights or [1.0] * len(by), strict=True))


def require_same_model(store: Store, encoder: "Encoder") -> None:
    """Raise DataError if a store was built with another model."""
    facts = store.metadata
    if facts["identity"] != encoder.identity:
        of = f"the bundle {facts['model'] or facts['identity'][:12]}"
        if heads := facts.get("heads"):
            of = f"heads of {heads['model']} by the role table {heads['table']!r}"
        raise DataError(
            f"the index {store.folder} holds features of {of}, which are not comparable with those of "
            "another bundle or model: use that one, or build an index with this one elsewhere."
        )


def best_rows(
    scores: Float[np.ndarray, "row"], rows: Int[np.ndarray, "candidate"], count: int
) -> Int[np.ndarray, "neighbor"]:
    """The ``count`` of some rows that have the highest scores, best first; of equal ones the first rows."""
    if count < len(rows):
        least = torch.from_numpy(scores[rows]).topk(count).values[-1].item()
        rows = rows[scores[rows] >= least]
    return rows[np.argsort(-scores[rows], kind="stable")[:count]]


def _search(
    store: Store,
    database: sqlite3.Connection,
    queries: Mapping[str, Tensor],
    shares: Mapping[str, float],
    count: int,
    without: str | None,
) -> dict[str, tuple[float, dict[str, float]]]:
    """The best contents of a store: the score of each, and its cosine by feature."""
    rows = store.used_rows(database)
    for (row,) in database.execute("SELECT row FROM files WHERE sha256 = ? LIMIT 1", (without,)):
        rows = rows[rows != row]
    by_feature = {name: store.scores(name, query) for name, query in queries.items()}
    scores = torch.zeros(store.rows, dtype=torch.float64)
    for name, share in shares.items():
        scores += share * by_feature[name]
    found = {}
    for row in best_rows(scores.numpy(), rows, count).tolist():
        ((sha256,),) = database.execute("SELECT sha256 FROM files WHERE row = ? LIMIT 1", (row,))
        by = {name: float(values[row]) for name, values in by_feature.items()}
        found[sha256] = float(scores[row]), by
    return found


def _hit(
    databases: Sequence[sqlite3.Connection], sha256: str, score: float, by: dict[str, float], most_copies: int
) -> Hit:
    """A hit with the files of its content in all shards."""
    files, count = list[bytes](), 0
    for database in databases:
        listed = "SELECT path FROM files WHERE sha256 = ? ORDER BY path LIMIT ?"
        files += [name for (name,) in database.execute(listed, (sha256, most_copies + 1))]
        ((more,),) = database.execute("SELECT COUNT(*) FROM files WHERE sha256 = ?", (sha256,))
        count += more
    first, *copies = map(os.fsdecode, sorted(files)[: most_copies + 1])
    return Hit(first, score, by, tuple(copies), count - 1 - len(copies), sha256)


def _encode_text(encoder: "Encoder", text: str) -> dict[str, Float[Tensor, "embed"]]:
    if not text.strip():
        raise DataError("the text is empty: give words to search for.")
    return dict(zip(encoder.features, encoder.texts([text])[0], strict=True))
