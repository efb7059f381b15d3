"""Role tables with other roles, for the paper's ablations of the quantile q and of K core attributes."""

from collections import Counter
from dataclasses import replace

from dear.errors import RoleTableError
from dear.roles.entropy import role_of, thresholds
from dear.roles.table import HeadRole, RoleTable

STYLE = "style"
"""The concept whose specialised heads the paper counts as Generalization heads."""


def with_quantile(table: RoleTable, percent: float) -> RoleTable:
    """Reassign roles by the paper's quantiles of the concept entropy (section 3.2), as in discovery: the q of
    a discovered table reproduces it.

    Raises RoleTableError for a table without entropies (a published one) and for a percentage outside
    (0, 50].
    """
    if not 0 < percent <= 50:
        raise RoleTableError(f"the quantile is {percent:g}%: it must be above 0% and at most 50%.")
    lacking = next((h for h in table.heads if h.entropy is None or h.concept is None), None)
    if lacking is not None:
        raise RoleTableError(
            f"the role table {table.source!r} has no concept entropy for layer {lacking.layer} head "
            f"{lacking.head}, so roles cannot be assigned by quantile: give a computed table with --roles."
        )
    limits = thresholds([h.entropy for h in table.heads if h.entropy is not None], percent / 100)
    known = table.settings.get("general")  # a list in discovered tables
    general = known if isinstance(known, list) else [STYLE, STYLE.capitalize()]

    def assigned(head: HeadRole) -> HeadRole:
        assert head.entropy is not None
        role = role_of(head.entropy, head.concept, limits, table.attributes, general)
        return replace(head, role=role, attribute=head.concept if role == "core" else None)

    heads = tuple(assigned(head) for head in table.heads)
    return replace(table, source=f"{table.source}, q = {percent:g}%", heads=heads)


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
        chosen = tuple(a for a in table.attributes if a in frequent)
    else:
        other = Counter(h.concept for h in table.heads if h.role == "other-specialized" and h.concept)
        missing = count - len(table.attributes)
        added = sorted((c for c in other if c not in table.attributes), key=lambda c: (-other[c], c))
        if len(added) < missing:
            raise RoleTableError(
                f"the role table {table.source!r} has {len(table.attributes)} core attributes and "
                f"{len(added)} other concepts, too few for {count} attributes."
            )
        chosen = (*table.attributes, *added[:missing])
    heads = tuple(
        _specialised(head, chosen) if head.role in ("core", "other-specialized") else head
        for head in table.heads
    )
    return replace(table, source=f"{table.source}, K = {count}", attributes=chosen, heads=heads)


def _specialised(head: HeadRole, attributes: tuple[str, ...]) -> HeadRole:
    """The role of a specialised head by its concept (of a core head without one: its attribute)."""
    concept = head.concept if head.concept is not None else head.attribute
    own = head.attribute if head.role == "core" else concept
    if own in attributes:
        return replace(head, role="core", attribute=own)
    if _is_style(concept):
        return replace(head, role="generalization", attribute=None)
    return replace(head, role="other-specialized", attribute=None)


def _is_style(concept: str | None) -> bool:
    return (concept or "").lower() == STYLE
