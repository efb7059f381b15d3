"""The mapping of other people's labels and the figures of agreement, by hand and by counting; the facts."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from benchmarks.role_judges import (
    GRADES,
    chance,
    compared,
    concept_of_word,
    facts,
    labelled,
    most_under_quantile,
    read_spans,
    soft_concepts,
    spans_of,
    wilson,
)
from dear.errors import DataError
from dear.roles.packaged import named_table
from dear.roles.phrases import general_pool
from dear.roles.textspan_format import write_textspan

SUPPLEMENT = Path(__file__).parents[3] / "shared" / "paper" / "head_roles_vit_b16.json"
WORDS = {
    "name": {"color": ["Colors"], "location": ["Location"]},
    "kind": {"location": ["City"]},
    "border": {"text": ["Communication"]},
}


def test_a_grade_includes_the_stricter_ones() -> None:
    assert concept_of_word(WORDS, "name") == {"Colors": "color", "Location": "location"}
    assert concept_of_word(WORDS, "kind") == {"Colors": "color", "Location": "location", "City": "location"}
    assert concept_of_word(WORDS, "border")["Communication"] == "text"


def test_heads_whose_word_has_no_concept_have_no_label() -> None:
    words = {"9": ["City", "Subject", "Colors"], "11": ["Subject", "Location", "City"]}
    assert labelled(words, concept_of_word(WORDS, "name")) == {(9, 2): "color", (11, 1): "location"}


def test_agreement_counts_the_heads_that_both_have() -> None:
    first = {(9, 0): "color", (9, 1): "shape", (9, 2): "text", (10, 0): "color", (11, 0): "color"}
    second = {(9, 0): "color", (9, 1): "color", (9, 2): "text", (10, 0): "color", (12, 0): "color"}
    # Of four heads three agree; by chance color 2/4 * 3/4 and text 1/4 * 1/4: kappa = (12 - 7) / (16 - 7).
    assert compared(first, second) == {
        "agree": 3,
        "heads": 4,
        "interval": [30, 95],
        "kappa": 0.56,
        "most_frequent": 3,
    }
    subset = compared(first, second, {(9, 1), (9, 2), (11, 0)})
    assert (subset["agree"], subset["heads"]) == (1, 2)


def test_wilson_interval_by_hand() -> None:
    # All of n: from n / (n + z^2) to 100%; half of 10: 1/2 -+ z / (2 sqrt(10 + z^2)); z^2 = 3.8415.
    assert wilson(7, 7) == pytest.approx((100 * 7 / 10.8415, 100), abs=1e-3)
    assert wilson(0, 7) == pytest.approx((0, 100 * 3.8415 / 10.8415), abs=1e-3)
    assert wilson(5, 10) == pytest.approx((23.659, 76.341), abs=1e-3)


def test_chance_by_counting_draws() -> None:
    heads = [True] * 4 + [False] * 7
    for picked, agree in ((1, 1), (3, 2), (5, 3), (5, 0), (5, 5)):
        draws = [sum(draw) >= agree for draw in combinations(heads, picked)]
        assert chance(agree, picked, 4, len(heads)) == pytest.approx(sum(draws) / len(draws))


@pytest.mark.parametrize(
    "roles",
    [
        ["core"] * 7 + ["generalization"] * 2 + ["mixed"] * 2,
        ["generalization"] * 9 + ["mixed", "core"],
        ["mixed"] * 11,
        ["core"] * 11,
        ["other-specialized", "core", *["generalization"] * 4, *["mixed"] * 5],
    ],
)
def test_the_most_that_quantiles_can_reach_by_trying_all(roles: list[str]) -> None:
    """Of entropies 0 to 10 the quantiles are 2 and 8: three heads lie at or below, three at or above."""
    indices = set(range(len(roles)))
    reached = [
        sum(roles[head] != "mixed" for head in low)
        + sum(roles[head] == "generalization" for head in high)
        + sum(roles[head] == "mixed" for head in indices - {*low, *high})
        for low in combinations(sorted(indices), 3)
        for high in combinations(sorted(indices - {*low}), 3)
    ]
    assert most_under_quantile(roles, 0.2) == max(reached)


def test_soft_assignment_of_phrases_of_the_pool() -> None:
    pool = general_pool()
    of_concept = {
        name: [text for text, concept in zip(pool.phrases, pool.concepts, strict=True) if concept == name]
        for name in ("animal", "color")
    }
    spans = {(9, 0): tuple(of_concept["animal"][:5]), (9, 1): tuple(of_concept["color"][:5])}
    assert soft_concepts(spans, 0.1) == {(9, 0): "animal", (9, 1): "color"}


def test_the_last_four_layers_are_read_and_other_weights_refused(tmp_path: Path) -> None:
    spans = {(layer, head): ("a dog",) for layer in range(6, 13) for head in range(12)}
    write_textspan(tmp_path / "spans.txt", spans)
    assert {layer for layer, _ in read_spans(tmp_path / "spans.txt")} == {9, 10, 11, 12}
    assert len(spans_of(tmp_path / "spans.txt", "ViT-B-16 openai")) == 48
    with pytest.raises(DataError, match=r"ViT-L-14 openai has 64, the last of layer 24.*--weights"):
        spans_of(tmp_path / "spans.txt", "ViT-L-14 openai")


def test_every_word_of_the_labels_has_one_concept_or_is_listed_without() -> None:
    mapping, labels = facts("interpret_concepts.json"), facts("interpret_labels.json")["labels"]
    assert tuple(mapping["concepts"]) == GRADES
    listed = [
        word for grade in mapping["concepts"].values() for words in grade.values() for word in words
    ] + mapping["without"]
    used = {word for layers in labels.values() for words in layers.values() for word in words}
    assert sorted(listed) == sorted(used)  # each once
    concepts = {concept for grade in mapping["concepts"].values() for concept in grade}
    assert concepts <= {*general_pool().concepts}


def test_labels_cover_the_last_four_layers() -> None:
    layers = {"ViT-B-16": 12, "ViT-B-32": 12, "ViT-L-14": 24}
    for weights, labels in facts("interpret_labels.json")["labels"].items():
        last = layers[weights.split()[0]]
        assert [*labels] == [str(layer) for layer in range(last - 3, last + 1)]
        assert {len(words) for words in labels.values()} == {16 if last == 24 else 12}


def test_picked_heads_are_heads_of_labelled_weights() -> None:
    labels, picked = facts("interpret_labels.json")["labels"], facts("picked_heads.json")
    for pick in picked["picks"]:
        assert pick["by"] in picked["sources"]
        assert pick["concept"] in general_pool().concepts
        assert all(head < len(labels[pick["weights"]][str(layer)]) for layer, head in pick["heads"])
        assert len({*map(tuple, pick["heads"])}) == len(pick["heads"])


def test_printed_phrases_are_of_the_published_heads() -> None:
    rows = facts("printed_phrases.json")["heads"]
    heads = [(role.layer, role.head) for role in named_table("published").heads]
    assert [(row["layer"], row["head"]) for row in rows] == heads
    if not SUPPLEMENT.is_file():
        pytest.skip("the paper's table is not beside this checkout")
    for row, printed in zip(rows, json.loads(SUPPLEMENT.read_text(encoding="utf-8")), strict=True):
        assert ", ".join(row["phrases"]) == printed["phrases"]
