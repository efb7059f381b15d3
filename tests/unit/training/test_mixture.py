"""Weights of variants, against what is written out here."""

import pytest
import torch
from tests.unit.training.world import CLASSES, Noise, few
from torch.nn.functional import cross_entropy

from dear.backbone.clip import Clip
from dear.data.images.transforms import eval_views
from dear.errors import SettingsError, TrainingDiverged
from dear.methods.base import Method
from dear.methods.registry import METHODS, build_method
from dear.training.mixture import mixture_weights
from dear.training.settings import TrainSettings

SETTINGS = TrainSettings(epochs=2, batch=4, optimizer="sgd", lr=1e-2, warmup_epochs=0)


def variants(clip: Clip, name: str = "coop") -> list[Method]:
    found = []
    for seed in (1, 2, 3):
        settings = METHODS["coop"].settings(tokens=3, words="") if name == "coop" else None
        one = build_method(name, clip, torch.Generator().manual_seed(seed), settings=settings)
        one.set_classes(CLASSES, ["a photo of a {}"])
        found.append(one)
    return found


def test_weights_follow_adam_on_the_mixtures_loss(small_clip: Clip) -> None:
    """With prompts that stand still."""
    still = TrainSettings(epochs=2, batch=4, optimizer="sgd", lr=1e-30, weight_decay=0.0, warmup_lr=1e-30)
    val, methods = Noise([0, 1, 2, 2, 1], seed=4), variants(small_clip)
    found = mixture_weights(methods, few(), val, still, seed=1, weight_lr=0.1)
    with torch.no_grad():
        trunk = methods[0].image_trunk(eval_views(val.load(torch.arange(5)), small_clip.image_size))
        scores = [one.logits(one.image_features(trunk), one.text_features()) for one in methods]
    raw = torch.zeros(3, requires_grad=True)
    adam = torch.optim.Adam([raw], 0.1, betas=(0.5, 0.999))
    wanted = []
    for _ in range(2):
        for _ in range(2):  # 7 images in batches of 4
            weights = raw.softmax(dim=0)
            mixed = weights[0] * scores[0] + weights[1] * scores[1] + weights[2] * scores[2]
            adam.zero_grad()
            cross_entropy(mixed, val.labels).backward()
            adam.step()
        wanted.append(raw.softmax(dim=0).tolist())
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
        assert sum(one) == pytest.approx(1)
    assert max(found[-1]) > 0.36


def test_all_variants_learn_and_the_same_seed_gives_the_same(small_clip: Clip) -> None:
    found = []
    for _ in range(2):
        methods, fresh = variants(small_clip), variants(small_clip)
        found.append(mixture_weights(methods, few(), Noise([0, 1, 2]), SETTINGS, seed=1))
        for one, other in zip(methods, fresh, strict=True):
            assert not torch.equal(one.trainable[0], other.trainable[0])
    assert found[0] == found[1]
    assert found[0] != mixture_weights(variants(small_clip), few(), Noise([0, 1, 2]), SETTINGS, seed=2)
    still = mixture_weights(variants(small_clip), few(), Noise([0, 1, 2]), SETTINGS, seed=1, weight_lr=1e-30)
    assert still[-1] == pytest.approx([1 / 3] * 3)


def test_validation_images_come_in_turn(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dear.training.mixture.AT_ONCE", 2)
    val = Noise([0, 1, 2, 2, 1])
    mixture_weights(variants(small_clip), few(), val, SETTINGS, seed=1)
    assert val.loads == 3  # each of the three batches once, in four steps


def test_what_is_refused(small_clip: Clip) -> None:
    with pytest.raises(SettingsError, match="begin at one layer"):
        mixture_weights(
            [variants(small_clip)[0], variants(small_clip, "maple")[0]], few(), few(), SETTINGS, seed=1
        )
    with pytest.raises(SettingsError, match="images to choose with"):
        mixture_weights(variants(small_clip), few(), Noise([]), SETTINGS, seed=1)
    methods = variants(small_clip)
    with torch.no_grad():
        methods[1].trainable[0].fill_(torch.nan)
    with pytest.raises(TrainingDiverged, match="step 1"):
        mixture_weights(methods, few(), few(), SETTINGS, seed=1)
