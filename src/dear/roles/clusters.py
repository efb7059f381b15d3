"""Concept clusters: HDBSCAN over phrases, its settings chosen by DBCV, clusters named by the nearest concept.

The paper clusters the sentence embeddings of the heads' phrases. By default [ours] the phrases are clustered
together with those of a pool with known concepts, in the space that separates these concepts best (linear
discriminants); `RoleSettings.space` and ``clustered`` give the paper's way. The pool's concepts name the
clusters [ours]. A phrase belongs to the cluster with the nearest center by cosine in the same space. Phrases
of a file with concepts are not clustered: each concept is a cluster (`given_clusters`).
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.errors import DataError, SettingsError, installation
from dear.roles.settings import RoleSettings

EXEMPLARS = 6
COMPARED = 3000
"""Members of a cluster whose distances are compared: more take gigabytes."""
EQUAL = 1e-6  # embeddings of unit length that differ by no more are the same


@dataclass(frozen=True)
class Clusters:
    """Clusters of phrases.

    Attributes:
        names: The concept of each cluster; two clusters may share one.
        centers: Mean of each cluster's members in the clustered space, of unit length.
        centroids: Mean sentence embedding of each cluster's members, of unit length.
        sizes: Members of each cluster among all phrases that were clustered, where a phrase of a head that is
            also the pool's counts twice; of a given concept, its phrases.
        exemplars: For each cluster, the phrases of the heads nearest to its center.
        dbcv: Density-based clustering validation of the chosen setting (Moulavi et al., 2014), -1 to 1; None
            for given concepts.
        tried: Each setting tried: min_size, selection, clusters, left out (share), dbcv.
        reduced: The heads' phrases, then the pool's (of given concepts, its others), in the clustered space.
        labels: The cluster of each row of ``reduced``; -1 if HDBSCAN leaves it unassigned, or it was not
            clustered.
    """

    names: tuple[str, ...]
    centers: Float[Tensor, "cluster dim"]
    centroids: Float[Tensor, "cluster width"]
    sizes: tuple[int, ...]
    exemplars: tuple[tuple[str, ...], ...]
    dbcv: float | None
    tried: tuple[dict[str, Any], ...]
    reduced: Float[np.ndarray, "row dim"]
    labels: Int[np.ndarray, "row"]


def discriminants(
    embeddings: Float[Tensor, "phrase width"], concepts: Int[Tensor, "phrase"], count: int, shrinkage: float
) -> tuple[Float[Tensor, "width"], Float[Tensor, "width dim"]]:
    """Center and directions (one fewer than concepts) that best separate the concepts (Fisher, 1936).

    Each concept has the same weight, whatever its number of phrases. ``shrinkage`` shrinks the within-concept
    covariance towards a sphere of the same trace, of trace ``width`` if there is no variance. Raises
    SettingsError if that is too little for numerics.
    """
    values = embeddings.double()
    means = _means(values, concepts, count)
    covariances = [torch.cov(values[concepts == concept].T, correction=0) for concept in range(count)]
    within = torch.stack(covariances).mean(dim=0)
    width = values.shape[1]
    spread = within.diagonal().mean()
    if spread <= EQUAL**2 / width:  # the phrases of each concept are equal, as a single one is
        within, spread = torch.zeros_like(within), torch.ones_like(spread)
    sphere = spread * torch.eye(width, dtype=torch.float64)
    factor, failed = torch.linalg.cholesky_ex((1 - shrinkage) * within + shrinkage * sphere)
    if failed:
        raise SettingsError(
            "the phrases of the concepts vary in too few directions for so small a shrinkage: give a larger "
            "--settings.shrinkage."
        )
    center = means.mean(dim=0)
    # In coordinates whose within-concept covariance is the identity, these are the principal directions.
    white = torch.linalg.solve_triangular(factor, (means - center).T, upper=False)
    left, _, _ = torch.linalg.svd(white, full_matrices=False)
    return center, torch.linalg.solve_triangular(factor.T, left[:, : count - 1], upper=True)


def find_clusters(
    texts: Sequence[str],
    phrases: Float[Tensor, "phrase width"],
    pool: Float[Tensor, "pool width"],
    concepts: Sequence[str],
    settings: RoleSettings,
) -> Clusters:
    """Cluster the heads' phrases, together with phrases of known concepts or alone, in the space of the
    settings; deterministic.

    HDBSCAN's setting of the highest DBCV is used (ties: the first). Raises DataError if none gives two
    clusters, or the embeddings are not finite or all the same, SettingsError if hdbscan is not installed.
    """
    embeddings = torch.cat([phrases, pool])
    distinct, numbers = _numbered(concepts)
    points = _in_space(embeddings, pool, numbers, settings)
    rows = points.numpy()
    prototypes = normalize(_means(points[len(texts) :], numbers, len(distinct)), dim=1)
    best, dbcv, tried = _best_clustering(
        rows if settings.clustered == "with-pool" else rows[: len(texts)], settings
    )
    labels = torch.from_numpy(np.pad(best, (0, len(rows) - len(best)), constant_values=-1))
    clusters = _describe(texts, embeddings, points, labels)
    nearest = (clusters.centers @ prototypes.T).argmax(dim=1)
    return replace(clusters, names=tuple(distinct[int(i)] for i in nearest), dbcv=dbcv, tried=tuple(tried))


def given_clusters(
    texts: Sequence[str],
    phrases: Float[Tensor, "phrase width"],
    concepts: Sequence[str],
    settings: RoleSettings,
) -> Clusters:
    """The concepts that phrases were given, as clusters; the first phrases are ``texts``, those of the heads.
    Raises DataError for embeddings as `find_clusters` does.
    """
    names, labels = _numbered(concepts)
    points = _in_space(phrases, phrases, labels, settings)
    return replace(_describe(texts, phrases, points, labels), names=tuple(names))


def _numbered(concepts: Sequence[str]) -> tuple[list[str], Int[Tensor, "phrase"]]:
    """The distinct concepts, sorted, and the number of each phrase's."""
    distinct = sorted(set(concepts))
    return distinct, torch.tensor([distinct.index(concept) for concept in concepts])


