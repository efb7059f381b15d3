"""Compare two role tables: agreement, Cohen's kappa and confusion of concepts and of roles; for tables of two
architectures, whose heads do not correspond, what their heads have by concept.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dear.errors import RoleTableError
from dear.roles.table import HeadRole, RoleTable
from dear.text import plural

NO_CONCEPT = "no concept"


@dataclass(frozen=True)
class Agreement:
    """How often two labelings of the same heads agree.

    Attributes:
        heads: Number of heads that both label.
        agree: Number of these with the same label.
        agreement: agree / heads, a fraction.
        kappa: Cohen's kappa; None if chance alone gives full agreement.
        majority: Agreement (fraction) of always predicting the second table's most frequent label.
        labels: All labels, in the order of the confusion table.
        confusion: Number of heads by the first table's label (rows) and the second's (columns).
    """

    heads: int
    agree: int
    agreement: float
    kappa: float | None
    majority: float
    labels: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class HeadPair:
    """A head's concept and role in two tables."""

    layer: int
    head: int
    first_concept: str | None
    second_concept: str | None
    first_role: str
    second_role: str


@dataclass(frozen=True)
class Comparison:
    """Comparison of two tables on the heads that both have.

    Attributes:
        concepts: On heads with a dominant concept in both tables.
        roles: On all common heads.
        entropy: The first table's mean concept entropy (nats) by the second table's role.
        own_entropy: The same by the first table's role.
        heads: Every common head, if requested.
    """

    first: str
    second: str
    concepts: Agreement
    roles: Agreement
    entropy: dict[str, float]
    own_entropy: dict[str, float]
    heads: tuple[HeadPair, ...] = ()


@dataclass(frozen=True)
class ConceptHeads:
    """The heads of a table with one dominant concept.

    Attributes:
        heads: Their number.
        share: heads / all heads of the table, a fraction.
        core: How many of them are core heads.
        entropy: Their mean concept entropy in nats; None if no entropy is known.
        layers: The layers that have such a head, counted from 1.
    """

    heads: int
    share: float
    core: int
    entropy: float | None
    layers: tuple[int, ...]


@dataclass(frozen=True)
class ConceptComparison:
    """Tables of two architectures side by side, by dominant concept; None where a table has no such head.

    Attributes:
        concepts: By concept, those with the most heads first: what the first and the second table have.
        overlap: The sum over concepts (heads without one too) of the smaller of the two shares, a fraction:
            1 if both tables have each concept equally often.
        attributes: Core attributes that both tables have.
    """

    first: str
    second: str
    concepts: Mapping[str, tuple[ConceptHeads | None, ConceptHeads | None]]
    overlap: float
    attributes: tuple[str, ...]


def compare_concepts(first: RoleTable, second: RoleTable) -> ConceptComparison:
    """Compare tables by dominant concept, whatever the architectures; nothing is compared head by head."""
    ours, theirs = _by_concept(first), _by_concept(second)
    count = Counter[str]()
    for of_table in (ours, theirs):
        count.update({name: of.heads for name, of in of_table.items()})
    ranked = sorted(count, key=lambda name: (name == NO_CONCEPT, -count[name], name))
    concepts = {name: (ours.get(name), theirs.get(name)) for name in ranked}
    return ConceptComparison(
        first=first.source,
        second=second.source,
        concepts=concepts,
        overlap=sum(min(a.share, b.share) for a, b in concepts.values() if a and b),
        attributes=tuple(name for name in first.attributes if name in second.attributes),
    )


def _by_concept(table: RoleTable) -> dict[str, ConceptHeads]:
    by_concept: dict[str, list[HeadRole]] = {}
    for head in table.heads:
        by_concept.setdefault(head.concept or NO_CONCEPT, []).append(head)
    described = {}
    for concept, heads in by_concept.items():
        entropies = [head.entropy for head in heads if head.entropy is not None]
        described[concept] = ConceptHeads(
            heads=len(heads),
            share=len(heads) / len(table.heads),
            core=sum(head.role == "core" for head in heads),
            entropy=sum(entropies) / len(entropies) if entropies else None,
            layers=tuple(sorted({head.layer for head in heads})),
        )
    return described


def correspond(first: RoleTable, second: RoleTable) -> bool:
    """True unless the tables name two architectures, whose heads do not correspond."""
    models = {table.weights.model for table in (first, second)} - {"unknown"}  # of `dear roles assign`
    return len(models) < 2


def agreement(first: Sequence[str], second: Sequence[str]) -> Agreement:
    """Agreement of two labelings, item by item.

    Source: kappa = (p_o - p_e) / (1 - p_e), p_e from the two margins (Cohen, 1960).
    """
    labels = tuple(sorted({*first, *second}))
    pairs = Counter(zip(first, second, strict=True))
    rows, columns = Counter(first), Counter(second)
    count, agree = pairs.total(), sum(pairs[label, label] for label in labels)
    chance = sum(rows[label] * columns[label] for label in labels) / count**2
    return Agreement(
        heads=count,
        agree=agree,
        agreement=agree / count,
        kappa=None if chance == 1 else (agree / count - chance) / (1 - chance),
        majority=max(columns.values()) / count,
        labels=labels,
        confusion=tuple(tuple(pairs[row, column] for column in labels) for row in labels),
    )


def compare(first: RoleTable, second: RoleTable, *, heads: bool = False) -> Comparison:
    """Compare two tables on the layers that both cover; with ``heads`` also head by head.

    Raises RoleTableError if they are of two architectures or share no layer, if a head of a shared layer is
    missing in one, or if no head has a concept in both.
    """
    if not correspond(first, second):
        models = sorted(table.weights.model for table in (first, second))
        raise RoleTableError(
            f"the tables are of {' and '.join(models)}, whose heads do not correspond: compare "
            "tables of one architecture."
        )
    shared = {head.layer for head in first.heads} & {head.layer for head in second.heads}
    ours, theirs = ({(h.layer, h.head): h for h in t.heads if h.layer in shared} for t in (first, second))
    if not shared:
        raise RoleTableError(f"the tables {first.source!r} and {second.source!r} have no layer in common.")
    if odd := sorted(ours.keys() ^ theirs.keys()):
        lacking = second if odd[0] in ours else first
        raise RoleTableError(
            f"the role table {lacking.source!r} lacks {plural(len(odd), 'head')} of layers in the other "
            f"table; the first is layer {odd[0][0]} head {odd[0][1]}. "
            "Build both for the same model and layers."
        )
    pairs = [(ours[head], theirs[head]) for head in ours]
    with_concepts = [(a.concept, b.concept) for a, b in pairs if a.concept and b.concept]
    if not with_concepts:
        raise RoleTableError("no head has a concept in both tables.")
    listed = [HeadPair(a.layer, a.head, a.concept, b.concept, a.role, b.role) for a, b in pairs if heads]
    return Comparison(
        first=first.source,
        second=second.source,
        concepts=agreement(*zip(*with_concepts, strict=True)),
        roles=agreement([a.role for a, _ in pairs], [b.role for _, b in pairs]),
        entropy=_mean_entropy([(b.role, a.entropy) for a, b in pairs]),
        own_entropy=_mean_entropy([(a.role, a.entropy) for a, _ in pairs]),
        heads=tuple(listed),
    )


def _mean_entropy(heads: Sequence[tuple[str, float | None]]) -> dict[str, float]:
    entropies: dict[str, list[float]] = {}
    for role, entropy in heads:
        if entropy is not None:
            entropies.setdefault(role, []).append(entropy)
    return {role: sum(values) / len(values) for role, values in sorted(entropies.items())}
