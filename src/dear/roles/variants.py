"""Role tables with other roles, for ablations: by the quantile q, by K core attributes, at random."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import get_args

import torch

from dear.data.settings import checked_seed
from dear.errors import RoleTableError
from dear.roles.assign import concept_entropy, role_of, thresholds
from dear.roles.table import Head, HeadRole, Role, RoleTable

STYLE = "style"
"""The concept whose heads supplement B counts as Generalization heads; of specialized ones [ours]."""


def with_quantile(table: RoleTable, share: float) -> RoleTable:
    """Reassign roles by the paper's quantiles of the concept entropy (supplement E), as in discovery: the q
    of a discovered table reproduces it.

    Raises RoleTableError for a table without entropies (a published one).
    """
    lacking = next((head for head in table.heads if head.entropy is None or head.concept is None), None)
    if lacking is not None:
        raise RoleTableError(
            f"the role table {table.source!r} has no concept entropy for layer {lacking.layer} head "
            f"{lacking.head}, so roles cannot be assigned by quantile: give a computed table with --roles."
        )
    entropies = _entropies(table)
    limits = thresholds([*entropies.values()], share)
    general = _general_concepts(table)

    def assigned(head: HeadRole) -> HeadRole:
        role = role_of(entropies[head.layer, head.head], head.concept, limits, table.attributes, general)
        return replace(head, role=role, attribute=head.concept if role == "core" else None)

    heads = tuple(assigned(head) for head in table.heads)
    return replace(table, source=f"{table.source}, q = {100 * share:g}%", heads=heads)


def _general_concepts(table: RoleTable) -> Collection[str]:
    """The concepts whose specialized heads are generalization heads: those that a discovered table states. In
    the settings of a ground-truth table, "general" is a share of heads.
    """
    stated = table.settings.get("general")
    return stated if isinstance(stated, list | tuple) else (STYLE, STYLE.capitalize())


def _entropies(table: RoleTable) -> dict[Head, float]:
    """The concept entropy of each head, from the shares of its phrases before they were rounded for the
    table; as it is in the table if a head's phrases are not known.
    """
    entropies = {(head.layer, head.head): head.entropy or 0.0 for head in table.heads}
    over_attributes = table.settings.get("entropy_over") == "attributes"
    if over_attributes or not all(head.phrases for head in table.heads):
        return entropies
    for head in table.heads:
        count = len(head.phrases)
        shares = [round(part * count) / count for part in head.share.values()]
        entropies[head.layer, head.head] = concept_entropy(shares)
    return entropies


def by_concept(table: RoleTable) -> RoleTable:
    """Reassign roles by the dominant concepts alone, as the paper's table of roles follows from its concepts;
    a head without a concept is mixed.
    """
    general = _general_concepts(table)

    def assigned(head: HeadRole) -> HeadRole:
        role = role_of(0.0, head.concept, None, table.attributes, general)
        return replace(head, role=role, attribute=head.concept if role == "core" else None)

    return replace(table, source=f"{table.source}, by concept", heads=tuple(map(assigned, table.heads)))


def with_attributes(table: RoleTable, count: int) -> RoleTable:
    """The table with ``count`` core attributes: K in the paper, which does not say which these are [ours].

    If fewer than the table has, those with the most core heads stay (ties in the table's order) and heads of
    the others become other-specialized. If more, the concepts with the most other-specialized heads are
    added. Raises RoleTableError if the table does not have enough concepts.
    """
    if count == len(table.attributes):
        return table
    core = Counter(h.attribute for h in table.heads if h.role == "core")
    if count < len(table.attributes):
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
    general = _general_concepts(table)
    heads = tuple(
        _specialized(head, attributes, general) if head.role in ("core", "other-specialized") else head
        for head in table.heads
    )
    return replace(table, source=f"{table.source}, K = {count}", attributes=attributes, heads=heads)


def _specialized(head: HeadRole, attributes: tuple[str, ...], general: Collection[str]) -> HeadRole:
    """The role of a specialized head by its concept (of a core head without one: its attribute)."""
    concept = head.concept if head.concept is not None else head.attribute
    attribute = head.attribute if head.role == "core" else concept
    if attribute in attributes:
        return replace(head, role="core", attribute=attribute)
    return replace(head, role="generalization" if concept in general else "other-specialized", attribute=None)


def with_role(table: RoleTable, role: Role) -> RoleTable:
    """The same heads all isolated ("generalization") or all open ("mixed"), for ablations."""
    heads = tuple(replace(head, role=role, attribute=None) for head in table.heads)
    return replace(table, source=f"all {role}, from {table.source}", heads=heads)


def shuffle_roles(table: RoleTable, seed: int) -> RoleTable:
    """The same roles, randomly permuted over the heads, for ablations. Raises SettingsError for a seed that
    torch does not accept.
    """
    generator = torch.Generator().manual_seed(checked_seed(seed))
    order = torch.randperm(len(table.heads), generator=generator).tolist()
    heads = tuple(
        replace(table.heads[source], layer=head.layer, head=head.head)
        for head, source in zip(table.heads, order, strict=True)
    )
    return replace(table, source=f"shuffled (seed {seed}), from {table.source}", heads=heads)


def draw_roles(table: RoleTable, seed: int) -> RoleTable:
    """A uniformly random role for each head and, for core heads, a random attribute. Raises SettingsError for
    a seed that torch does not accept.
    """
    generator = torch.Generator().manual_seed(checked_seed(seed))

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    roles = get_args(Role) if table.attributes else get_args(Role)[1:]
    heads = []
    for head in table.heads:
        role = roles[draw(len(roles))]
        attribute = table.attributes[draw(len(table.attributes))] if role == "core" else None
        heads.append(HeadRole(head.layer, head.head, role, attribute))
    source = f"random (seed {seed}), over {table.source}"
    return replace(table, source=source, heads=tuple(heads), evidence={})
