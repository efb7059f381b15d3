"""Equations 8 and 9 entry by entry: 3 original tokens, attributes (color, object)."""

from math import inf

import pytest
import torch

from dear.backbone.clip import Identity
from dear.roles.mask import blocked_edges, role_mask
from dear.roles.table import HeadRole, Role, RoleTable

ATTRIBUTES = ("color", "object")

# Rows are queries, columns are keys; a group is the originals, then the tokens of color, then those of
# object; 1 is blocked.
ISOLATED = {
    1: """
    000 1 1
    000 1 1
    000 1 1
    111 0 0
    111 0 0
    """,
    2: """
    000 11 11
    000 11 11
    000 11 11
    111 00 00
    111 00 00
    111 00 00
    111 00 00
    """,
}
COLOR = {
    1: """
    000 0 1
    000 0 1
    000 0 1
    000 0 1
    000 0 1
    """,
    2: """
    000 00 11
    000 00 11
    000 00 11
    000 00 11
    000 00 11
    000 00 11
    000 00 11
    """,
}
OBJECT = {
    1: """
    000 1 0
    000 1 0
    000 1 0
    000 1 0
    000 1 0
    """,
    2: """
    000 11 00
    000 11 00
    000 11 00
    000 11 00
    000 11 00
    000 11 00
    000 11 00
    """,
}
OPEN = {1: "00000\n" * 5, 2: "0000000\n" * 7}
CASES: list[tuple[Role, str | None, dict[int, str]]] = [
    ("generalization", None, ISOLATED),
    ("other-specialized", None, ISOLATED),
    ("core", "color", COLOR),
    ("core", "object", OBJECT),
    ("mixed", None, OPEN),
]


def rows(drawn: str) -> list[list[int]]:
    return [[int(c) for c in line.replace(" ", "")] for line in drawn.split("\n") if line.strip()]


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize(("role", "attribute", "drawn"), CASES)
def test_blocked_edges(role: Role, attribute: str | None, drawn: dict[int, str], each: int) -> None:
    got = blocked_edges(HeadRole(4, 0, role, attribute), 3, ATTRIBUTES, each)
    assert got.int().tolist() == rows(drawn[each])


@pytest.mark.parametrize("each", [1, 2])
def test_the_mask_of_a_layer_has_its_heads_in_order(each: int) -> None:
    heads = tuple(
        HeadRole(4, i, role, attribute) for i, (role, attribute, _) in reversed([*enumerate(CASES)])
    )
    others = tuple(HeadRole(5, i, "mixed") for i in range(5))
    table = RoleTable("by hand", Identity("small", "random", "0"), ATTRIBUTES, heads + others)
    got = role_mask(table, 4, 5, 3, each)
    want = [[[-inf if e else 0.0 for e in row] for row in rows(drawn[each])] for _, _, drawn in CASES]
    assert torch.equal(got, torch.tensor(want))
    assert not role_mask(table, 5, 5, 3, each).any()


def test_no_query_loses_all_its_keys() -> None:
    for role, attribute, _ in CASES:
        assert not blocked_edges(HeadRole(4, 0, role, attribute), 3, ATTRIBUTES, 2).all(dim=1).any()
