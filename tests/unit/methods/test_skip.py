"""Skip Tuning: what it copies and trains, which classes stay in the loss, and its batches; what all methods
share is in tests/contract, its numbers in tests/parity.
"""

import math
from typing import Any

import pytest
import torch

from dear.adapters.attention import attention_maps
from dear.backbone.clip import Clip, tensors_hash
from dear.errors import SettingsError
from dear.methods.registry import frozen_clip
from dear.methods.skip import SkipSettings
from dear.methods.skip.method import SkipTuning, stay_chances
from dear.training.loop import train
from dear.training.settings import TrainSettings
from tests.conftest import MakeClip
from tests.helpers.data import Noise
from tests.helpers.methods import build, pixels, seeded

CLASSES = ["house", "tree", "sea", "circle", "square", "red house", "green tree", "blue sea", "a photo"]
OWN = ["a photo of a {}"]
FAST = TrainSettings(optimizer="sgd", lr=0.01, epochs=2, batch=4, warmup_epochs=0)


def make(clip: Clip, classes: list[str] = CLASSES, **options: Any) -> SkipTuning:
    method = build("skip", clip, classes, **options)
    assert isinstance(method, SkipTuning)
    return method


@torch.no_grad()
def test_it_starts_as_clip_itself(make_small_clip: MakeClip) -> None:
    clip = make_small_clip(dtype=torch.float64)
    method, frozen = make(clip), frozen_clip(clip)
    frozen.set_classes(CLASSES, OWN)
    views = pixels(dtype=torch.float64)
    torch.testing.assert_close(
        method.image_features(method.image_trunk(views)), frozen.image_features(frozen.image_trunk(views))
    )
    torch.testing.assert_close(method.text_features(), frozen.text_features())
    torch.testing.assert_close(method.text_features(torch.tensor([5, 1])), frozen.text_features()[[5, 1]])


def test_its_layers_are_copies(small_clip: Clip) -> None:
    """Training it leaves the backbone alone, and what else stands on the backbone."""
    before, frozen = tensors_hash(small_clip.state_dict()), frozen_clip(small_clip)
    method = make(small_clip)
    own = {parameter.data_ptr() for parameter in method.parameters()}
    assert not own & {parameter.data_ptr() for parameter in small_clip.parameters()}
    trunk = method.image_trunk(pixels())
    features, start = method.frozen_image(trunk), method.image_features(trunk)[0].detach()
    train(method, Noise([0, 1, 2, 3] * 4), FAST, seed=1)
    assert tensors_hash(small_clip.state_dict()) == before
    assert torch.equal(method.frozen_image(trunk), features)
    assert not torch.allclose(method.image_features(trunk)[0], start, atol=1e-3)
    where = method.image_from
    maps = [attention_maps(one, pixels()[0], where, 0)["class"] for one in (method, frozen)]
    assert not torch.allclose(*maps, atol=1e-4)
    early = [attention_maps(one, pixels()[0], where - 1, 0)["class"] for one in (method, frozen)]
    torch.testing.assert_close(*early)


def test_where_it_begins(make_small_clip: MakeClip) -> None:
    method = make(make_small_clip(text_depth=12))
    assert (method.image_from, method.text_from) == (4, 7)  # of 5 and of 12
    method = make(make_small_clip(), first=4, share=False)
    assert (len(method.image.blocks), len(method.text.blocks)) == (2, 1)
    assert method.image_block(3) is method.clip.image.block(3)
    assert method.image_block(5) is method.image.block(2)
    with pytest.raises(SettingsError, match="first is 7: a tower has only 4 layers"):
        make(make_small_clip(), share=False)


def test_chances_by_hand() -> None:
    """Of 10 classes 5 stay; the others lie at 0, 1.25, 2.5, 3.75 and 5 on the exponential."""
    at = [math.exp(-x / 0.3) for x in (0, 1.25, 2.5, 3.75, 5)]
    want = [1.0] * 5 + [(x - at[4]) / (at[0] - at[4]) for x in at]
    assert stay_chances(10, SkipSettings()).tolist() == pytest.approx(want, rel=1e-5)
    assert stay_chances(10, SkipSettings()).tolist()[5::4] == [1, 0]
    many = stay_chances(397, SkipSettings())
    assert int((many == 1).sum()) == 51
    assert float(many[-1]) == 0
    assert stay_chances(5, SkipSettings(most=1, decay=1e-4)).tolist() == [1, 1, 0, 0, 0]
    assert stay_chances(5, SkipSettings(most=1, decay=1e9)).tolist() == pytest.approx([1, 1, 2 / 3, 1 / 3, 0])
    for classes, options in ((1, {}), (2, {}), (3, {}), (9, {"top": 1.0})):
        assert stay_chances(classes, SkipSettings(**options)).tolist() == [1] * classes


@torch.no_grad()
def test_classes_by_hand(small_clip: Clip) -> None:
    """The batch's own class, then by the greatest cosine to any of its images."""
    method = make(small_clip)
    method.kept_ranks = torch.tensor([True, True, False, True] + [False] * 5)
    image, labels = method.image_features(method.image_trunk(pixels()))[0], torch.tensor([7, 7, 7, 7])
    ranked = [7]
    best = {c: max(float(one @ method.frozen_text[c]) for one in image) for c in range(9) if c != 7}
    ranked += sorted(best, key=lambda c: -best[c])
    chosen = method.remaining_classes(image, labels)
    assert chosen.tolist() == sorted([ranked[0], ranked[1], ranked[3]])
    scores = method.clip.scale * image @ method.text_features()[chosen].T
    want = -scores.log_softmax(dim=1)[:, chosen.tolist().index(7)].mean()
    torch.testing.assert_close(method.loss(method.image_trunk(pixels()), labels)["loss"], want)


@torch.no_grad()
def test_classes_of_the_batch_always_stay(small_clip: Clip) -> None:
    method = make(small_clip, top=0.1, decay=0.01)
    image = method.image_features(method.image_trunk(pixels()))[0]
    assert {*method.remaining_classes(image, torch.tensor([8, 0, 5, 2])).tolist()} == {0, 2, 5, 8}
    two = make(small_clip, CLASSES[:2])
    assert two.remaining_classes(image, torch.tensor([1, 1, 1, 1])).tolist() == [0, 1]
    assert two.loss(two.image_trunk(pixels()), torch.tensor([1, 1, 1, 1]))["loss"] > 0


def test_batches_of_one_class(small_clip: Clip) -> None:
    method = make(small_clip)
    labels = torch.tensor([2, 0, 1] * 9 + [2, 2])  # 9 of two classes, 11 of one
    epochs = [method.batches(labels, 4, seeded(seed)) for seed in range(12)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [4] * 6
        assert all(len(labels[batch].unique()) == 1 for batch in batches)
        assert len(torch.cat(batches).unique()) == 24
    orders = {tuple(int(labels[batch[0]]) for batch in batches) for batches in epochs}
    assert len(orders) > 6
    assert {int(item) for batches in epochs for item in torch.cat(batches)} == {*range(29)}
