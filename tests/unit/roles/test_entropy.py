"""Concept entropy, quantiles and roles worked out by hand."""

import random
from fractions import Fraction
from math import log, prod

import pytest
import torch

from dear.backbone.clip import Identity
from dear.errors import DataError, RoleTableError, SettingsError
from dear.roles.entropy import (
    HeadConcepts,
    assign_roles,
    concept_entropy,
    core_attributes,
    head_concepts,
    nearest_centroid,
    role_of,
    thresholds,
    with_attributes,
    with_quantile,
)
from dear.roles.packaged import kind_of, packaged_tables
from dear.roles.table import HeadRole, RoleTable


def test_entropy() -> None:
    assert concept_entropy([1.0]) == 0
    assert concept_entropy([0.5, 0.25, 0.25, 0.0]) == pytest.approx(1.5 * log(2))
    assert concept_entropy([0.2] * 5) == pytest.approx(log(5))


def test_the_nearest_centroid_is_by_angle() -> None:
    centroids = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    phrases = torch.nn.functional.normalize(torch.tensor([[9.0, 1.0], [0.1, 0.1], [0.0, -1.0]]), dim=1)
    assert nearest_centroid(phrases, centroids).tolist() == [0, 1, 0]


def test_shares_and_the_dominant_concept() -> None:
    found = head_concepts({(9, 0): ["shape", "color", "color", "shape"]})[9, 0]
    assert found.share == {"shape": 0.5, "color": 0.5}
    assert found.concept == "shape"  # of equals the one that TEXTSPAN names first
    assert found.entropy == pytest.approx(log(2))


def test_heads_without_phrases() -> None:
    with pytest.raises(DataError, match="no phrase for 2 heads; the first is layer 9 head 1"):
        head_concepts({(9, 0): ["shape"], (9, 1): [], (10, 2): []})


def test_quantiles_are_interpolated() -> None:
    assert thresholds([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 0.2) == pytest.approx((1.0, 4.0))
    assert thresholds([0.0, 1.0], 0.25) == pytest.approx((0.25, 0.75))
    # In floats 1 - 0.3 is below 0.7, and 0.7 of 10 steps above 7.
    assert thresholds([float(step) for step in range(11)], 0.3) == (3.0, 7.0)


def heads() -> dict[tuple[int, int], HeadConcepts]:
    """Six heads with entropies 0 to 5; at q = 0.2 the thresholds are 1 and 4."""
    concepts = ["color", "style", "emotion", "color", "color", "style"]
    return {(9, i): HeadConcepts({c: 0.75, "x": 0.25}, float(i)) for i, c in enumerate(concepts)}


def test_the_four_roles() -> None:
    found = assign_roles(
        heads(), ["color"], limits=(1.0, 4.0), general=["style"], phrases={(9, 0): ["red", "blue"]}
    )
    assert [(one.role, one.attribute, one.concept) for one in found] == [
        ("core", "color", "color"),
        ("generalization", None, "style"),  # specialised, but in what the paper calls generalization
        ("mixed", None, "emotion"),
        ("mixed", None, "color"),
        ("generalization", None, "color"),
        ("generalization", None, "style"),
    ]
    assert found[0].phrases == ("red", "blue")
    assert found[3].share == {"color": 0.75, "x": 0.25}
    roles = [one.role for one in assign_roles(heads(), ["emotion"], limits=(2.5, 2.5))]
    assert roles == ["other-specialized", "other-specialized", "core", *["generalization"] * 3]


def test_core_attributes_are_frequent_and_distinct() -> None:
    # Frequencies: color 0.5, place 0.3, hue 0.15, style 0.05. After color, hue has 0.15 * (1 - 0.8) = 0.03
    # and place 0.3 * 1 = 0.3; style is none.
    found = {(9, 0): HeadConcepts({"color": 0.5, "place": 0.3, "hue": 0.15, "style": 0.05}, 1.0)}
    rows = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.8, 0.0, 0.6], [0.0, 0.0, 1.0]])
    centroids = dict(zip(("color", "place", "hue", "style"), rows, strict=True))
    assert core_attributes(found, centroids, 2, ["style"]) == ("color", "place")
    assert core_attributes(found, centroids, 3, ["style"]) == ("color", "place", "hue")
    # A rare concept far from the chosen ones beats a frequent one that is near: style 0.05 against hue 0.03.
    assert core_attributes(found, centroids, 3) == ("color", "place", "style")
    with pytest.raises(SettingsError, match="5 core attributes were requested, but the heads have only 3"):
        core_attributes(found, centroids, 5, ["style"])


