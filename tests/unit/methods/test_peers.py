"""What is particular to each of the first six peers; what they share is in tests/contract, their numbers in
tests/parity.
"""

import math

import pytest
import torch

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.evaluation.metrics import evaluate
from dear.methods.base import Method
from dear.methods.promptsrc.method import average_weights
from tests.helpers.data import noise_dataset
from tests.helpers.methods import build, pixels


@torch.no_grad()
def scores(method: Method, count: int = 2) -> torch.Tensor:
    features = method.image_features(method.image_trunk(pixels(count)))
    return method.logits(features, method.text_features())


class TestCoOp:
    def test_a_context_for_each_class(self, small_clip: Clip) -> None:
        method = build("coop", small_clip, class_specific=True, tokens=3, words="")
        assert method.context.shape == (3, 3, 22)
        before = scores(method)
        with torch.no_grad():
            method.context[1] += 1
        changed = (scores(method) != before).all(dim=0)
        assert changed.tolist() == [False, True, False]
        with pytest.raises(SettingsError, match="cannot score classes other than"):
            method.set_classes(["house"], ["a photo of a {}"])


class TestPromptSRC:
    def test_weights_of_epochs_by_hand(self) -> None:
        bell = [math.exp(-0.5 * ((epoch - 2) / 3) ** 2) for epoch in (1, 2, 3, 4)]
        assert average_weights(4, 2.0, 3.0) == pytest.approx([one / sum(bell) for one in bell])
        assert sum(average_weights(5, 60.0, 0.5)) == pytest.approx(1)

    def test_the_average_takes_the_place_of_the_prompts(self, small_clip: Clip) -> None:
        method = build("promptsrc", small_clip, average_mean=2, average_std=1, teacher="dataset")
        for epoch, value in enumerate((1.0, 10.0, 100.0), start=1):
            torch.nn.init.constant_(method.image_prompts, value)
            method.after_epoch(epoch, 3)
        side = math.exp(-0.5)
        want = (side * 1 + 10 + side * 100) / (1 + 2 * side)
        torch.testing.assert_close(method.image_prompts.detach(), torch.full((4, 4, 21), want))


class TestMMRL:
    def test_novel_classes_are_scored_by_the_class_feature(self, small_clip: Clip) -> None:
        method, test = build("mmrl", small_clip, space=19), noise_dataset().test
        method.set_classes(noise_dataset().classnames, ["a photo of a {}"])
        plain, novel = evaluate(method, test), evaluate(method, test, decoupled=True)
        assert novel.accuracy == novel.decoupled == plain.decoupled
        assert plain.accuracy != plain.decoupled
        assert novel.per_class != plain.per_class
