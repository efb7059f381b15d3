"""From phrases to roles: a table made with the stored embeddings of the package's own pool, for which no
sentence model is needed; concept entropy and roles worked out by hand.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import log
from typing import Any

import pytest
import torch

from dear.errors import DataError, SettingsError
from dear.roles.assign import (
    HeadConcepts,
    assign_roles,
    build_table,
    concept_entropy,
    core_attributes,
    head_concepts,
    role_of,
    thresholds,
)
from dear.roles.phrases import Pool
from dear.roles.settings import RoleSettings
from dear.roles.table import RoleTable
from tests.unit.roles.samples import HEADS, WEIGHTS

FEW = RoleSettings(k=3, min_sizes=(25,))


@pytest.fixture(scope="module")
def table() -> RoleTable:
    return build_table(HEADS, WEIGHTS, source="by hand", settings=FEW, facts={"images": 7})


def test_concepts_and_roles(table: RoleTable) -> None:
    found = {(h.layer, h.head): h for h in table.heads}
    assert [found[5, head].concept for head in range(3)] == ["color", "animal", "location"]
    assert found[5, 0].share == {"color": 1.0}
    assert found[5, 0].entropy == 0
    assert found[6, 0].entropy == max(h.entropy for h in table.heads if h.entropy is not None)
    assert found[6, 0].role == "generalization"
    assert found[5, 0].phrases == HEADS[5, 0]
    assert len(table.attributes) == 3
    assert (table.weights, table.settings["images"], table.settings["k"]) == (WEIGHTS, 7, 3)


def test_the_evidence(table: RoleTable) -> None:
    names = [row["concept"] for row in table.evidence["clusters"]]
    assert {"color", "animal", "location"} <= set(names)
    assert 10 <= len(names) <= 14
    texts = {text for phrases in HEADS.values() for text in phrases}
    assert table.evidence["phrases"] == len(texts)
    low, high = table.evidence["thresholds"]
    assert low <= high


def test_attributes_by_name() -> None:
    named = replace(FEW, attributes=("animal", "shape"), quantile=0.5)
    table = build_table(HEADS, WEIGHTS, source="by hand", settings=named)
    assert table.attributes == ("animal", "shape")
    assert {h.attribute for h in table.heads if h.role == "core"} == {"animal"}
    with pytest.raises(SettingsError, match=r"there is no concept 'hue'. Known concepts: action, animal"):
        build_table(HEADS, WEIGHTS, source="by hand", settings=replace(FEW, attributes=("hue",)))


def test_given_concepts_are_taken_as_they_are() -> None:
    """However near a phrase is to those of another concept, and without HDBSCAN's smallest clusters. Every
    second phrase of the heads is even, and one more in the file is odd.
    """
    phrases = list(dict.fromkeys(text for texts in HEADS.values() for text in texts))
    given = {text: ("even", "odd")[number % 2] for number, text in enumerate(phrases)} | {
        "the color blue": "odd"
    }
    pool = Pool("mine.csv", tuple(given), tuple(given.values()))
    for settings in (RoleSettings(), RoleSettings(entropy_over="attributes")):
        table = build_table(HEADS, WEIGHTS, source="by hand", named=pool, settings=settings)
        for head in table.heads:
            even = sum(given[text] == "even" for text in head.phrases) / len(head.phrases)
            assert head.share.get("even", 0) == pytest.approx(even)
        assert {*table.attributes} == {"even", "odd"}  # not five, which nobody requested
        sizes = {row["concept"]: row["size"] for row in table.evidence["clusters"]}
        assert sizes == Counter(given.values())
    with pytest.raises(SettingsError, match="3 core attributes must be"):
        build_table(HEADS, WEIGHTS, source="by hand", named=pool, settings=RoleSettings(k=3))


def test_entropy_over_the_attributes() -> None:
    """Over one attribute every entropy is 0, over all concepts that occur it is that over concepts."""
    settings = replace(FEW, attributes=("animal",), entropy_over="attributes")
    single = build_table(HEADS, WEIGHTS, source="by hand", settings=settings)
    assert {head.entropy for head in single.heads} == {0}
    # With equal entropies all heads are specialized; their concepts are still those of all clusters.
    assert {head.role for head in single.heads} == {"core", "other-specialized"}
    over_concepts = build_table(HEADS, WEIGHTS, source="by hand", settings=FEW)
    every = tuple(dict.fromkeys(row["concept"] for row in over_concepts.evidence["clusters"]))
    over_all = build_table(HEADS, WEIGHTS, source="by hand", settings=replace(settings, attributes=every))
    assert [head.entropy for head in over_all.heads] == [head.entropy for head in over_concepts.heads]


def test_heads_without_phrases_and_a_pool_without_concepts() -> None:
    with pytest.raises(DataError, match="no phrase for 1 head; the first is layer 6 head 9"):
        build_table({**HEADS, (6, 9): ()}, WEIGHTS, source="by hand")
    with pytest.raises(SettingsError, match=r"phrases of mine.txt have no concepts"):
        build_table(HEADS, WEIGHTS, source="by hand", named=Pool("mine.txt", ("a dog",)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantile", 0.0), ("quantile", 0.6), ("k", -1), ("shrinkage", 0.0), ("min_sizes", ()),
        ("min_sizes", (1,)), ("attributes", ("color", "color")),
    ],
)  # fmt: skip
def test_settings_that_no_later_step_could_use(key: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=key):
        RoleSettings(**{key: value})


def test_entropy() -> None:
    assert concept_entropy([1.0]) == 0
    assert concept_entropy([0.5, 0.25, 0.25, 0.0]) == pytest.approx(1.5 * log(2))
    assert concept_entropy([0.2] * 5) == pytest.approx(log(5))


def test_shares_and_the_dominant_concept() -> None:
    found = head_concepts({(9, 0): ["shape", "color", "color", "shape"]})[9, 0]
    assert found.share == {"shape": 0.5, "color": 0.5}
    assert found.concept == "shape"  # of equals the one that TEXTSPAN names first
    assert found.entropy == pytest.approx(log(2))


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
        ("generalization", None, "style"),  # specialized, but in what the paper calls generalization
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
    centroids = {
        "color": torch.tensor([1.0, 0.0, 0.0]),
        "place": torch.tensor([0.0, 1.0, 0.0]),
        "hue": torch.tensor([0.8, 0.0, 0.6]),
        "style": torch.tensor([0.0, 0.0, 1.0]),
    }
    assert core_attributes(found, centroids, 2, ["style"]) == ("color", "place")
    assert core_attributes(found, centroids, 3, ["style"]) == ("color", "place", "hue")
    # A rare concept far from the chosen ones beats a frequent one that is near: style 0.05 against hue 0.03.
    assert core_attributes(found, centroids, 3) == ("color", "place", "style")
    with pytest.raises(
        SettingsError, match="5 core attributes must be among the heads' concepts, but these are only 3"
    ):
        core_attributes(found, centroids, 5, ["style"])


def test_attributes_come_first_from_concepts_that_own_specialized_heads() -> None:
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
