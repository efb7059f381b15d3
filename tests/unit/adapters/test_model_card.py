"""The model card: what it says of the test, of confusions, and what it leaves out."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from dear.adapters.facts import TrainingFacts
from dear.adapters.fit import fit
from dear.adapters.model_card import model_card
from dear.adapters.wording import FACTS
from dear.backbone.clip import Clip
from dear.data.fewshot import Subset
from tests.helpers.bundles import bundle_scores, small_predictor
from tests.helpers.data import noise_dataset

PLACES = ("data", "command", "chosen", "train", "sha256", "confusions")


@pytest.mark.parametrize("where", PLACES)
def test_no_fact_of_a_stranger_is_markup(where: str, small_clip: Clip) -> None:
    bundle = small_predictor(small_clip).bundle
    text = "`x\n\n<script>alert(1)</script> [a](javascript:alert(1))\n# Forged"
    scores = bundle_scores(12, confusions=((text if where == "confusions" else "cup", "big|pizza", 4),))
    facts: dict[str, Any] = {} if where in ("sha256", "confusions") else {where: text}
    training = TrainingFacts(**facts | ({"train": {text: text}} if where == "train" else {}))
    weights = replace(bundle.weights, sha256=text if where == "sha256" else "0")
    card = model_card(replace(bundle, scores=scores, training=training, weights=weights), "mine")
    assert "alert" in card
    assert not [mark for mark in ("<script>", "[a](", "\n# Forged") if mark in card]


def test_names_appear_literally(small_clip: Clip) -> None:
    classes = (
        "<script>alert(1)</script>", "[free](javascript:alert)", "https://evil.example", "www.evil.example",
        "a\u202egnp.exe", "\u200fmark", "# title\n# more", "a|b", "*bold* ![x](y)",
    )  # fmt: skip
    bundle = replace(small_predictor(small_clip).bundle, classes=classes, templates=("a `{}` | <b>",))
    card = model_card(bundle, 'x"); import os #\n![a](b)`')
    # In CommonMark a backslash before a sign of ASCII makes it literal.
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in card
    assert r"\[free\](javascript\:alert)" in card
    assert r"https\://evil.example, www\.evil.example" in card
    assert r"a\\u202egnp.exe" in card
    assert r"\# title\\n\# more, a\|b, \*bold\* \!\[x\](y)" in card
    assert r"a \`{}\` \| &lt;b&gt;" in card
    assert not {"\u202e", "\u200f"} & {*card}
    assert "<script" not in card
    lines = card.splitlines()
    assert r'predictor = dear.Predictor("x\"); import os #\\n![a](b)`")' in lines
    assert lines.count("```") == 2


@pytest.mark.usefixtures("only_clip")
def test_a_fit_without_test_images_says_so() -> None:
    data = noise_dataset()
    untested = replace(data, test=Subset(data.test, torch.empty(0, dtype=torch.int64)))
    bundle = replace(fit(untested, method="zero-shot"), scores=None)
    card = model_card(bundle, "mine")
    assert "\nNot tested" in card
    assert "Tested" not in card


def test_titles_are_of_facts() -> None:
    assert {*FACTS} <= {fact.name for fact in fields(TrainingFacts)}
