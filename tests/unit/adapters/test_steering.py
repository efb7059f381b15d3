"""Other weights of features without a fit, against scores computed from the features by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dear.adapters.predictor import Predictor
from dear.adapters.scoring import evaluate_bundle
from dear.adapters.vocabulary import can_be_steered
from dear.adapters.wording import verdict
from dear.backbone.clip import Clip
from dear.errors import DearError, SettingsError, UnknownNameError
from dear.methods.dear.method import Dear
from dear.methods.optional import HasFusion
from dear.methods.registry import METHODS, method_class
from dear.reading.plain import read_weights
from tests.conftest import MakeClip
from tests.helpers.bundles import fitted
from tests.helpers.data import CLASSES, noise_dataset
from tests.helpers.errors import refuses
from tests.helpers.methods import images

LEARNED = {"class": 0.5, "color": 0.2, "object": 0.3}


@pytest.fixture
def clip(make_small_clip: MakeClip) -> Clip:
    return make_small_clip(dtype=torch.float64)


def steer(clip: Clip, method: str = "dear", **steering: Any) -> Predictor:
    bundle, _ = fitted(method, clip)
    if method == "dear":
        bundle.tensors["fusion"] = torch.tensor([*map(math.log, LEARNED.values())], dtype=torch.float64)
    return Predictor(bundle, clip=clip, **steering)


def by_hand(predictor: Predictor, weights: dict[str, float], classes: list[str] = CLASSES) -> Tensor:
    """Sums of weight times cosine over tau, an image, a class and a feature at a time."""
    features, text = predictor.encode(images()), predictor.encode_classes(classes)
    scores = torch.zeros(len(features), len(classes), dtype=torch.float64)
    for image, of_image in enumerate(features):
        for label, of_class in enumerate(text):
            for name, feature in zip(predictor.features, of_image, strict=True):
                cosine = torch.dot(feature, of_class) / (feature.norm() * of_class.norm())
                scores[image, label] += weights[name] * cosine * predictor.clip.scale
    return scores


def test_dear_is_what_can_be_steered() -> None:
    assert [name for name in METHODS if issubclass(method_class(name), HasFusion)] == ["dear"]


def test_the_bundles_own_weights_change_nothing(clip: Clip) -> None:
    plain = steer(clip)
    steered = steer(clip, fusion=plain.own_vocabulary.weights())
    torch.testing.assert_close(steered.logits(images()), plain.logits(images()), rtol=0, atol=1e-12)
    for mine, own in zip(steered.predict(images()), plain.predict(images()), strict=True):
        assert mine.unchanged == own.top
        assert own.unchanged == ()
        assert [one.name for one in mine.top] == [one.name for one in own.top]
        assert mine.best.evidence == pytest.approx(own.best.evidence, abs=1e-12)
        assert mine.best.probability == pytest.approx(own.best.probability, abs=1e-12)


@pytest.mark.parametrize(
    ("fusion", "weights"),
    [
        ({"color": 0}, {"class": 5 / 8, "color": 0, "object": 3 / 8}),
        ({"class": 1, "color": 0}, {"class": 10 / 13, "color": 0, "object": 3 / 13}),
        ({"class": 0, "color": 3, "object": 1}, {"class": 0, "color": 3 / 4, "object": 1 / 4}),
    ],
)
@pytest.mark.parametrize("classes", [CLASSES, ["red circle on the sea", "starfish"]])
def test_scores_and_evidence_are_those_by_hand(
    clip: Clip, fusion: dict[str, float], weights: dict[str, float], classes: list[str]
) -> None:
    plain, steered = steer(clip), steer(clip, fusion=fusion)
    wanted = by_hand(plain, weights, classes)
    torch.testing.assert_close(steered.logits(images(), classes), wanted, rtol=0, atol=1e-9)
    assert (plain.logits(images(), classes) - wanted).abs().max() > 1e-2
    for row, prediction in zip(wanted, steered.predict(images(), classes=classes), strict=True):
        assert prediction.best.logit == pytest.approx(float(row.max()), abs=1e-9)
        assert sum(prediction.best.evidence.values()) == pytest.approx(prediction.best.logit, abs=1e-9)
        for name, weight in weights.items():
            assert weight or prediction.best.evidence[name] == 0
    assert steered.own_vocabulary.weights() == pytest.approx(weights)


def test_decoupled_is_the_class_feature_alone(clip: Clip) -> None:
    decoupled = steer(clip, decoupled=True)
    wanted = by_hand(decoupled, {"class": 1, "color": 0, "object": 0})
    torch.testing.assert_close(decoupled.logits(images()), wanted, rtol=0, atol=1e-9)
    assert decoupled.own_vocabulary.weights() == {"class": 1, "color": 0, "object": 0}
    assert decoupled.predict(images())[0].unchanged == steer(clip).predict(images())[0].top


def test_what_cannot_be_steered_is_a_line(clip: Clip) -> None:
    refused: list[tuple[dict[str, Any], type[DearError], str]] = [
        ({"fusion": {"colors": 0}}, UnknownNameError, "unknown feature 'colors'. Did you mean 'color'"),
        ({"fusion": {"class": -1}}, SettingsError, "at least 0, and one of them above 0"),
        ({"fusion": {"class": math.inf}}, SettingsError, "at least 0, and one of them above 0"),
        ({"fusion": dict.fromkeys(LEARNED, 0)}, SettingsError, "at least 0, and one of them above 0"),
        ({"fusion": {"color": 0}, "decoupled": True}, SettingsError, "do not go with decoupled"),
        ({"method": "dear+", "fusion": {"color": 0}}, SettingsError, "dear+ has no fusion weights"),
        ({"method": "zero-shot", "fusion": {"class": 1}}, SettingsError, "zero-shot has no fusion weights"),
        ({"method": "zero-shot", "decoupled": True}, SettingsError, "nothing to decouple"),
    ]
    for steering, error, words in refused:
        refuses(error, words, steer, clip, **steering)


def test_a_score_that_is_no_sum_has_no_evidence_and_cannot_be_steered(
    clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a class derived from `Dear` that scores by the best feature, whatever the weights."""

    def logits(self: Dear, image: Tensor, text: Tensor, *, decoupled: bool = False) -> Tensor:
        return (self.clip.scale * (image[:1] if decoupled else image) @ text.T).amax(dim=0)

    assert can_be_steered(steer(clip).method)
    monkeypatch.setattr(Dear, "logits", logits)
    predictor = steer(clip)
    assert not can_be_steered(predictor.method)
    assert predictor.own_vocabulary.weights() is None
    assert steer(clip, decoupled=True).own_vocabulary.weights() == {"class": 1, "color": 0, "object": 0}
    refuses(SettingsError, "fusion", steer, clip, fusion={"color": 0})
    with pytest.warns(UserWarning, match="do not sum to the scores"):
        predictions = predictor.predict(images())
    assert [one.best.evidence for one in predictions] == [{}] * len(predictions)
    best = by_hand(predictor, {"class": 1, "color": 0, "object": 0})
    for name in ("color", "object"):
        best = best.maximum(by_hand(predictor, dict.fromkeys(LEARNED, 0) | {name: 1}))
    wanted = best.amax(dim=1).tolist()
    assert [one.best.logit for one in predictions] == pytest.approx(wanted, abs=1e-9)