def _in_space(
    embeddings: Float[Tensor, "phrase width"],
    pool: Float[Tensor, "pool width"],
    numbers: Int[Tensor, "pool"],
    settings: RoleSettings,
) -> Float[Tensor, "phrase dim"]:
    """Phrases in the space of the settings, where those of ``pool`` have concepts of these numbers."""
    if not embeddings.isfinite().all() or (embeddings - embeddings[0]).abs().max() <= EQUAL:
        raise DataError(
            "the embeddings of the phrases do not tell them apart: they are all the same, or not finite."
        )
    if settings.space == "embeddings":
        return embeddings.double()
    center, directions = discriminants(pool, numbers, int(numbers.max()) + 1, settings.shrinkage)
    return normalize((embeddings.double() - center) @ directions, dim=1)


def _describe(
    texts: Sequence[str],
    embeddings: Float[Tensor, "phrase width"],
    points: Float[Tensor, "phrase dim"],
    labels: Int[Tensor, "phrase"],
) -> Clusters:
    """The clusters of these labels, without names; the first phrases are ``texts``, those of the heads."""
    count, of_heads = int(labels.max()) + 1, labels[: len(texts)]
    centers = normalize(_means(points, labels, count), dim=1)
    similarity = points[: len(texts)] @ centers.T
    exemplars = []
    for cluster in range(count):
        members = torch.where(of_heads == cluster)[0]
        order = similarity[members, cluster].argsort(descending=True, stable=True)[:EXEMPLARS]
        exemplars.append(tuple(texts[int(i)] for i in members[order]))
    return Clusters(
        names=(),
        centers=centers,
        centroids=normalize(_means(embeddings.double(), labels, count), dim=1),
        sizes=tuple(int((labels == cluster).sum()) for cluster in range(count)),
        exemplars=tuple(exemplars),
        dbcv=None,
        tried=(),
        reduced=points.numpy(),
        labels=labels.numpy(),
    )


def validity(rows: Float[np.ndarray, "row dim"], labels: Int[np.ndarray, "row"]) -> float:
    """DBCV of a clustering, -1 to 1; -1 if it is not defined, or overflows, as in hundreds of dimensions.

    Of a cluster of more than ``COMPARED`` members so many are compared, evenly spread [ours]: all pairs of
    them are in memory.
    """
    names, sizes = np.unique(labels[labels >= 0], return_counts=True)
    compared = np.ones(len(labels), dtype=bool)
    for name in names[sizes > COMPARED]:
        (members,) = np.nonzero(labels == name)
        compared[members] = False
        compared[members[np.arange(COMPARED) * len(members) // COMPARED]] = True
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # of such an overflow
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            score, parts = optional("hdbscan.validity").validity_index(
                rows[compared].astype(np.float64), labels[compared], per_cluster_scores=True
            )
        except (ArithmeticError, AssertionError, LookupError, ValueError):  # it does not check what it gets
            return -1.0
    if not compared.all():
        score = (parts[names] * sizes).sum() / len(labels)
    return float(score) if math.isfinite(score) else -1.0


def optional(module: str) -> Any:
    """Import a module of the extra ``roles``. Raises SettingsError if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise SettingsError(
            f"finding concepts needs {module.split('.')[0]}: {installation('roles')}"
        ) from error


def _best_clustering(
    rows: Float[np.ndarray, "row dim"], settings: RoleSettings
) -> tuple[Int[np.ndarray, "row"], float, list[dict[str, Any]]]:
    make = optional("hdbscan").HDBSCAN
    best: tuple[float, Any] | None = None
    tried: list[dict[str, Any]] = []
    scores: dict[bytes, float] = {}  # of equal clusterings once
    for size in settings.min_sizes:
        for selection in ("eom", "leaf"):
            clustering = make(
                min_cluster_size=size,
                min_samples=min(settings.min_samples, len(rows) - 1),
                cluster_selection_method=selection,
                core_dist_n_jobs=1,
            ).fit(rows)
            labels = np.asarray(clustering.labels_, dtype=np.int64)
            count = int(labels.max()) + 1
            row: dict[str, Any] = {"min_size": size, "selection": selection, "clusters": count, "dbcv": None}
            row["left_out"] = round(float((labels < 0).mean()), 4)
            tried.append(row)
            if count < 2:
                continue
            key = labels.tobytes()
            if key not in scores:
                scores[key] = validity(rows, labels)
            row["dbcv"] = round(scores[key], 4)
            if best is None or scores[key] > best[0]:
                best = scores[key], labels
    if best is None:
        raise DataError(
            f"HDBSCAN finds fewer than two clusters in {len(rows)} phrases: take more phrases, or allow "
            f"smaller clusters than of {min(settings.min_sizes)} phrases (--settings.min-sizes)."
        )
    return best[1], best[0], tried


def _means(
    rows: Float[Tensor, "row dim"], groups: Int[Tensor, "row"], count: int
) -> Float[Tensor, "group dim"]:
    return torch.stack([rows[groups == group].mean(dim=0) for group in range(count)])
