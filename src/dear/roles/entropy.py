"""Concept entropy and role of each head from its phrases (paper, section on head roles), and role tables with
other roles, for the paper's ablations of the quantile q and of K core attributes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from jaxtyping import Float, Int
from torch import Tensor

from dear.errors import DataError, RoleTableError, SettingsError, plural
from dear.roles.table import Head, HeadRole, Role, RoleTable

UNIT = "nats"
"""Of `concept_entropy`, for all that print it."""
STYLE = "style"
"""The concept whose specialised heads the paper counts as Generalization heads."""


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


def nearest_centroid(
    phrases: Float[Tensor, "phrase dim"], centroids: Float[Tensor, "cluster dim"]
) -> Int[Tensor, "phrase"]:
    """c(p) = argmax_k cos(e_p, mu_k), for unit vectors.

    Differs from the paper: both are coordinates in the clustered space, not sentence embeddings.
    """
    return (phrases.to(centroids) @ centroids.T).argmax(dim=1)


def concept_entropy(shares: Iterable[float | Fraction]) -> float:
    """CE(h) = -sum_k p_h(k) log p_h(k), in nats, to twelve decimals: so shares with the same entropy, such as
    4, 4, 4 and 8, 1, 1, 1, 1 of 12, have the same number.
    """
    return round(-math.fsum(share * math.log(share) for share in shares if share > 0), 12) + 0.0


def head_concepts(heads: Mapping[Head, Sequence[str]]) -> dict[Head, HeadConcepts]:
    """The distribution of each head over the concepts of its phrases, given in TEXTSPAN's order.

    Concepts with equal shares are sorted by that order: the first explains more variance. Raises DataError
    for heads without phrases.
    """
    if empty := [head for head, concepts in heads.items() if not concepts]:
        layer, number = empty[0]
        raise DataError(
            f"no phrase for {plural(len(empty), 'head')}; the first is layer {layer} head {number}."
        )
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
    concepts of specialised heads, so that an attribute has heads if enough concepts do. Concepts in
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
            f"{k} core attributes were requested, but the heads have only {len(frequency)} concepts: "
            f"{', '.join(sorted(frequency))}. Give --settings.k {len(frequency)}, or more phrases."
        )
    attributes: list[str] = []

    def product(concept: str) -> float:
        cosines = (float(centroids[concept] @ centroids[attribute]) for attribute in attributes)
        return float(frequency[concept]) * (1 - max(cosines, default=0.0))

    while len(attributes) < k:
        candidates = frequency.keys() - set(attributes)
        attributes.append(max(sorted(candidates & {*owners} or candidates), key=product))
    return tuple(attributes)


def with_quantile(table: RoleTable, percent: float) -> RoleTable:
    """Reassign roles by the paper's quantiles of the concept entropy (section 3.2), as in discovery: the q of
    a discovered table reproduces it.

    Raises RoleTableError for a table without entropies (a published one) and for a percentage outside
    (0, 50].
    """
    if not 0 < percent <= 50:
        raise RoleTableError(f"the quantile is {percent:g}%: it must be above 0% and at most 50%.")
    lacking = next((head for head in table.heads if head.entropy is None or head.concept is None), None)
    if lacking is not None:
        raise RoleTableError(
            f"the role table {table.source!r} has no concept entropy for layer {lacking.layer} head "
            f"{lacking.head}, so roles cannot be assigned by quantile: give a computed table with --roles."
        )
    entropies = _entropies(table)
    limits = thresholds([*entropies.values()], percent / 100)
    general = table.settings.get("general", (STYLE, STYLE.capitalize()))

    def assigned(head: HeadRole) -> HeadRole:
        role = role_of(entropies[head.layer, head.head], head.concept, limits, table.attributes, general)
        return replace(head, role=role, attribute=head.concept if role == "core" else None)

    heads = tuple(assigned(head) for head in table.heads)
    return replace(table, source=f"{table.source}, q = {percent:g}%", heads=heads)


def _entropies(table: RoleTable) -> dict[Head, float]:
    """The concept entropy of each head, from the shares of its phrases before they were rounded for the
    table; as it is in the table if a head's phrases are not known.
    """
    entropies = {(head.layer, head.head): head.entropy or 0.0 for head in table.heads}
    if not all(head.phrases for head in table.heads):
        return entropies
    for head in table.heads:
        count = len(head.phrases)
        shares = [round(part * count) / count for part in head.share.values()]
        entropies[head.layer, head.head] = concept_entropy(shares)
    return entropies


def with_attributes(table: RoleTable, count: int) -> RoleTable:
    """The table with ``count`` core attributes: K in the paper.

    If fewer than the table has, those with the most core heads stay (ties in the table's order) and heads of
    the others become other-specialized. If more, the concepts with the most other-specialized heads are
    added. Raises RoleTableError if the table does not have enough concepts.
    """
    if count == len(table.attributes):
        return table
    core = Counter(h.attribute for h in table.heads if h.role == "core")
    if count < len(table.attributes):
        if count < 1:
            raise RoleTableError(f"{count} core attributes: at least 1 is needed.")
        frequent = sorted(table.attributes, key=lambda a: -core[a])[:count]
        attributes = tuple(a for a in table.attributes if a in frequent)
    else:
        heads_of = Counter(h.concept for h in table.heads if h.role == "other-specialized" and h.concept)
        missing = count - len(table.attributes)
        added = sorted((c for c in heads_of if c not in table.attributes), key=lambda c: (-heads_of[c], c))
        if len(added) < missing:
            raise RoleTableError(
                f"the role table {table.source!r} has {len(table.attributes)} core attributes and "
                f"{len(added)} other concepts, too few for {count} attributes."
            )
        attributes = (*table.attributes, *added[:missing])
    heads = tuple(
        _specialised(head, attributes) if head.role in ("core", "other-specialized") else head
        for head in table.heads
    )
    return replace(table, source=f"{table.source}, K = {count}", attributes=attributes, heads=heads)


def _specialised(head: HeadRole, attributes: tuple[str, ...]) -> HeadRole:
    """The role of a specialised head by its concept (of a core head without one: its attribute)."""
    concept = head.concept if head.concept is not None else head.attribute
    attribute = head.attribute if head.role == "core" else concept
    if attribute in attributes:
        return replace(head, role="core", attribute=attribute)
    is_style = (concept or "").lower() == STYLE
    return replace(head, role="generalization" if is_style else "other-specialized", attribute=None)
