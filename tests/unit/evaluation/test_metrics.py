"""Accuracies against a plain loop over the images."""

import pytest
import torch

from dear.backbone.clip import Clip
from dear.data.images.transforms import eval_views
from dear.evaluation.metrics import evaluate, trunks
from dear.evaluation.schema import harmonic_mean
from dear.methods.dear.method import Dear
from dear.methods.registry import build_method
from dear.training.trunks import TrunkCache
from tests.unit.training.world import CLASSES, Noise, small_dear


def test_harmonic_mean() -> None:
    assert harmonic_mean(0.8, 0.6) == pytest.approx(0.96 / 1.4)
    assert harmonic_mean(0.37, 0.37) == pytest.approx(0.37)
    assert harmonic_mean(0.0, 0.6) == harmonic_mean(0.6, 0.0) == harmonic_mean(0.0, 0.0) == 0.0


@torch.no_grad()
def test_against_a_plain_loop(small_clip: Clip) -> None:
    method = small_dear(small_clip, alpha_cls=0.2, token_std=1.0)
    images = Noise(torch.randint(0, 3, (31,), generator=torch.Generator().manual_seed(1)).tolist(), seed=7)
    text = method.text_features()
    hits: dict[str, list[float]] = {name: [] for name in CLASSES}
    decoupled = []
    for item in range(31):
        view = eval_views(images.load(torch.tensor([item])), 20)
        features = method.image_features(method.image_trunk(view))
        label = int(images.labels[item])
        guesses = [int(method.logits(features, text, decoupled=d)[0].argmax()) for d in (False, True)]
        hits[CLASSES[label]].append(float(guesses[0] == label))
        decoupled.append(float(guesses[1] == label))
    every = [hit for of_class in hits.values() for hit in of_class]
    for batch in (250, 11, 1):
        scores = evaluate(method, images, batch=batch)
        assert scores.accuracy == pytest.approx(sum(every) / 31)
        assert scores.decoupled == pytest.approx(sum(decoupled) / 31)
        assert scores.per_class == pytest.approx({name: sum(one) / len(one) for name, one in hits.items()})
    assert 0 < scores.accuracy < 1


def test_fused_and_decoupled_and_classes_without_images(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that says class 0 when fused and class 2 when decoupled, on images of classes 0, 2, 2, 2,
    0.
    """

    def logits(
        _self: Dear, image: torch.Tensor, _text: torch.Tensor, *, decoupled: bool = False
    ) -> torch.Tensor:
        return torch.tensor([[0.0, 0.0, 1.0] if decoupled else [1.0, 1.0, 0.0]]).expand(image.shape[1], -1)

    monkeypatch.setattr(Dear, "logits", logits)
    scores = evaluate(small_dear(small_clip), Noise([0, 2, 2, 2, 0]))
    assert (scores.accuracy, scores.decoupled) == (0.4, 0.6)
    assert scores.per_class == {CLASSES[0]: 1.0, CLASSES[2]: 0.0}


def test_the_cache_saves_the_trunk_and_changes_nothing(small_clip: Clip) -> None:
    cache, images = TrunkCache(10**7), Noise([0, 1, 2, 1, 0])
    plain = evaluate(small_dear(small_clip), Noise([0, 1, 2, 1, 0]))
    for _ in range(2):
        assert evaluate(small_dear(small_clip), images, batch=3, cache=cache) == plain
    assert images.loads == 2
    earlier = build_method("mmrl", small_clip, torch.Generator())  # its span begins at layer 3, not 4
    earlier.set_classes(CLASSES, ["a photo of a {}"])
    assert earlier.image_from == 3
    evaluate(earlier, images, batch=3, cache=cache)
    assert images.loads == 4


def test_a_span_that_begins_later_goes_on_from_what_is_held(small_clip: Clip) -> None:
    """Zero-shot CLIP, and DeAR from layer 5, after DeAR from layer 4 (of 5): no image is loaded again."""
    cache, images = TrunkCache(10**7), Noise([0, 1, 2, 1, 0])
    evaluate(small_dear(small_clip), images, batch=3, cache=cache)
    zero_shot = build_method("zero-shot", small_clip, torch.Generator())
    zero_shot.set_classes(CLASSES, ["a photo of a {}"])
    for method in (zero_shot, small_dear(small_clip, first=12)):
        held = [*trunks(method, images, 3, cache, "auto")]
        for got, want in zip(held, trunks(method, images, 3, TrunkCache(0), "auto"), strict=True):
            assert torch.equal(got, want)
        assert held[0].shape[1] == (1 if method is zero_shot else 26)
    assert images.loads == 2 + 2 * 2  # twice for the comparison
