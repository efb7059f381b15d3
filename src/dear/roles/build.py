"""Build a role table and its evidence from the phrases of all heads: embedding, clusters, entropy, roles."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from dear.backbone.clip import Identity
from dear.errors import SettingsError
from dear.roles.clusters import Clusters, find_clusters, optional, validity
from dear.roles.entropy import (
    HeadConcepts,
    assign_roles,
    core_attributes,
    head_concepts,
    nearest_centroid,
    thresholds,
)
from dear.roles.phrases import Pool, embed_phrases, general_pool
from dear.roles.settings import RoleSettings
from dear.roles.table import Head, RoleTable

K_RANGE = range(3, 8)
MAPPED = 1000  # phrases on the map; if there are more, every second, third, ...


def build_table(
    heads: Mapping[Head, Sequence[str]],
    weights: Identity,
    *,
    source: str,
    named: Pool | None = None,
    settings: RoleSettings | None = None,
    sentence_model: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> RoleTable:
    """The role table of heads whose phrases are known, in TEXTSPAN's order.

    ``named`` is a pool whose concepts name the clusters; the general pool by default. ``facts`` are added to
    the table's settings. Deterministic. Raises DataError
    for heads without phrases and for fewer than two clusters, SettingsError for unsuitable settings.
    """
    s, pool = settings or RoleSettings(), named or general_pool()
    require_concepts(pool, s)
    head_concepts({head: [*phrases] for head, phrases in heads.items()})  # refuses heads without a phrase
    texts = list(dict.fromkeys(text for phrases in heads.values() for text in phrases))
    embedded = embed_phrases(texts, sentence_model)
    clusters = find_clusters(texts, embedded, embed_phrases(pool.phrases, sentence_model), pool.concepts, s)
    nearest = nearest_centroid(torch.from_numpy(clusters.reduced[: len(texts)]), clusters.centres).tolist()
    concept = {text: clusters.names[number] for text, number in zip(texts, nearest, strict=True)}
    by_head = head_concepts({h: [concept[text] for text in phrases] for h, phrases in heads.items()})
    centres = _concept_centres(clusters)
    low, high = thresholds([concepts.entropy for concepts in by_head.values()], s.quantile)
    limits = (low, high) if s.rule == "quantile" else None
    owners = {
        c.concept for c in by_head.values() if limits is None or c.entropy <= low
    }  # of specialised heads
    by_k = _dbcv_by_k(clusters, by_head, centres, s, owners)
    attributes = s.attributes or core_attributes(by_head, centres, s.k or _best_k(by_k), s.general, owners)
    evidence = {
        "clusters": [
            {"concept": name, "size": size, "exemplars": list(exemplars)}
            for name, size, exemplars in zip(clusters.names, clusters.sizes, clusters.exemplars, strict=True)
        ],
        "dbcv": round(clusters.dbcv, 4),
        "tried": list(clusters.tried),
        "dbcv_by_k": by_k,
        "thresholds": [round(low, 4), round(high, 4)] if limits else [],
        "phrases": len(texts),
        "left_out_by_hdbscan": int((clusters.labels[: len(texts)] < 0).sum()),
        "points": _points(texts, clusters, concept, s.seed),
    }
    return RoleTable(
        source=source,
        weights=weights,
        attributes=tuple(attributes),
        heads=assign_roles(by_head, attributes, limits=limits, general=s.general, phrases=heads),
        settings=json.loads(json.dumps({**(facts or {}), "concepts_from": pool.name, **asdict(s)})),
        evidence=evidence,
    )


def require_concepts(pool: Pool, settings: RoleSettings) -> None:
    """Raises SettingsError for a pool without concepts, and for core attributes or general concepts that
    are none of them; the default ones may be missing.
    """
    if not pool.concepts:
        raise SettingsError(f"the phrases of {pool.name} have no concepts to name clusters.")
    general = [name for name in settings.general if name not in RoleSettings().general]
    for option, names in (("attributes", settings.attributes), ("settings.general", general)):
        if unknown := [name for name in names if name not in pool.concepts]:
            raise SettingsError(
                f"{option}: there is no concept {unknown[0]!r}. Known concepts: "
                f"{', '.join(sorted({*pool.concepts}))}."
            )


def _concept_centres(clusters: Clusters) -> dict[str, torch.Tensor]:
    """One unit centroid per concept; several clusters are averaged by size."""
    sizes = torch.tensor(clusters.sizes, dtype=torch.float64)
    return {
        name: normalize(
            sum(  # type: ignore[arg-type]
                sizes[i] * clusters.centroids[i] for i, label in enumerate(clusters.names) if label == name
            ),
            dim=0,
        )
        for name in dict.fromkeys(clusters.names)
    }


def _dbcv_by_k(
    clusters: Clusters,
    heads: Mapping[Head, HeadConcepts],
    centres: Mapping[str, torch.Tensor],
    s: RoleSettings,
    owners: set[str],
) -> dict[str, float]:
    """DBCV of only the clusters of the K core attributes, for K from 3 to 7."""
    by_k = {}
    available = {name for head in heads.values() for name in head.share} - set(s.general)
    for k in K_RANGE:
        if k > len(available):
            break
        core = core_attributes(heads, centres, k, s.general, owners)
        rows = np.isin(clusters.labels, [i for i, name in enumerate(clusters.names) if name in core])
        by_k[str(k)] = round(validity(clusters.reduced[rows], clusters.labels[rows]), 4)
    return by_k


def _best_k(by_k: Mapping[str, float]) -> int:
    if not by_k:
        raise SettingsError("fewer than 3 concepts occur, so K cannot be chosen: give --settings.attributes.")
    return int(max(by_k, key=lambda k: by_k[k]))


def _points(
    texts: Sequence[str], clusters: Clusters, concept: Mapping[str, str], seed: int
) -> list[list[Any]]:
    """The heads' phrases on a plane (t-SNE of the clustered space): x, y, concept, phrase."""
    step = -(-len(texts) // MAPPED)
    texts, rows = texts[::step], clusters.reduced[: len(texts) : step]
    if len(rows) < 4:
        return []
    make = optional("sklearn.manifold").TSNE
    # The exact method: the fast one sums in an order that depends on the threads.
    perplexity = min(30.0, (len(rows) - 1) / 3)
    flat = make(perplexity=perplexity, init="pca", method="exact", random_state=seed).fit_transform(rows)
    return [
        [round(float(x), 2), round(float(y), 2), concept[text], text]
        for (x, y), text in zip(flat, texts, strict=True)
    ]
