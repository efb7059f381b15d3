"""Queries of an index: neighbours by a weighted mixture of features.

Each feature's FAISS index gives candidates; all of them are scored exactly from the stored vectors. In a flat
index every image is a candidate, so its answers are exact.
"""

from collections.abc import Mapping, Sequence
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

FEWEST_CANDIDATES = 100  # of each feature
CANDIDATES_A_RESULT = 10


class Index:
    """An index opened to be asked. FAISS indexes are read when a feature is first asked for."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.facts = catalogue.facts()
        self.features: tuple[str, ...] = tuple(self.facts["features"])
        self.rows: int = self.facts["rows"]
        self.live = catalogue.live(self.rows)
        self.vectors = stored(catalogue, self.facts)
        self._read: dict[int, Any] = {}

    @classmethod
    def open(cls, place: Path) -> "Index":
        """Raises DataError if there is none or its build was cut off; SettingsError without FAISS."""
        approximate.require_faiss()
        catalogue = Catalogue.open(place)
        facts = catalogue.facts()
        if "trained" not in facts or not facts["rows"]:
            raise DataError(f"the index {place} is not finished: run `dear index build` again, it goes on.")
        return cls(catalogue)

    @property
    def folder(self) -> Path:
        """Where the images lie."""
        return Path(self.facts["folder"])

    def query(
        self,
        vectors: Mapping[str, Float[Tensor, "embed"]],
        weights: Mapping[str, float] | None = None,
        *,
        count: int = 10,
        effort: float = 1.0,
        without: str | None = None,
    ) -> list[Hit]:
        """The best images for a query vector of each feature, best first.

        Args:
            weights: Of the features' cosines, 1 each if not given; a negative one drives away from the query.
            effort: Scales the search of indexes that are not flat: more is slower and misses less.
            without: SHA-256 of a content to leave out: the query's own.

        Raises:
            SettingsError: for weights of which none is positive, or a count below 1.
            UnknownNameError: for a feature that the index does not have.
        """
        shares = self.shares(weights or dict.fromkeys(vectors, 1.0))
        if count < 1:
            raise SettingsError(f"count is {count}: it must be at least 1.")
        own = None if without is None else self.catalogue.row_of(without)
        queries = {name: vectors[name].detach().cpu().numpy().astype(np.float32) for name in shares}
        rows = self._candidates(queries, shares, count + (own is not None), effort)
        rows = rows[rows != own] if own is not None else rows
        scores, parts = self._scored(rows, queries, shares)
        best = np.argsort(-scores, kind="stable")[:count]
        return [
            self._hit(int(rows[i]), float(scores[i]), {f: float(parts[f][i]) for f in parts}) for i in best
        ]

    def check(self, encoder: Encoder) -> None:
        """Raise DataError unless the index is of the encoder's model."""
        require_same_model(self.facts, encoder, self.catalogue.folder)

    def shares(self, given: Mapping[str, float]) -> dict[str, float]:
        """Weights whose sizes sum to one. Raises UnknownNameError and SettingsError as `query` does."""
        for name in given:
            if name not in self.features:
                raise UnknownNameError("feature", name, self.features)
        total = sum(abs(weight) for weight in given.values())
        if not any(weight > 0 for weight in given.values()) or not np.isfinite(total):
            raise SettingsError("no feature has a positive weight: give --weights with at least one above 0.")
        return {name: weight / total for name, weight in given.items()}

    def _candidates(
        self, queries: Mapping[str, Any], shares: Mapping[str, float], count: int, effort: float
    ) -> Int[np.ndarray, "candidate"]:
        if self.facts["kind"] == "flat" and len(shares) > 1:
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
        """Weighted cosines and those of each feature. Float16 rows are not quite units: they are made so."""
        parts = {}
        for name, query in queries.items():
            mapped = self.vectors.read(self.features.index(name), self.rows)
            found = np.asarray(mapped[rows], dtype=np.float32)
            parts[name] = found @ query / np.linalg.norm(found, axis=1).clip(1e-12)
        scores = sum((share * parts[name] for name, share in shares.items()), np.zeros(len(rows)))
        return scores, parts

    def _index(self, name: str) -> Any:
        feature = self.features.index(name)
        if feature not in self._read:
            index = approximate.load(self.vectors.index(feature))
            if index.ntotal != self.rows:
                raise DataError(
                    f"the index {self.catalogue.folder} is not finished: run `dear index build` again."
                )
            self._read[feature] = index
        return self._read[feature]

    def _hit(self, row: int, score: float, by: dict[str, float]) -> Hit:
        first, *copies = self.catalogue.paths_of(row)
        return Hit(first, score, by, tuple(copies))


def weights_of(by: Sequence[str], weights: Sequence[float] | None) -> dict[str, float]:
    """Features and weights from the two lists of a command. Raises SettingsError."""
    if len(set(by)) < len(by):
        raise SettingsError(f"a feature stands twice in {', '.join(by)}.")
    if weights is not None and len(weights) != len(by):
        raise SettingsError(
            f"{len(weights)} weights for {len(by)} features ({', '.join(by)}): give one each."
        )
    return dict(zip(by, weights or [1.0] * len(by), strict=True))
