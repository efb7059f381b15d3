"""CLIP-LoRA: how it starts, when it drops values, and a run; what all methods share is in tests/contract, its
numbers in tests/parity, the updates themselves in tests/unit/backbone/test_low_rank.py.
"""

from functools import partial
from pathlib import Path

import pytest
import torch

from dear.adapters.attention import attention_maps
from dear.adapters.export import ExportedModel
from dear.adapters.vocabulary import Vocabulary
from dear.backbone.clip import Clip, tensors_hash
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import run_one
from dear.evaluation.session import Session
from dear.methods.registry import frozen_clip
from dear.training.loop import train
from dear.training.settings import TrainSettings
from tests.conftest import MakeClip
from tests.helpers.data import few, noise_dataset
from tests.helpers.methods import build, pixels, seeded
from tests.helpers.runs import resolve_run

FAST = TrainSettings(lr=0.02, epochs=3, batch=4, warmup_epochs=0)


@torch.no_grad()
def test_it_starts_as_clip_bit_for_bit(small_clip: Clip) -> None:
    method = build("clip-lora", small_clip)
    trunk = method.image_trunk(pixels())
    assert torch.equal(method.image_features(trunk)[0], method.frozen_image(trunk))
    assert torch.equal(method.text_features(), method.frozen_text)


def test_initial_values(make_small_clip: MakeClip) -> None:
    """A is uniform within 1 / sqrt(width), as kaiming_uniform with a of sqrt(5) draws it; B is zero."""
    clip = make_small_clip()
    method = build("clip-lora", clip, rank=11)
    for tower, down, up in (
        (clip.image, method.image_down, method.image_up),
        (clip.text, method.text_down, method.text_up),
    ):
        assert down.shape == (tower.depth, 3, 11, tower.width)
        assert up.shape == (tower.depth, 3, tower.width, 11)
        assert not up.any()
        assert up.is_contiguous()  # torch's exported program warns of others
        bound = tower.width**-0.5
        assert 0.99 * bound < down.abs().max() <= bound
        assert float(down.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert method.factor == pytest.approx(1 / 11**0.5)
    assert build("clip-lora", clip, rank=4, alpha=3.0).factor == 1.5


def test_it_drops_values_within_a_step_only(small_clip: Clip) -> None:
    method = build("clip-lora", small_clip)
    with torch.no_grad():
        method.image_up += 0.3
        method.text_up += 0.3
    trunk, labels = method.image_trunk(pixels()), torch.tensor([0, 1, 2, 1])

    def loss() -> float:
        return float(method.loss(trunk, labels)["loss"].detach())

    whole = loss()
    method.before_step(seeded(4))
    image, text = method.image_dropout, method.text_dropout
    assert image is not None
    assert text is not None
    assert [*map(len, image.seeds)] == [3] * 5
    seeds = [seed for layer in (*image.seeds, *text.seeds) for seed in layer]
    assert len({*seeds}) == len(seeds) == 3 * (5 + 4)
    first = loss()
    assert loss() == first != whole
    method.before_step(seeded(5))
    assert loss() != first
    method.after_step(0.5)
    assert loss() == whole
    without = build("clip-lora", small_clip, dropout=0.0)
    without.before_step(seeded(4))
    assert without.image_dropout is None


def test_a_trained_method_is_seen_in_its_export_and_in_attention(small_clip: Clip) -> None:
    before, frozen = tensors_hash(small_clip.state_dict()), frozen_clip(small_clip)
    method = build("clip-lora", small_clip)
    train(method, few(), FAST, seed=1)
    assert tensors_hash(small_clip.state_dict()) == before
    want = method.image_features(method.image_trunk(pixels())).transpose(0, 1)
    frozen.set_classes(method.classnames, ["{}"])
    exported, of_frozen = (
        ExportedModel(Vocabulary.of(one, "32-true"), 1.0, None)(pixels())[-2] for one in (method, frozen)
    )
    torch.testing.assert_close(exported, want, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(want, of_frozen, atol=1e-3)
    maps = [attention_maps(one, pixels()[0], 1, 0)["class"] for one in (method, frozen)]
    assert not torch.allclose(*maps, atol=1e-5)


def test_a_run_as_published_but_for_its_length(small_clip: Clip, tmp_path: Path) -> None:
    """With 2 shots of 4 classes and 5 steps a shot: 10 steps of 8 images, each an epoch; then 3 epochs."""
    session = Session()
    resolve = partial(
        resolve_run, session, small_clip, FewShot(), [noise_dataset()], MethodSetup("clip-lora")
    )
    run = resolve(seed=1, shots=2, train={"steps_per_shot": 5})
    assert (run.training.batch, run.training.lr, run.training.crop) == (32, 2e-4, 0.08)
    record = run_one(session, run, out=tmp_path)
    rates = [epoch["lr"] for epoch in record["train"]["epochs"]]
    assert len(rates) == 10
    assert rates[0] == 2e-4
    assert rates[5] == pytest.approx(1e-6 + (2e-4 - 1e-6) / 2)
    assert rates[-1] > 1e-6
    short = resolve(seed=1, shots=2, train={"epochs": 3})
    assert len(run_one(session, short)["train"]["epochs"]) == 3