def test_attributes_come_first_from_concepts_that_own_specialised_heads() -> None:
    found = {(9, 0): HeadConcepts({"color": 0.5, "place": 0.3, "hue": 0.2}, 1.0)}
    centroids = dict(zip(("color", "place", "hue"), torch.eye(3), strict=True))
    assert core_attributes(found, centroids, 2, owners={"hue", "place"}) == ("place", "hue")
    assert core_attributes(found, centroids, 3, owners={"hue"}) == ("hue", "color", "place")
    assert core_attributes(found, centroids, 2, owners={"hue", "place"}, general=["hue"]) == (
        "place",
        "color",
    )


def test_roles_by_the_concept_alone() -> None:
    roles = [
        role_of(9.0, concept, None, ["color"], ["style"]) for concept in ("color", "style", "text", None)
    ]
    assert roles == ["core", "generalization", "other-specialized", "mixed"]


def test_equal_entropies_are_equal_numbers() -> None:
    """4^4 4^4 4^4 = 8^8 1 1 1 1 = 2^24; of half as many phrases the shares are the same."""
    partitions = [[4, 4, 4], [8, 1, 1, 1, 1], [1, 1, 8, 1, 1]]
    entropies = [concept_entropy([Fraction(n, 12) for n in counts]) for counts in partitions]
    assert entropies[0] == entropies[1] == entropies[2] == concept_entropy([Fraction(1, 3)] * 3)
    assert entropies[0] == pytest.approx(log(3))
    assert concept_entropy([Fraction(1)]) == 0


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
        assert roles(with_quantile(table, 20)) == [head.attribute or head.role for head in heads]
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
    found = with_quantile(computed(), 30)
    # The three lowest entropies are heads 1 (style), 2 (number), 4 (shape); the highest 9, 3, 5.
    expected = ["mixed", "generalization", "other-specialized", "generalization", "shape", "generalization"]
    assert roles(found) == [*expected, "mixed", "mixed", "mixed", "generalization"]
    assert found.source == "by hand, q = 30%"
    assert [h.entropy for h in found.heads] == ENTROPY
    found = roles(with_quantile(computed(), 10))
    assert found == ["mixed", "generalization", *["mixed"] * 7, "generalization"]


def test_the_quantile_of_a_discovered_table_gives_that_table() -> None:
    """Of its 32 heads 11 have an entropy of 0, more than the 20% that were asked for: all are specialised."""
    table = next(one for one in packaged_tables() if kind_of(one) == "discovered")
    found = with_quantile(table, 100 * table.settings["quantile"])
    assert roles(found) == roles(table)
    assert sum(head.role == "core" for head in found.heads) == 11


def test_what_a_table_cannot_be_changed_to() -> None:
    table = RoleTable("published", WEIGHTS, ("color",), (HeadRole(11, 3, "core", "color", "color"),))
    with pytest.raises(RoleTableError, match="no concept entropy for layer 11 head 3"):
        with_quantile(table, 20)
    for percent in (0, 51):
        with pytest.raises(RoleTableError, match="at most 50%"):
            with_quantile(computed(), percent)
    for count in (0, 5):
        with pytest.raises(RoleTableError):
            with_attributes(specialised(), count)


def specialised() -> RoleTable:
    kinds: list[tuple[str, str | None, str | None]] = [
        ("core", "color", "color"), ("core", "shape", "shape"), ("core", "shape", "shape"),
        ("mixed", None, None), ("other-specialized", None, "text"), ("other-specialized", None, "human"),
        ("other-specialized", None, "text"),
    ]  # fmt: skip
    heads = tuple(HeadRole(11, i, role, a, c) for i, (role, a, c) in enumerate(kinds))  # type: ignore[arg-type]
    return RoleTable("by hand", WEIGHTS, ("color", "shape"), heads)


def test_fewer_attributes_keep_the_frequent_ones() -> None:
    found = with_attributes(specialised(), 1)
    assert found.attributes == ("shape",)
    assert roles(found) == ["other-specialized", "shape", "shape", "mixed", *["other-specialized"] * 3]


def test_more_attributes_take_the_most_frequent_other_concepts() -> None:
    found = with_attributes(specialised(), 3)
    assert found.attributes == ("color", "shape", "text")
    assert roles(found) == ["color", "shape", "shape", "mixed", "text", "other-specialized", "text"]
    assert with_attributes(specialised(), 4).attributes == ("color", "shape", "text", "human")
    assert with_attributes(specialised(), 2) == specialised()
