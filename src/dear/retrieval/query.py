"""Queries of an index: neighbours by a weighted mixture of features.

Each feature's FAISS index yields candidates; all of them are scored exactly from the stored vectors. In a
flat index every image is a candidate, so its answers are exact.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from dear.errors import DataError, SettingsError, UnknownNameError
from dear.retrieval import approximate
from dear.retrieval.build import require_same_model, stored
from dear.retrieval.catalogue import Catalogue
from dear.retrieval.encoder import Encoder
from dear.retrieval.results import Hit

FEWEST_CANDIDATES = 100  # per feature
CANDIDATES_A_RESULT = 10
CHUNK = 1024  # rows scored at a time: they stay in the processor's cache


class Index:
    """An index opened for queries. FAISS indexes are read when a feature is first used.

    A query sees the changes made by builds since the previous query. During a build, and after an interrupted
    one, files that are not in a FAISS index yet may not be found.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.metadata: dict[str, Any] = {}
        self._unowned: tuple[str, ...] = ()
        self._state: object = None
        self._read: dict[int, tuple[object, Any]] = {}  # FAISS indexes, and the identity of their files
        with self._current():
            pass

    @classmethod
    def open(cls, place: Path) -> "Index":
        """Open an index. Raises DataError if there is none, if it is damaged or its first build was
        interrupted; SettingsError without FAISS.
        """
        approximate.require_faiss()
        return cls(Catalogue.open(place))

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Context in which the index is as the last build left it, and no build changes it."""
        with self.catalogue.reading() as state:
            if state != self._state:
                self._load()
                self._state = state
            yield

    def _load(self) -> None:
        metadata, place = self.catalogue.metadata(), self.catalogue.folder
        if self.metadata and metadata["identity"] != self.metadata["identity"]:
            raise DataError(f"the index {place} was rebuilt with another bundle: open it again.")
        if "trained" not in metadata or not metadata["rows"]:
            raise DataError(f"the index {place} is empty or incomplete: run `dear index build` again.")
        self.metadata = metadata
        self.features: tuple[str, ...] = tuple(metadata["features"])
        self.left_out: tuple[str, ...] = tuple(metadata.get("heads", {}).get("left_out", ()))
        self.rows: int = metadata["rows"]
        self.live = self.catalogue.live(self.rows)
        self.vectors = stored(self.catalogue, metadata)
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
        effort: float = 1.0,
        without: str | None = None,
    ) -> list[Hit]:
        """The best images for a query vector per feature, best first.

        Args:
            weights: Weights of the features' cosines, 1 each if not given; negative ones prefer dissimilar
                images.
            effort: Scales the search of indexes that are not flat: more is slower and misses less.
            without: SHA-256 of a content to leave out: the query's own.

        Raises:
            SettingsError: for weights of which none is positive, a count below 1, or an effort that is not
                above 0.
            UnknownNameError: for a feature that the index does not have.
            DataError: for an index that was damaged or removed since it was opened.
        """
        shares = self.shares(weights or dict.fromkeys(vectors, 1.0))
        if count < 1:
            raise SettingsError(f"count is {count}: it must be at least 1.")
        if not 0 < effort < np.inf:
            raise SettingsError(f"effort is {effort:g}: it must be above 0, and finite.")
        queries = {name: vectors[name].detach().cpu().numpy().astype(np.float32) for name in shares}
        with self._current():
            own = None if without is None else self.catalogue.row_of(without)
            rows = self._candidates(queries, shares, count + (own is not None), effort)
            rows = rows[rows != own] if own is not None else rows
            scores, parts = self._scored(rows, queries, shares)
            best = np.argsort(-scores, kind="stable")[:count]
            return [
                self._hit(int(rows[i]), float(scores[i]), {f: float(parts[f][i]) for f in parts})
                for i in best
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

    def shares(self, given: Mapping[str, float]) -> dict[str, float]:
        """Weights scaled so that their absolute values sum to one. Raises UnknownNameError and SettingsError
        as `query` does, and SettingsError for an attribute that owns no head.
        """
        for name in given:
            if name in self.left_out or name in self._unowned:
                raise SettingsError(
                    f"{name} owns no head in the index's role table, so no feature is about it: choose among "
                    f"{', '.join(self.offered)}."
                )
            if name not in self.features:
                raise UnknownNameError("feature", name, self.offered)
        most = max((abs(weight) for weight in given.values()), default=0.0)
        if not any(weight > 0 for weight in given.values()) or not np.isfinite([*given.values()]).all():
            raise SettingsError(
                "no feature has a positive weight: at least one must be above 0, and all must be finite."
            )
        scaled = {name: weight / most for name, weight in given.items()}  # their sum cannot overflow
        total = sum(map(abs, scaled.values()))
        return {name: weight / total for name, weight in scaled.items()}

    def _candidates(
        self, queries: Mapping[str, Any], shares: Mapping[str, float], count: int, effort: float
    ) -> Int[np.ndarray, "candidate"]:
        if self.metadata["kind"] == "flat" and len(shares) > 1:
            return np.flatnonzero(self.live)
        most = max(FEWEST_CANDIDATES, CANDIDATES_A_RESULT * count)
        found = [
            approximate.search(self._index(name), queries[name], most, self.live, effort=effort)
            for name, share in shares.items()
            if share > 0
        ]
        return np.unique(np.concatenate(found))

    def _scored(
        self, rows: Int[np.ndarray, "candidate"], queries: Mapping[str, Any], shares: Mapping[str, float]
    ) -> tuple[Float[np.ndarray, "candidate"], dict[str, Float[np.ndarray, "candidate"]]]:
        """Weighted cosines and those of each feature. Float16 rows are renormalised to unit length."""
        parts = {}
        for name, query in queries.items():
            mapped = self.vectors.read(self.features.index(name), self.rows)
            cosines = np.empty(len(rows), dtype=np.float32)
            for start in range(0, len(rows), CHUNK):
                found = np.asarray(mapped[rows[start : start + CHUNK]], dtype=np.float32)
                lengths = self.vectors.lengths(self.features.index(name), found)
                cosines[start : start + CHUNK] = found @ query / lengths
            parts[name] = cosines
        scores = sum((share * parts[name] for name, share in shares.items()), np.zeros(len(rows)))
        return scores, parts

    def _index(self, name: str) -> Any:
        feature = self.features.index(name)
        path = self.vectors.index(feature)
        file = (path, path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None
        if feature not in self._read or self._read[feature][0] != file:
            self._read[feature] = file, approximate.load(path, self.metadata["embed"], self.rows)
        return self._read[feature][1]

    def _hit(self, row: int, score: float, by: dict[str, float]) -> Hit:
        (first, *copies), sha256 = self.catalogue.files_of(row)
        return Hit(first, score, by, tuple(copies), sha256)


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
