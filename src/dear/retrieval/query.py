"""Queries of an index, whole or in shards, by an image, a text or vectors: neighbours by a weighted mixture
of features. Every image is compared, so answers are exact.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.data.images.decode import decode, read_image
from dear.data.images.transforms import eval_view
from dear.errors import DataError, SettingsError, UnknownNameError, printable, warn
from dear.retrieval.build import require_same_model
from dear.retrieval.catalogue import Catalogue
from dear.retrieval.encoder import Encoder
from dear.retrieval.results import COPIES, Hit, damaged
from dear.retrieval.scan import Shard, shards_in
from dear.retrieval.shards import all_shards, require_alike, require_rows
from dear.retrieval.vectors import TOLERANCE, Vectors

OF_A_PLACE, OF_A_MODEL = ("folder", "shard"), ("identity", "features", "embed")
"""Facts of an index that no build of it changes."""
AGREEING = (2 * TOLERANCE) ** 0.5
"""How far cosines with the features of one content may lie apart: a merge allows them an angle."""


class Index:
    """An index opened for queries.

    A query sees the changes made by builds since the previous query. During a build, and after an interrupted
    one, new and changed contents are not found yet.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.metadata: dict[str, Any] = {}
        self._unowned: tuple[str, ...] = ()
        self._state: object = None
        with self._current():
            pass

    @classmethod
    def open(cls, folder: Path) -> "Index":
        """Open an index. Raises DataError if there is none, if it is damaged or its first build was
        interrupted.
        """
        return cls(Catalogue.open(folder))

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Context in which the index is as the last build left it, and no build changes it."""
        with self.catalogue.reading() as state:
            if state != self._state:
                self._state = None  # what was loaded is replaced in parts
                self._load()
                self._state = state
            yield

    def _load(self) -> None:
        metadata, folder = self.catalogue.metadata(), self.catalogue.folder
        if self.metadata and any(metadata[name] != self.metadata[name] for name in OF_A_MODEL):
            raise DataError(f"the index {folder} was rebuilt with another bundle: open it again.")
        if self.metadata and any(metadata.get(name) != self.metadata.get(name) for name in OF_A_PLACE):
            raise DataError(f"the index {folder} was replaced by one of other images: open it again.")
        is_complete, may_be_empty = "searchable_rows" in metadata, "shard" in metadata
        if not (is_complete and (metadata["searchable_rows"] or may_be_empty)):
            raise DataError(f"the index {folder} is empty or incomplete: run `dear index build` again.")
        missing = metadata["rows"] - metadata["searchable_rows"]
        if missing and not self.metadata:  # once: a build changes the number again and again
            warn(
                f"{missing:,} of {metadata['rows']:,} contents of the index {printable(str(folder))} are not "
                "found yet: its last build has not ended. Run `dear index build` again."
            )
        self.metadata = metadata
        self.features: tuple[str, ...] = tuple(metadata["features"])
        self.left_out: tuple[str, ...] = tuple(metadata.get("heads", {}).get("left_out", ()))
        self.rows: int = metadata["searchable_rows"]
        self.live = self.catalogue.live(self.rows)
        self.vectors = Vectors.of(folder, metadata)
        self.vectors.check(self.rows)

    @property
    def folder(self) -> Path:
        """The folder of the images."""
        return Path(self.metadata["folder"])

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
            SettingsError: for weights of which none is positive, a count below 1, or negative copies.
            UnknownNameError: for a feature that the index does not have.
            DataError: for an index that was damaged or removed since it was opened, or a query vector that is
                not finite.
        """
        shares = self.shares(weights or dict.fromkeys(vectors, 1.0))
        if count < 1:
            raise SettingsError(f"count is {count}: it must be at least 1.")
        if copies < 0:
            raise SettingsError(f"copies is {copies}: it must be at least 0.")
        queries = {name: vectors[name].detach().cpu().float() for name in shares}
        if not all(query.isfinite().all() for query in queries.values()):
            raise DataError("the features of the query are not finite numbers: no image can be near it.")
        with self._current():
            candidates, excluded = self.live, None if without is None else self.catalogue.row_of(without)
            if excluded is not None and excluded < self.rows:
                candidates = self.live.copy()
                candidates[excluded] = False
            scores = torch.zeros(self.rows, dtype=torch.float64)
            for name, share in shares.items():
                if share:
                    scores += share * self.vectors.scores(self.features.index(name), self.rows, queries[name])
            rows = best_rows(scores.numpy(), candidates, count)
            by_feature = {
                name: self.vectors.scores_of(self.features.index(name), rows, query).tolist()
                for name, query in queries.items()
            }
            return [
                self._hit(row, float(scores[row]), {name: by_feature[name][i] for name in by_feature}, copies)
                for i, row in enumerate(rows.tolist())
            ]

    def check(self, encoder: Encoder) -> None:
        """Raise DataError unless the index was built with the encoder's model. From then on features of
        attributes that own no head are refused.
        """
        require_same_model(self.metadata, encoder, self.catalogue.folder)
        self._unowned = tuple(encoder.unowned)

    @property
    def offered(self) -> tuple[str, ...]:
        """The features to search by: all but those of attributes that own no head."""
        return tuple(name for name in self.features if name not in self._unowned)

    def shares(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Weights scaled so that their absolute values sum to one. Raises UnknownNameError and SettingsError
        as `query` does, and SettingsError for an attribute that owns no head.
        """
        for name in weights:
            if name in self.left_out or name in self._unowned:
                raise SettingsError(
                    f"{name} owns no head in the index's role table, so no feature is about it: choose among "
                    f"{', '.join(self.offered)}."
                )
            if name not in self.features:
                raise UnknownNameError("feature", name, self.offered)
        largest = max((abs(weight) for weight in weights.values()), default=0.0)
        if not any(weight > 0 for weight in weights.values()) or not np.isfinite([*weights.values()]).all():
            raise SettingsError(
                "no feature has a positive weight: at least one must be above 0, and all must be finite."
            )
        scaled = {name: weight / largest for name, weight in weights.items()}  # their sum cannot overflow
        total = sum(map(abs, scaled.values()))
        return {name: weight / total for name, weight in scaled.items()}

    def _hit(self, row: int, score: float, by: dict[str, float], most_copies: int) -> Hit:
        (first, *copies), more, sha256 = self.catalogue.files_of(row, most_copies + 1)
        return Hit(first, score, by, tuple(copies), more, sha256)


class Shards:
    """All shards of an index, opened for queries as an `Index` is: each is searched, and the best hits of all
    are the answer. Contents that several shards have are one hit.
    """

    def __init__(self, shards: Sequence[Index]) -> None:
        self.shards = shards
        first = shards[0]
        self._parts = [Shard(*index.metadata["shard"]) for index in shards]
        self.metadata, self.features, self.left_out = first.metadata, first.features, first.left_out

    @classmethod
    def open(cls, folder: Path) -> "Shards":
        """Open the shards in a folder. Raises DataError for shards that are missing, damaged or of different
        models or folders.
        """
        indexes = {shard: Index.open(path) for shard, path in all_shards(folder).items()}
        require_alike({shard: (index.catalogue.folder, index.metadata) for shard, index in indexes.items()})
        require_rows(folder, (index.rows for index in indexes.values()))
        return cls([*indexes.values()])

    @property
    def folder(self) -> Path:
        """The folder of the images."""
        return self.shards[0].folder

    @property
    def rows(self) -> int:
        """The rows of all shards."""
        return sum(index.rows for index in self.shards)

    @property
    def offered(self) -> tuple[str, ...]:
        """The features to search by."""
        return self.shards[0].offered

    def check(self, encoder: Encoder) -> None:
        """As `Index.check`."""
        for index in self.shards:
            index.check(encoder)

    def shares(self, weights: Mapping[str, float]) -> dict[str, float]:
        """As `Index.shares`."""
        return self.shards[0].shares(weights)

    def query(
        self,
        vectors: Mapping[str, Float[Tensor, "embed"]],
        weights: Mapping[str, float] | None = None,
        **options: Any,
    ) -> list[Hit]:
        """As `Index.query`. Raises DataError also for a hit that does not belong to its shard, or whose
        content has other features in another one.
        """
        hits, most_copies = dict[str, Hit](), options.get("copies", COPIES)  # hits by content
        for part, index in zip(self._parts, self.shards, strict=True):
            for hit in index.query(vectors, weights, **options):
                if odd := next((path for path in (hit.path, *hit.copies) if not part.has(path)), None):
                    raise damaged(index.catalogue.folder, f"{odd[:100]!r} does not belong to shard {part}")
                same = hits.get(hit.sha256)
                if same and any(abs(hit.by[name] - same.by[name]) > AGREEING for name in hit.by):
                    why = f"{hit.path[:100]!r} has the content of another shard's file, but not its features"
                    raise damaged(index.catalogue.folder, why)
                paths = [hit.path, *hit.copies, *((same.path, *same.copies) if same else ())]
                first, *copies = sorted(paths, key=os.fsencode)
                more = hit.more_copies + (same.more_copies if same else 0) + len(copies[most_copies:])
                named = tuple(copies[:most_copies])
                hits[hit.sha256] = replace(same or hit, path=first, copies=named, more_copies=more)
        best = sorted(hits.values(), key=lambda hit: (-hit.score, hit.path))
        return best[: options.get("count", 10)]


Searchable = Index | Shards


def best_rows(
    scores: Float[np.ndarray, "row"], candidates: Bool[np.ndarray, "row"], count: int
) -> Int[np.ndarray, "neighbour"]:
    """The ``count`` candidates of the highest scores, best first; of equal ones the first rows."""
    rows: Int[np.ndarray, neighbour] = np.flatnonzero(candidates)
    if count < len(rows):
        least = torch.from_numpy(scores[rows]).topk(count).values[-1].item()
        rows = rows[scores[rows] >= least]
    return rows[np.argsort(-scores[rows], kind="stable")[:count]]


def open_index(folder: Path) -> Searchable:
    """Open an index, or all shards of one, for queries. Raises as `Index.open` and `Shards.open`."""
    return Shards.open(folder) if shards_in(folder) and not Catalogue.exists(folder) else Index.open(folder)


def by_image(
    index: Searchable,
    encoder: Encoder,
    image: Path,
    weights: Mapping[str, float],
    *,
    count: int = 10,
    itself: bool = False,
    words: Mapping[str, str] | None = None,
) -> list[Hit]:
    """The images most similar to an image file, excluding the file itself unless ``itself``.

    ``words`` are texts for some of the features, which are compared with them instead of with the image.
    Raises DataError for an unreadable file or an empty text, SettingsError for a text of a feature that has
    no weight.
    """
    for name, text in (words or {}).items():
        if name not in weights:
            raise SettingsError(f"there are words for {name}, which the images are not compared by.")
        _require_words(text)
    content = read_image(image)
    view = eval_view(decode(image, data=content), encoder.preprocess)
    features = encoder.images(view[None])[0]
    excluded = None if itself else hashlib.sha256(content).hexdigest()
    queries = _by_feature(encoder, features)
    for name, text in (words or {}).items():
        queries[name] = _by_feature(encoder, encoder.texts([text])[0])[name]
    return index.query(queries, weights, count=count, without=excluded)


def by_text(
    index: Searchable,
    encoder: Encoder,
    words: str,
    weights: Mapping[str, float],
    *,
    count: int = 10,
) -> list[Hit]:
    """The images whose features are nearest to a text's. Raises DataError for an empty text."""
    _require_words(words)
    return index.query(_by_feature(encoder, encoder.texts([words])[0]), weights, count=count)


def weights_of(by: Sequence[str], weights: Sequence[float] | None) -> dict[str, float]:
    """Features and weights from the two lists of a command. Raises SettingsError."""
    if not by:
        raise SettingsError("there is no feature to compare by: name at least one, for example class.")
    if len(set(by)) < len(by):
        raise SettingsError(f"a feature appears twice in {', '.join(by)}.")
    if weights is not None and len(weights) != len(by):
        raise SettingsError(
            f"{len(weights)} weights for {len(by)} features ({', '.join(by)}): give one weight per feature."
        )
    return dict(zip(by, weights or [1.0] * len(by), strict=True))


def _by_feature(encoder: Encoder, rows: Float[Tensor, "feature embed"]) -> dict[str, Float[Tensor, "embed"]]:
    return dict(zip(encoder.features, rows, strict=True))


def _require_words(text: str) -> None:
    if not text.strip():
        raise DataError("the text is empty: give words to search for.")
