"""Search an index, whole or in shards, by an image, a text or vectors: neighbors by a weighted mixture of
features. Every image is compared, so answers are exact.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
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
SHARD = r"shard-[1-9][0-9]{0,5}-of-[1-9][0-9]{0,5}"
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
        the index does not have; SettingsError if no weight is positive or an attribute owns no head.
        """
        for name in weights:
            if name in self.offered:
                continue
            if name in (*self.features, *self.metadata.get("heads", {}).get("left_out", ())):
                raise SettingsError(
                    f"{name} owns no head in the index's role table, so no feature is about it: choose among "
                    f"{', '.join(self.offered)}."
                )
            raise UnknownNameError("feature", name, self.offered)
        largest = max((abs(weight) for weight in weights.values()), default=0.0)
        if not any(weight > 0 for weight in weights.values()) or not np.isfinite([*weights.values()]).all():
            raise SettingsError(
                "no feature has a positive weight: at least one must be above 0, and all must be finite."
            )
        scaled = {name: weight / largest for name, weight in weights.items()}  # their sum cannot overflow
        total = sum(map(abs, scaled.values()))
        return {name: weight / total for name, weight in scaled.items()}

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
            SettingsError, UnknownNameError: as `shares`, and for a count below 1 or negative copies.
            DataError: for an index that was damaged or removed since it was opened, or a query vector that is
                not finite.
        """
        shares = self.shares(weights or dict.fromkeys(vectors, 1.0))
        if count < 1 or copies < 0:
            raise SettingsError(f"count is {count} and copies is {copies}: at least 1 and 0 are needed.")
        queries = {name: vectors[name].detach().cpu().float() for name in shares}
        if not all(query.isfinite().all() for query in queries.values()):
            raise DataError("the features of the query are not finite numbers: no image can be near it.")
        hits = dict[str, Hit]()  # by content
        for store in self.stores:
            for hit in _search(store, queries, shares, count, without, copies):
                same = hits.get(hit.sha256)
                hits[hit.sha256] = hit if same is None else _merge(same, hit, copies)
        if len(self.stores) == 1:
            return [*hits.values()]
        return sorted(hits.values(), key=lambda hit: (-hit.score, hit.path))[:count]

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
        files, embed = 0, self.metadata["embed"]
        facts = {"index": json.dumps(self.metadata)}
        with output_file(path) as file, ExitStack() as stack:
            writer = None
            for store in self.stores:
                stack.enter_context(store.reading())
                listed = store.ask(
                    "SELECT path, size, mtime, sha256, row FROM files WHERE row >= 0 ORDER BY row"
                )
                while part := listed.fetchmany(EXPORTED_AT_ONCE):
                    names, sizes, mtimes, hashes, rows = zip(*part, strict=True)
                    paths = [name.decode("utf-8", "replace") for name in names]
                    classes = [os.path.basename(os.path.dirname(name)) for name in paths]
                    columns = {
                        "path": paths,
                        "class": classes,
                        "size": sizes,
                        "mtime": mtimes,
                        "sha256": hashes,
                    }
                    for name, stored in store.vectors.items():
                        numbers = stored[[*rows]].astype(np.float32).ravel()
                        columns[f"vector_{name}"] = pa.FixedSizeListArray.from_arrays(numbers, embed)
                    table = pa.table(columns, metadata=facts)
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
    count = shards[0].name.rpartition("-")[2]
    wanted = [folder / f"shard-{number}-of-{count}" for number in range(1, int(count) + 1)]
    if absent := [number for number, path in enumerate(wanted, start=1) if path not in shards]:
        raise DataError(
            f"{folder} lacks {len(absent)} of its {count} shards: build them, such as with --shard "
            f"{absent[0]}/{count}."
        )
    return Index([Store(path) for path in wanted])


def list_shards(folder: Path) -> list[Path]:
    """The shards in a folder, by the names that builds give them."""
    return [path for path in sorted(folder.glob("shard-*-of-*")) if re.fullmatch(SHARD, path.name)]


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
    metadata = store.metadata
    if metadata["identity"] != encoder.identity:
        heads, model = metadata.get("heads"), metadata["model"] or metadata["identity"][:12]
        of = (
            f"heads of {heads['model']} by the role table {heads['table']!r}"
            if heads
            else f"the bundle {model}"
        )
        raise DataError(
            f"the index {store.folder} holds features of {of}, which are not comparable with those of "
            "another bundle or model: use that one, or build an index with this one elsewhere."
        )


def best_rows(
    scores: Float[np.ndarray, "row"], candidates: Bool[np.ndarray, "row"], count: int
) -> Int[np.ndarray, "neighbor"]:
    """The ``count`` candidates of the highest scores, best first; of equal ones the first rows."""
    rows: Int[np.ndarray, neighbor] = np.flatnonzero(candidates)
    if count < len(rows):
        least = torch.from_numpy(scores[rows]).topk(count).values[-1].item()
        rows = rows[scores[rows] >= least]
    return rows[np.argsort(-scores[rows], kind="stable")[:count]]


def _search(
    store: Store,
    queries: Mapping[str, Tensor],
    shares: Mapping[str, float],
    count: int,
    without: str | None,
    most_copies: int,
) -> list[Hit]:
    with store.reading():
        candidates, excluded = store.live, None if without is None else store.row_of(without)
        if excluded is not None:
            candidates = candidates.copy()
            candidates[excluded] = False
        by_feature = {name: store.scores(name, query) for name, query in queries.items()}
        scores = torch.zeros(store.rows, dtype=torch.float64)
        for name, share in shares.items():
            scores += share * by_feature[name]
        hits = []
        for row in best_rows(scores.numpy(), candidates, count).tolist():
            (first, *copies), more, sha256 = store.files_of(row, most_copies + 1)
            by = {name: float(values[row]) for name, values in by_feature.items()}
            hits.append(Hit(first, float(scores[row]), by, tuple(copies), more, sha256))
        return hits


def _merge(hit: Hit, same: Hit, most_copies: int) -> Hit:
    """One hit of two shards' files of one content."""
    first, *copies = sorted((hit.path, *hit.copies, same.path, *same.copies), key=os.fsencode)
    more = hit.more_copies + same.more_copies + len(copies[most_copies:])
    return replace(hit, path=first, copies=tuple(copies[:most_copies]), more_copies=more)


def _encode_text(encoder: "Encoder", text: str) -> dict[str, Float[Tensor, "embed"]]:
    if not text.strip():
        raise DataError("the text is empty: give words to search for.")
    return dict(zip(encoder.features, encoder.texts([text])[0], strict=True))
