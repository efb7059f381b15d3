"""The model card: what it says of the test, of confusions, and what it leaves out."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dear.adapters.bundle_config import model_card
from dear.adapters.fit import fit
from dear.backbone.clip import Clip
from dear.data.fewshot import Subset
from tests.unit.serving.small import small_predictor
from tests.unit.training.world import noise_dataset

METRICS: dict[str, Any] = {
    "accuracy": 0.75, "zero_shot": 0.25, "chance": 0.1, "calibration_error": 0.05, "gained": 7, "lost": 1,
    "confusions": [["cup", "big|pizza", 4], ["ant", "bee", 1]],
}  # fmt: skip


@pytest.mark.parametrize("where", ["data", "a list", "test_images", "sha256", "confusions"])
def test_no_fact_of_a_stranger_is_markup(where: str, small_clip: Clip) -> None:
    bundle = small_predictor(small_clip).bundle
    text = "`x\n\n<script>alert(1)</script> [a](javascript:alert(1))\n# Forged"
    metrics = METRICS | ({"confusions": [[text, "b", 1]]} if where == "confusions" else {})
    training = {"data": "pets", "test_images": 12, "role_table": "one more fact"}
    training |= {where: [text] if where == "a list" else text}
    weights = replace(bundle.weights, sha256=text if where == "sha256" else "0")
    card = model_card(replace(bundle, metrics=metrics, training=training, weights=weights), "mine")
    assert ("alert" in card) == (where != "a list")
    assert "one more fact" not in card
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
    bundle = fit(untested, method="zero-shot")
    assert (bundle.metrics, bundle.training["test_images"]) == ({}, 0)
    card = model_card(bundle, "mine")
    assert "\nNot tested.\n" in card
    assert "Tested" not in card
