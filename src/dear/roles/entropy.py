"""Concept entropy and role of each head from its phrases (paper, section on head roles)."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.errors import DataError, SettingsError
from dear.roles.table import HeadRole, Role

Head = tuple[int, int]
UNIT = "nats"
"""Of `concept_entropy`, wherever it is shown."""


@dataclass(frozen=True)
class HeadConcepts:
    """One head's distribution over concepts.

    Attributes:
        share: Share (fraction) of each concept that occurs, largest first.
        left_out: Number of phrases without a concept.
    """

    share: Mapping[str, float]
    entropy: float
    left_out: int = 0

    @property
    def concept(self) -> str:
        """The dominant concept."""
        return next(iter(self.share))


def nearest_centroid(
    phrases: Float[Tensor, "phrase dim"], centroids: Float[Tensor, "cluster dim"]
) -> Int[Tensor, "phrase"]:
    """c(p) = argmax_k cos(e_p, mu_k), for unit vectors.

    Differs from the paper: both are coordinates in the clustered space, not sentence embeddings.
    """
    return (phrases.to(centroids) @ centroids.T).argmax(dim=1)


def concept_entropy(shares: Sequence[float]) -> float:
    """CE(h) = -sum_k p_h(k) log p_h(k), in nats."""
    return -sum(p * math.log(p) for p in shares if p > 0) + 0.0


def selected_entropy(share: Mapping[str, float], attributes: Collection[str]) -> float:
    """The entropy of the shares of some concepts alone, scaled to a sum of 1; without any of them the highest
    possible, log K [ours].
    """
    own = [part for concept, part in share.items() if concept in attributes and part > 0]
    shares = [part / sum(own) for part in own] or [1 / len(attributes)] * len(attributes)
    return concept_entropy(shares)


def head_concepts(
    heads: Mapping[Head, Sequence[str | None]], weight: str = "equal"
) -> dict[Head, HeadConcepts]:
    """The distribution of each head over the concepts of its phrases, given in TEXTSPAN's order.

    None is a phrase without a concept. Concepts with equal shares are sorted by TEXTSPAN's order: the first
    explains more variance. Raises DataError for heads without any concept.
    """
    empty = [head for head, concepts in heads.items() if not any(concepts)]
    if empty:
        layer, number = empty[0]
        raise DataError(
            f"{len(empty)} heads have no phrase with a concept; the first is layer {layer} head {number}. "
            "Use more phrases per head, or assign left-out phrases to the nearest concept."
        )
    found: dict[Head, HeadConcepts] = {}
    for head, concepts in heads.items():
        mass: dict[str, float] = defaultdict(float)
        for rank, concept in enumerate(concepts, start=1):
            if concept:
                mass[concept] += 1 / math.log2(1 + rank) if weight == "rank" else 1
        total = sum(mass.values())
        share = {concept: mass[concept] / total for concept in sorted(mass, key=lambda one: -mass[one])}
        left_out = sum(concept is None for concept in concepts)
        found[head] = HeadConcepts(share, concept_entropy([*share.values()]), left_out)
    return found


def thresholds(entropies: Sequence[float], quantile: float) -> tuple[float, float]:
    """The q and 1 - q quantiles, interpolated linearly."""
    values = torch.tensor(entropies, dtype=torch.float64)
    low, high = torch.quantile(values, torch.tensor([quantile, 1 - quantile], dtype=torch.float64)).tolist()
    return low, high


def role_of(
    entropy: float,
    concept: str | None,
    limits: tuple[float, float] | None,
    attributes: Sequence[str],
    general: Sequence[str],
) -> Role:
    """The role of a head by its concept entropy and its dominant concept.

    At or below the lower limit, a head is specialised: core if its concept is among the attributes,
    generalization if it is in ``general``, else other-specialized. At or above the upper limit it is a
    generalization head, in between mixed. Without limits entropy plays no part: a head without a concept is
    mixed, any other specialised.
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
    for (layer, head), one in heads.items():
        role = role_of(one.entropy, one.concept, limits, attributes, general)
        roles.append(
            HeadRole(
                layer,
                head,
                role,
                one.concept if role == "core" else None,
                one.concept,
                round(one.entropy, 4),
                {concept: round(share, 4) for concept, share in one.share.items()},
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
    concepts of specialised heads, so that an attribute has heads if enough concepts do. Concepts in
    ``general`` are excluded. The paper gives the two criteria but no formula [ours]. Raises SettingsError for
    fewer than k concepts.
    """
    frequency: dict[str, float] = defaultdict(float)
    for one in heads.values():
        for concept, share in one.share.items():
            if concept not in general:
                frequency[concept] += share / len(heads)
    if k > len(frequency):
        raise SettingsError(
            f"{k} core attributes were requested, but the heads have only {len(frequency)} concepts: "
            f"{', '.join(sorted(frequency))}. Give --settings.k {len(frequency)}, or find more concepts with "
            "--settings.cluster none or --settings.reduction concepts."
        )
    chosen: list[str] = []
    while len(chosen) < k:
        chosen.append(
            max(
                sorted(_preferred(set(frequency) - set(chosen), owners)),
                key=lambda concept: (
                    frequency[concept]
                    * (
                        1
                        - max((float(centroids[concept] @ centroids[other]) for other in chosen), default=0.0)
                    )
                ),
            )
        )
    return tuple(chosen)


def _preferred(concepts: set[str], owners: Collection[str]) -> set[str]:
    return concepts & {*owners} or concepts
