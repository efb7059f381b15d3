"""Agreement and kappa by hand; tables that cannot be compared."""

from dataclasses import replace

import pytest

from dear.backbone.clip import Identity
from dear.errors import RoleTableError
from dear.roles.compare import ConceptHeads, agreement, compare, compare_concepts, correspond
from dear.roles.table import HeadRole, RoleTable

WEIGHTS = Identity("small", "random", "ab" * 32)


def table(*heads: HeadRole, source: str = "by hand") -> RoleTable:
    return RoleTable(source, WEIGHTS, ("color", "shape"), heads)


ONE = table(
    HeadRole(9, 0, "core", "color", "color", 0.1),
    HeadRole(9, 1, "core", "shape", "shape", 0.3),
    HeadRole(9, 2, "mixed", None, "color", 0.9),
    HeadRole(9, 3, "generalization", None, "style", 1.4),
)
TWO = table(
    HeadRole(9, 0, "core", "color", "color"),
    HeadRole(9, 1, "core", "color", "color"),
    HeadRole(9, 2, "mixed"),
    HeadRole(9, 3, "core", "shape", "shape"),
    source="published",
)


def test_agreement_by_hand() -> None:
    # 20 items: (a, a) 9, (a, b) 3, (b, a) 1, (b, b) 7; p_o = 0.8, p_e = (12 * 10 + 8 * 10) / 400 = 0.5.
    found = agreement(["a"] * 12 + ["b"] * 8, ["a"] * 9 + ["b"] * 3 + ["a"] + ["b"] * 7)
    assert (found.heads, found.agree, found.agreement, found.majority) == (20, 16, 0.8, 0.5)
    assert found.kappa == pytest.approx(0.6)
    assert agreement(["a", "a"], ["a", "a"]).kappa is None  # chance alone gives it
    assert (found.labels, found.confusion) == (("a", "b"), ((9, 3), (1, 7)))


def test_compare_by_hand() -> None:
    found = compare(ONE, TWO)
    # Concepts: heads 0, 1 and 3, for which both name one; (color, color), (shape, color), (style, shape).
    assert (found.concepts.heads, found.concepts.agree) == (3, 1)
    assert found.concepts.majority == pytest.approx(2 / 3)
    assert found.concepts.labels == ("color", "shape", "style")
    assert found.concepts.confusion == ((1, 0, 0), (1, 0, 0), (0, 1, 0))
    # Roles: all four heads.
    assert (found.roles.heads, found.roles.agree) == (4, 3)
    assert found.entropy == {"core": pytest.approx(0.6), "mixed": 0.9}
    assert found.own_entropy == {"core": pytest.approx(0.2), "generalization": 1.4, "mixed": 0.9}


def test_layers_that_one_table_has_alone_do_not_count() -> None:
    more = replace(ONE, heads=(*ONE.heads, HeadRole(10, 0, "mixed", None, "color")))
    assert compare(more, TWO).roles == compare(ONE, TWO).roles


def test_tables_that_cannot_be_compared() -> None:
    with pytest.raises(RoleTableError, match=r"layer 9 head 2"):
        compare(ONE, replace(TWO, heads=tuple(h for h in TWO.heads if h.head != 2)))
    with pytest.raises(RoleTableError, match="large and small, whose heads do not correspond"):
        compare(ONE, replace(TWO, weights=Identity("large", "random", "cd" * 32)))
    with pytest.raises(RoleTableError, match="no layer in common"):
        compare(ONE, table(HeadRole(3, 0, "mixed", None, "color")))
    with pytest.raises(RoleTableError, match="no head has a concept in both tables"):
        compare(ONE, table(*(HeadRole(9, i, "mixed") for i in range(4))))


def test_head_by_head() -> None:
    assert compare(ONE, TWO).heads == ()
    found = compare(ONE, TWO, heads=True).heads
    assert [(one.layer, one.head) for one in found] == [(9, 0), (9, 1), (9, 2), (9, 3)]
    assert [(one.first_concept, one.second_concept) for one in found[1:3]] == [
        ("shape", "color"), ("color", None),
    ]  # fmt: skip
    assert [(one.first_role, one.second_role) for one in found[2:]] == [
        ("mixed", "mixed"), ("generalization", "core"),
    ]  # fmt: skip


def test_tables_of_two_architectures_by_concept() -> None:
    # Shares: color 2/4 and 1/5, shape 1/4 and 2/5, style 1/4 and 0, no concept 0 and 2/5.
    other = RoleTable(
        "another architecture",
        Identity("large", "random", "cd" * 32),
        ("shape", "location"),
        (
            HeadRole(20, 0, "core", "shape", "shape", 0.5),
            HeadRole(21, 0, "core", "shape", "shape", 0.7),
            HeadRole(21, 1, "mixed", None, "color"),
            HeadRole(22, 0, "mixed"),
            HeadRole(22, 1, "mixed"),
        ),
    )
    assert not correspond(ONE, other)
    assert correspond(ONE, replace(other, weights=Identity("unknown", "unknown", "")))
    found = compare_concepts(ONE, other)
    assert [*found.concepts] == ["color", "shape", "style", "no concept"]
    assert found.overlap == pytest.approx(1 / 5 + 1 / 4)
    assert found.attributes == ("shape",)
    color, shape = found.concepts["color"], found.concepts["shape"]
    assert color[0] == ConceptHeads(2, 0.5, 1, pytest.approx(0.5), (9,))
    assert color[1] == ConceptHeads(1, 0.2, 0, None, (21,))
    assert shape[1] == ConceptHeads(2, 0.4, 2, pytest.approx(0.6), (20, 21))
    assert (found.concepts["style"][1], found.concepts["no concept"][0]) == (None, None)
    assert compare_concepts(ONE, ONE).overlap == 1