def test_a_class_whose_decoupled_score_is_its_own_is_given_no_weights(
    clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits(self: Dear, image: Tensor, text: Tensor, *, decoupled: bool = False) -> Tensor:
        return self.clip.scale * (image[:2].mean(dim=0) if decoupled else image[0]) @ text.T

    monkeypatch.setattr(Dear, "logits", logits)
    assert steer(clip, decoupled=True).own_vocabulary.weights() is None


def test_the_accuracy_stands_beside_that_of_the_own_weights(clip: Clip) -> None:
    data = noise_dataset()
    plain, steered = steer(clip), steer(clip, fusion={"class": 0, "color": 1, "object": 0})
    own, scores = (evaluate_bundle(of, data, own_classes=False) for of in (plain, steered))
    beside = scores.steered
    assert own.steered is None
    assert beside is not None
    assert beside.own_accuracy == own.accuracy
    assert beside.own_weights == pytest.approx(LEARNED)
    assert beside.weights == {"class": 0, "color": 1, "object": 0}
    pictures = [*data.test.load(torch.arange(len(data.test)))]
    before, after = (
        of.logits(pictures, data.classnames).argmax(dim=1) == data.test.labels for of in (plain, steered)
    )
    assert (scores.accuracy, own.accuracy) == (float(after.double().mean()), float(before.double().mean()))
    assert (beside.gained, beside.lost) == (int((after & ~before).sum()), int((before & ~after).sum()))
    assert beside.gained + beside.lost > 0
    assert f"{own.accuracy:.1%} are right" in " ".join(verdict(scores))


def test_a_steered_predictor_goes_to_workers_with_its_weights(clip: Clip) -> None:
    build, _ = steer(clip, fusion={"color": 0}).__reduce__()
    assert build.keywords["fusion"] == {"color": 0}


def test_weights_are_read_from_words() -> None:
    assert read_weights(["class=1", " color = 0.5"]) == {"class": 1, "color": 0.5}
    for entries in (["class"], ["=1"], ["class=x"], ["class=1", "class=2"]):
        with pytest.raises(SettingsError, match=r"class=1,color=0"):
            read_weights(entries)
