"""From the phrases of all heads to a role table: the phrases' concepts (clusters of their embeddings), each
head's concept entropy, and its role (paper, section on head roles).
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.clip import Identity
from dear.errors import DataError, SettingsError
from dear.roles.clusters import Clusters, find_clusters, given_clusters, validity
from dear.roles.phrases import GENERAL, WORLD, Pool, embed_phrases, general_pool
from dear.roles.settings import DEFAULT_K, RoleSettings
from dear.roles.table import Head, HeadRole, Role, RoleTable
from dear.text import plural

K_RANGE = range(3, 8)


@dataclass(frozen=True)
class HeadConcepts:
    """One head's distribution over concepts.

    Attributes:
        share: Share of each concept that occurs, largest first.
    """

    share: Mapping[str, Fraction]
    entropy: float

    @property
    def concept(self) -> str:
        """The dominant concept."""
        return next(iter(self.share))


def concept_entropy(shares: Iterable[float | Fraction]) -> float:
    """CE(h) = -sum_k p_h(k) log p_h(k), in nats, to twelve decimals: so shares with the same entropy, such as
    4, 4, 4 and 8, 1, 1, 1, 1 of 12, have the same number.
    """
    return round(-math.fsum(share * math.log(share) for share in shares if share > 0), 12) + 0.0


def head_concepts(heads: Mapping[Head, Sequence[str]]) -> dict[Head, HeadConcepts]:
    """The distribution of each head over the concepts of its phrases, given in TEXTSPAN's order.

    Concepts with equal shares are sorted by that order: the first explains more variance.
    """
    distributions: dict[Head, HeadConcepts] = {}
    for head, concepts in heads.items():
        share = {
            concept: Fraction(count, len(concepts)) for concept, count in Counter(concepts).most_common()
        }
        distributions[head] = HeadConcepts(share, concept_entropy(share.values()))
    return distributions


def thresholds(entropies: Sequence[float], quantile: float) -> tuple[float, float]:
    """The q and 1 - q quantiles, interpolated linearly; one that falls on a value is that value."""
    values, q = sorted(entropies), Fraction(quantile).limit_denominator(10**6)

    def value_at(position: Fraction) -> float:
        index = math.floor(position)
        if index == position:
            return values[index]
        return values[index] + float(position - index) * (values[index + 1] - values[index])

    return value_at(q * (len(values) - 1)), value_at((1 - q) * (len(values) - 1))


def role_of(
    entropy: float,
    concept: str | None,
    limits: tuple[float, float] | None,
    attributes: Collection[str],
    general: Collection[str],
) -> Role:
    """The role of a head by its concept entropy and its dominant concept.

    At or below the lower limit, a head is specialized: core if its concept is among the attributes,
    generalization if it is in ``general``, else other-specialized. At or above the upper limit it is a
    generalization head, in between mixed. Without limits entropy plays no part: a head without a concept is
    mixed, any other specialized.
    """
    if limits is not None and entropy > limits[0]:
        return "generalization" if entropy >= limits[1] else "mixed"
    if limits is None and concept is None:
        return "mixed"
    if concept in attributes:
        return "core"
    return "generalization" if concept in general else "other-specialized"


def assign_roles(
    heads: Mapping[Head, HeadConcepts],
    attributes: Sequence[str],
    *,
    limits: tuple[float, float] | None,
    general: Sequence[str] = (),
    phrases: Mapping[Head, Sequence[str]] | None = None,
) -> tuple[HeadRole, ...]:
    """Roles by limits of concept entropy, or by concepts alone, as in `role_of`."""
    roles = []
    for (layer, head), concepts in heads.items():
        role = role_of(concepts.entropy, concepts.concept, limits, attributes, general)
        roles.append(
            HeadRole(
                layer,
                head,
                role,
                concepts.concept if role == "core" else None,
                concepts.concept,
                round(concepts.entropy, 4),
                {concept: round(float(share), 4) for concept, share in concepts.share.items()},
                tuple((phrases or {}).get((layer, head), ())),
            )
        )
    return tuple(roles)


def core_attributes(
    heads: Mapping[Head, HeadConcepts],
    centroids: Mapping[str, Float[Tensor, "width"]],
    k: int,
    general: Sequence[str] = (),
    owners: Collection[str] = (),
) -> tuple[str, ...]:
    """The k frequent and mutually distinct concepts, chosen greedily.

    Each step takes the concept with the largest product of frequency (mean share over heads) and distance
    (one minus the highest cosine with those already chosen); the first ones among ``owners``, the dominant
    concepts of specialized heads, so that an attribute has heads if enough concepts do. Concepts in
    ``general`` are excluded. The paper gives the two criteria but no formula [ours]. Raises SettingsError for
    fewer than k concepts.
    """
    frequency: dict[str, Fraction | float] = defaultdict(Fraction)
    for head in heads.values():
        for concept, share in head.share.items():
            if concept not in general:
                frequency[concept] += share / len(heads)
    if k > len(frequency):
        raise SettingsError(
            f"{plural(k, 'core attribute')} must be among the heads' concepts, but these are only "
            f"{len(frequency)}: {', '.join(sorted(frequency)) or 'none'}. Give more phrases"
            f"{', or omit --settings.k' if frequency else ''}."
        )
    attributes: list[str] = []

    def product(concept: str) -> float:
        cosines = (float(centroids[concept] @ centroids[attribute]) for attribute in attributes)
        return float(frequency[concept]) * (1 - max(cosines, default=0.0))

    while len(attributes) < k:
        candidates = frequency.keys() - set(attributes)
        attributes.append(max(sorted(candidates & {*owners} or candidates), key=product))
    return tuple(attributes)


def build_table(
    heads: Mapping[Head, Sequence[str]],
    weights: Identity,
    *,
    source: str,
    named: Pool | None = None,
    settings: RoleSettings | None = None,
    facts: Mapping[str, Any] | None = None,
) -> RoleTable:
    """The role table of heads whose phrases are known, in TEXTSPAN's order.

    ``named`` is a pool whose concepts name the clusters; the general pool by default. If it is a user's and
    has all phrases, their concepts are taken as they are. ``facts`` are added to the table's settings.
    Deterministic. Raises DataError for heads without phrases and for fewer than two clusters, SettingsError
    for unsuitable settings.
    """
    s, pool = settings or RoleSettings(), named or general_pool()
    require_concepts(pool, s)
    require_phrases(heads)
    texts = list(dict.fromkeys(text for phrases in heads.values() for text in phrases))
    concept = dict(zip(pool.phrases, pool.concepts, strict=True))
    if pool.name not in (GENERAL, WORLD) and {*texts} <= {*concept}:
        phrases_of_pool = [*dict.fromkeys([*texts, *concept])]
        given = [concept[text] for text in phrases_of_pool]
        clusters = given_clusters(texts, embed_phrases(phrases_of_pool), given, s)
    else:
        clusters = find_clusters(texts, embed_phrases(texts), embed_phrases(pool.phrases), pool.concepts, s)
        concept = _nearest(texts, clusters)
    by_head = head_concepts({h: [concept[text] for text in phrases] for h, phrases in heads.items()})
    centers = _concept_centers(clusters)
    low, high = thresholds([concepts.entropy for concepts in by_head.values()], s.quantile)
    owners = {c.concept for c in by_head.values() if s.rule == "concept" or c.entropy <= low}
    if s.entropy_over == "attributes":
        owners = set()  # the entropies that tell specialized heads follow from the attributes
    occurring = {name for head in by_head.values() for name in head.share} - {*s.general}
    k = min(DEFAULT_K, max(len(occurring), 1)) if s.k is None else s.k
    by_k = _dbcv_by_k(clusters, by_head, centers, s, owners) if clusters.tried or k == 0 else {}
    attributes = s.attributes or core_attributes(by_head, centers, k or _best_k(by_k), s.general, owners)
    if s.entropy_over == "attributes":
        nearest = _nearest(texts, clusters, attributes)
        nearest |= {text: concept[text] for text in texts if concept[text] in attributes}
        over_attributes = head_concepts({h: [nearest[text] for text in heads[h]] for h in heads})
        by_head = {
            head: replace(concepts, entropy=over_attributes[head].entropy)
            for head, concepts in by_head.items()
        }
        low, high = thresholds([concepts.entropy for concepts in by_head.values()], s.quantile)
    limits = (low, high) if s.rule == "quantile" else None
    evidence = {
        "clusters": [
            {"concept": name, "size": size, "exemplars": list(exemplars)}
            for name, size, exemplars in zip(clusters.names, clusters.sizes, clusters.exemplars, strict=True)
        ],
        **({} if clusters.dbcv is None else {"dbcv": round(clusters.dbcv, 4), "tried": list(clusters.tried)}),
        "dbcv_by_k": by_k,
        "thresholds": [round(low, 4), round(high, 4)] if limits else [],
        "phrases": len(texts),
        "left_out_by_hdbscan": int((clusters.labels[: len(texts)] < 0).sum()),
    }
    options = {name: value for name, value in asdict(replace(s, k=k)).items() if value is not None}
    return RoleTable(
        source=source,
        weights=weights,
        attributes=tuple(attributes),
        heads=assign_roles(by_head, attributes, limits=limits, general=s.general, phrases=heads),
        settings=json.loads(json.dumps({**(facts or {}), "concepts_from": pool.name, **options})),
        evidence=evidence,
    )


def _nearest(
    texts: Sequence[str], clusters: Clusters, concepts: Collection[str] | None = None
) -> dict[str, str]:
    """The concept of the cluster with the nearest center to each of the heads' phrases; with ``concepts``
    only their clusters count (equation 2). By default cosines are those of the discriminants [ours].
    """
    names = clusters.names
    kept = [i for i, name in enumerate(names) if concepts is None or name in concepts]
    if not kept:
        raise SettingsError(
            f"no cluster has one of the core attributes, {', '.join(concepts or ())}: the clusters are "
            f"{', '.join(names)}. Give others with --settings.attributes, or "
            "--settings.entropy-over concepts."
        )
    similarity = torch.from_numpy(clusters.reduced[: len(texts)]) @ clusters.centers[kept].T
    numbers = similarity.argmax(dim=1).tolist()
    return {text: names[kept[number]] for text, number in zip(texts, numbers, strict=True)}


def require_phrases(heads: Mapping[Head, Sequence[str]]) -> None:
    """Raises DataError for heads without phrases."""
    if empty := [head for head, phrases in heads.items() if not phrases]:
        layer, number = empty[0]
        raise DataError(
            f"no phrase for {plural(len(empty), 'head')}; the first is layer {layer} head {number}."
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


def _concept_centers(clusters: Clusters) -> dict[str, torch.Tensor]:
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
    centers: Mapping[str, torch.Tensor],
    s: RoleSettings,
    owners: set[str],
) -> dict[str, float]:
    """DBCV of only the clusters of the K core attributes, for K from 3 to 7."""
    by_k = {}
    available = {name for head in heads.values() for name in head.share} - set(s.general)
    for k in K_RANGE:
        if k > len(available):
            break
        core = core_attributes(heads, centers, k, s.general, owners)
        rows = np.isin(clusters.labels, [i for i, name in enumerate(clusters.names) if name in core])
        by_k[str(k)] = round(validity(clusters.reduced[rows], clusters.labels[rows]), 4)
    return by_k


def _best_k(by_k: Mapping[str, float]) -> int:
    if not by_k:
        raise SettingsError("fewer than 3 concepts occur, so K cannot be chosen: give --settings.attributes.")
    return int(max(by_k, key=lambda k: by_k[k]))
