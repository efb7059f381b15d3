"""The model card: what it says of the test, of confusions, and what it leaves out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.adapters.fit import fit
from dear.backbone.clip import Clip
from dear.cli.fit import Fitted, render
from dear.cli.output import PrintableConsole
from dear.data.fewshot import Subset
from tests.unit.serving.small import small_predictor
from tests.unit.training.world import noise_dataset

METRICS: dict[str, Any] = {
    "accuracy": 0.75, "gained": 6, "lost": 1, "confusions": [["cup", "big|pizza", 4], ["ant", "bee", 1]],
}  # fmt: skip


def test_metrics_in_words(small_clip: Clip) -> None:
    bundle = small_predictor(small_clip).bundle
    training = {"data": "pets", "test_images": 12, "seconds": 0, "epoch": None, "seed": 0}
    card = replace(bundle, metrics=METRICS, training=training).model_card("mine").splitlines()
    for line in (
        "Measured on 12 test images of pets:",
        "| confusions | cup as big\\|pizza (4), ant as bee (1) |",
        "| right, but wrong zero-shot (images) | 6 |",
        "| wrong, but right zero-shot (images) | 1 |",
        "| seed | 0 |",
    ):
        assert line in card
    assert not [line for line in card if line.startswith(("| seconds", "| epoch"))]


def test_no_fact_of_a_stranger_replaces_one_of_the_card(small_clip: Clip) -> None:
    bundle = small_predictor(small_clip).bundle
    training = {"backbone": "ViT-L-14", "sha256 of the backbone's tensors": "0" * 64, "role_table": "mine"}
    card = replace(bundle, training=training).model_card("mine")
    assert f"| sha256 of the backbone's tensors | `{bundle.weights.sha256}` |" in card
    assert not [text for text in ("ViT-L-14", "0" * 64, "| mine |") if text in card]


@pytest.mark.parametrize("odd", ["abc", 7, [[1]], [["a", "b"]], [7], None])
def test_confusions_of_a_stranger_may_be_anything(odd: Any, small_clip: Clip) -> None:
    bundle = replace(small_predictor(small_clip).bundle, metrics={"confusions": odd})
    assert "| confusions |" in bundle.model_card("mine")


@pytest.mark.parametrize("where", ["a metric", "a list", "test_images", "a list of images", "sha256"])
def test_no_fact_of_a_stranger_is_markup(where: str, small_clip: Clip) -> None:
    bundle = small_predictor(small_clip).bundle
    text = "`x\n\n<script>alert(1)</script> [a](javascript:alert(1))\n# Forged"
    metrics = METRICS | {"x": {"a metric": text, "a list": [text]}.get(where, 0)}
    training = {
        "data": "pets",
        "test_images": {"test_images": text, "a list of images": [text]}.get(where, 1),
    }
    weights = replace(bundle.weights, sha256=text if where == "sha256" else "0")
    card = replace(bundle, metrics=metrics, training=training, weights=weights).model_card("mine")
    assert "alert" in card
    assert not [mark for mark in ("<script>", "[a](", "\n# Forged") if mark in card]


def test_a_fit_without_test_images_says_so(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dear.adapters.fit.load_clip", lambda *_args, **_options: small_clip)
    data = noise_dataset()
    untested = replace(data, test=Subset(data.test, torch.empty(0, dtype=torch.int64)))
    bundle = fit(untested, method="zero-shot")
    assert (bundle.metrics, bundle.training["test_images"]) == ({}, 0)
    card = bundle.model_card("mine")
    assert "\nNot tested.\n" in card
    assert "Measured" not in card
    render(result(metrics={}, verdict=[], test_images=0), PrintableConsole(width=200))
    assert "Not tested: no image was left for testing." in capsys.readouterr().out


def result(**facts: Any) -> Fitted:
    usual: dict[str, Any] = {
        "out": Path("b"), "method": "coop", "backbone": "small", "classes": 12, "parameters": 1, "bytes": 1,
        "temperature": 1.0, "metrics": {}, "verdict": [], "test_images": 84, "train_images": 204,
        "calibration_images": 0,
    }  # fmt: skip
    return Fitted(**usual | facts)


@pytest.mark.parametrize(
    ("images", "classes", "advice"),
    [
        (204, 12, " (--shots 15 keeps 24 or more training images for that)"),  # 204 - 15 * 12
        (31, 12, ""),  # a single image of each class would leave 19
        (32, 12, " (--shots 1 keeps 20 or more training images for that)"),
    ],
)
def test_shots_that_leave_images_for_the_probabilities(
    images: int, classes: int, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    render(result(train_images=images, classes=classes), PrintableConsole(width=200))
    assert f"probabilities not calibrated{advice}\n" in capsys.readouterr().out
