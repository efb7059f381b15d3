"""Equations 8 and 9 and supplement B entry by entry: 3 original tokens, attributes (color, object)."""

from math import inf

import pytest
import torch

from dear.backbone.clip import Identity
from dear.methods.dear import DearSettings
from dear.roles.mask import blocked_edges, role_mask
from dear.roles.settings import CoreMask
from dear.roles.table import HeadRole, Role, RoleTable

ATTRIBUTES = ("color", "object")

# Rows are queries, columns are keys; a group is the originals, then two tokens of color, then two of object;
# 1 is blocked. With one token of each attribute, the second of both is left out.
ISOLATED = """
    000 11 11
    000 11 11
    000 11 11
    111 00 00
    111 00 00
    111 00 00
    111 00 00
"""
# Equation 9 alone: nobody reads the tokens of another attribute.
COLOR_EQ9 = """
    000 00 11
    000 00 11
    000 00 11
    000 00 11
    000 00 11
    000 00 11
    000 00 11
"""
OBJECT_EQ9 = """
    000 11 00
    000 11 00
    000 11 00
    000 11 00
    000 11 00
    000 11 00
    000 11 00
"""
# With supplement B: besides, the tokens of another attribute read themselves alone.
COLOR = """
    000 00 11
    000 00 11
    000 00 11
    000 00 11
    000 00 11
    111 11 00
    111 11 00
"""
OBJECT = """
    000 11 00
    000 11 00
    000 11 00
    111 00 11
    111 00 11
    000 11 00
    000 11 00
"""
OPEN = "0000000\n" * 7
FORMS: dict[CoreMask, list[tuple[Role, str | None, str]]] = {
    form: [
        ("generalization", None, ISOLATED),
        ("other-specialized", None, ISOLATED),
        ("core", "color", color),
        ("core", "object", thing),
        ("mixed", None, OPEN),
    ]
    for form, color, thing in (("exclusive", COLOR, OBJECT), ("eq9", COLOR_EQ9, OBJECT_EQ9))
}
CASES = [(form, *case) for form, cases in FORMS.items() for case in cases]


def rows(drawn: str, each: int) -> list[list[int]]:
    lines = [[int(c) for c in line.replace(" ", "")] for line in drawn.split("\n") if line.strip()]
    kept = [*range(7)] if each == 2 else [0, 1, 2, 3, 5]
    return [[lines[query][key] for key in kept] for query in kept]


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize(("form", "role", "attribute", "drawn"), CASES)
def test_blocked_edges(form: CoreMask, role: Role, attribute: str | None, drawn: str, each: int) -> None:
    got = blocked_edges(HeadRole(4, 0, role, attribute), 3, ATTRIBUTES, each, form)
    assert got.int().tolist() == rows(drawn, each)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("each", [1, 2])
def test_the_mask_of_a_layer_has_its_heads_in_order(each: int, form: CoreMask) -> None:
    cases = FORMS[form]
    heads = tuple(
        HeadRole(4, i, role, attribute) for i, (role, attribute, _) in reversed([*enumerate(cases)])
    )
    others = tuple(HeadRole(5, i, "mixed") for i in range(5))
    table = RoleTable("by hand", Identity("small", "random", "0"), ATTRIBUTES, heads + others)
    got = role_mask(table, 4, 5, 3, each, form)
    want = [[[-inf if e else 0.0 for e in row] for row in rows(drawn, each)] for _, _, drawn in cases]
    assert torch.equal(got, torch.tensor(want))
    assert not role_mask(table, 5, 5, 3, each, form).any()


def test_the_exclusive_form_is_the_default() -> None:
    core = HeadRole(4, 0, "core", "color")
    assert torch.equal(
        blocked_edges(core, 3, ATTRIBUTES, 1), blocked_edges(core, 3, ATTRIBUTES, 1, "exclusive")
    )
    assert DearSettings().core_mask == "exclusive"
