"""Role tables by another quantile and with another number of core attributes, worked out by hand."""

import random
from dataclasses import replace
from math import prod

import pytest

from dear.backbone.clip import Identity
from dear.errors import RoleTableError
from dear.roles.assign import assign_roles, head_concepts, thresholds
from dear.roles.table import HeadRole, RoleTable, named_table
from dear.roles.variants import by_concept, with_attributes, with_quantile


def drawn_heads(seed: int, phrases: int) -> dict[tuple[int, int], list[str]]:
    """The concepts of the phrases of 41 heads."""
    draw = random.Random(seed)
    return {(9 + i // 11, i % 11): draw.choices("abcdefg", k=phrases) for i in range(41)}


def sharpness(concepts: list[str]) -> int:
    """The product of n^n over concepts: of heads with as many phrases, the larger the lower the entropy."""
    return prod(concepts.count(name) ** concepts.count(name) for name in {*concepts})


@pytest.mark.parametrize("phrases", [12, 21])
def test_ties_in_entropy_share_a_role(phrases: int) -> None:
    """Of 41 heads the 20% quantiles fall on the ninth and the 33rd; whole numbers decide who ties."""
    ties = 0
    for seed in range(40):
        concepts = drawn_heads(seed, phrases)
        found = head_concepts(concepts)
        limits = thresholds([head.entropy for head in found.values()], 0.2)
        heads = assign_roles(found, ["a"], limits=limits, phrases=concepts)
        sharp = {head: sharpness(names) for head, names in concepts.items()}
        ranked = sorted(sharp.values(), reverse=True)
        ties += ranked[8] == ranked[9] or ranked[31] == ranked[32]
        for head in heads:
            of_head = sharp[head.layer, head.head]
            if of_head >= ranked[8]:
                assert head.role in ("core", "other-specialized")
            else:
                assert head.role == ("generalization" if of_head <= ranked[32] else "mixed")
        table = RoleTable("drawn", WEIGHTS, ("a",), heads, {"general": []})
        assert roles(with_quantile(table, 0.2)) == [head.attribute or head.role for head in heads]
    assert ties > 0


WEIGHTS = Identity("small", "random", "0" * 64)
CONCEPTS = ["color", "Style", "number", "color", "shape", "color", "shape", "number", "color", "shape"]
ENTROPY = [0.5, 0.1, 0.2, 0.9, 0.3, 0.8, 0.7, 0.6, 0.4, 1.0]


def computed() -> RoleTable:
    heads = tuple(
        HeadRole(11 + i // 5, i % 5, "mixed", None, concept, entropy)
        for i, (concept, entropy) in enumerate(zip(CONCEPTS, ENTROPY, strict=True))
    )
    return RoleTable("by hand", WEIGHTS, ("color", "shape"), heads)


def roles(table: RoleTable) -> list[str]:
    return [head.attribute or head.role for head in table.heads]


def test_quantiles_by_hand() -> None:
    found = with_quantile(computed(), 0.3)
    # The three lowest entropies are heads 1 (style), 2 (number), 4 (shape); the highest 9, 3, 5.
    expected = ["mixed", "generalization", "other-specialized", "generalization", "shape", "generalization"]
    assert roles(found) == [*expected, "mixed", "mixed", "mixed", "generalization"]
    assert found.source == "by hand, q = 30%"
    assert [h.entropy for h in found.heads] == ENTROPY
    found = roles(with_quantile(computed(), 0.1))
    assert found == ["mixed", "generalization", *["mixed"] * 7, "generalization"]


def test_what_general_means_in_a_tables_settings() -> None:
    """A list of concepts in a discovered table, a share of heads in a ground-truth one."""
    assert roles(with_quantile(replace(computed(), settings={"general": 0.2}), 0.3)) == roles(
        with_quantile(computed(), 0.3)
    )
    with_share = by_concept(replace(computed(), settings={"general": 0.2}))
    assert roles(with_share) == roles(by_concept(computed()))
    assert [with_share.heads[place].role for place in (1, 2)] == ["generalization", "other-specialized"]
    listed = replace(computed(), settings={"general": ["number"]})
    changed = with_quantile(listed, 0.3)
    assert [changed.heads[place].role for place in (1, 2)] == ["other-specialized", "generalization"]
    assert with_attributes(changed, 1).heads[2].role == "generalization"
    truth = named_table("ground-truth")
    fewer = with_quantile(with_attributes(truth, 3), 0.2)
    specialized = sorted(fewer.heads, key=lambda head: head.entropy or 0.0)[:7]  # ceil(0.2 * 32)
    for head in specialized:
        is_core = head.concept in fewer.attributes
        assert (head.role, head.attribute) == (
            ("core", head.concept) if is_core else ("other-specialized", None)
        )


def test_the_quantile_of_a_discovered_table_gives_that_table() -> None:
    """Of its 32 heads 11 have an entropy of 0, more than the 20% that were asked for: all are specialized."""
    table = named_table("discovered")
    found = with_quantile(table, table.settings["quantile"])
    assert roles(found) == roles(table)
    assert sum(head.role == "core" for head in found.heads) == 11


def test_what_a_table_cannot_be_changed_to() -> None:
    table = RoleTable("published", WEIGHTS, ("color",), (HeadRole(11, 3, "core", "color", "color"),))
    with pytest.raises(RoleTableError, match="no concept entropy for layer 11 head 3"):
        with_quantile(table, 0.2)
    with pytest.raises(RoleTableError, match="too few for 5"):
        with_attributes(specialized(), 5)


def specialized() -> RoleTable:
    kinds: list[tuple[str, str | None, str | None]] = [
        ("core", "color", "color"), ("core", "shape", "shape"), ("core", "shape", "shape"),
        ("mixed", None, None), ("other-specialized", None, "text"), ("other-specialized", None, "human"),
        ("other-specialized", None, "text"),
    ]  # fmt: skip
    heads = tuple(HeadRole(11, i, role, a, c) for i, (role, a, c) in enumerate(kinds))  # type: ignore[arg-type]
    return RoleTable("by hand", WEIGHTS, ("color", "shape"), heads)


def test_fewer_attributes_keep_the_frequent_ones() -> None:
    found = with_attributes(specialized(), 1)
    assert found.attributes == ("shape",)
    assert roles(found) == ["other-specialized", "shape", "shape", "mixed", *["other-specialized"] * 3]


def test_more_attributes_take_the_most_frequent_other_concepts() -> None:
    found = with_attributes(specialized(), 3)
    assert found.attributes == ("color", "shape", "text")
    assert roles(found) == ["color", "shape", "shape", "mixed", "text", "other-specialized", "text"]
    assert with_attributes(specialized(), 4).attributes == ("color", "shape", "text", "human")
    assert with_attributes(specialized(), 2) == specialized()
