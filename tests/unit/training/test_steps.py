"""Trainings of so many steps a shot, and rates that fall with each step."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip, tensors_hash
from dear.errors import SettingsError
from dear.methods.dear.method import Dear
from dear.progress import TrainingStep
from dear.training.loop import train
from dear.training.settings import TrainOptions, TrainSettings
from tests.unit.training.world import few, small_dear

# 7 images of 3 classes in batches of 3: 3 steps an epoch, and 3 x 7 / 3 = 7 steps in all.
STEPS = TrainSettings(steps_per_shot=3, batch=3, lr=0.5, lr_end=0.1, warmup_epochs=0, schedule="step")


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rates of all steps of AdamW that follow."""
    seen: list[float] = []
    step = torch.optim.AdamW.step

    def watched(self: Any, *args: Any, **keywords: Any) -> Any:
        seen.append(self.param_groups[0]["lr"])
        return step(self, *args, **keywords)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    return seen


def numbers(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in history]


def test_as_torch_anneals(small_clip: Clip, rates: list[float]) -> None:
    """7 steps (3 of 7 images of 3 classes): three epochs, of which the last has one step."""
    history = train(small_dear(small_clip), few(), STEPS, seed=1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7, eta_min=0.1)
    want = []
    for _ in range(7):
        want.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx(want, rel=1e-12)
    assert [epoch["lr"] for epoch in history] == pytest.approx([want[0], want[3], want[6]], rel=1e-12)


def test_rates_of_epochs_and_a_warm_up(small_clip: Clip, rates: list[float]) -> None:
    """The warm-up keeps its rate; the cosine after it would reach lr_end in as many steps as the run has."""
    settings = TrainSettings(epochs=2, batch=3, lr=0.5, lr_end=0.1, warmup_lr=0.3, schedule="step")
    train(small_dear(small_clip), few(), settings, seed=1)
    cosine = [0.1 + 0.4 * (1 + math.cos(math.pi * step / 6)) / 2 for step in range(3)]
    assert rates == pytest.approx([0.3, 0.3, 0.3, *cosine])
    rates.clear()
    whole = TrainSettings(epochs=2, batch=3, lr=0.5, lr_end=0.1, warmup_epochs=0)
    train(small_dear(small_clip), few(), whole, seed=1)
    assert rates == pytest.approx([0.5] * 3 + [0.3] * 3)


def test_the_last_epoch_is_cut_short(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss is the mean over the images of its step; hooks are told of the shorter training."""
    shares, ends = list[float](), list[tuple[int, int]]()
    monkeypatch.setattr(
        Dear, "loss", lambda self, _trunk, labels: {"loss": self.fusion.sum() * 0 + float(len(labels))}
    )
    monkeypatch.setattr(Dear, "after_step", lambda _self, share: shares.append(share))
    monkeypatch.setattr(Dear, "after_epoch", lambda _self, *epoch: ends.append(epoch))
    images = few()
    history = train(small_dear(small_clip), images, STEPS, seed=1)
    assert [epoch["loss"] for epoch in history] == pytest.approx([(9 + 9 + 1) / 7, (9 + 9 + 1) / 7, 3])
    assert shares == pytest.approx([step / 7 for step in range(1, 8)])
    assert ends == [(1, 3), (2, 3), (3, 3)]
    assert images.loads == 7  # nothing is loaded for steps that are not made


@pytest.mark.parametrize("done", [1, 2])
def test_it_goes_on_after_an_interruption(done: int, small_clip: Clip, tmp_path: Path) -> None:
    path = tmp_path / "c"
    whole = small_dear(small_clip)
    want = train(whole, few(), STEPS, seed=1)

    def stop(step: TrainingStep) -> None:
        if step.ends_epoch and step.epoch == done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(small_dear(small_clip), few(), STEPS, seed=1, checkpoint=path, progress=stop)
    resumed = small_dear(small_clip, seed=9)
    assert numbers(train(resumed, few(), STEPS, seed=1, checkpoint=path)) == numbers(want)
    assert tensors_hash(resumed.state_dict()) == tensors_hash(whole.state_dict())
    images, again = few(), small_dear(small_clip, seed=9)
    assert numbers(train(again, images, STEPS, seed=1, checkpoint=path)) == numbers(want)
    assert images.loads == 0


def test_epochs_that_are_given_replace_published_steps() -> None:
    published = {"steps_per_shot": 500, "warmup_epochs": 0}
    assert TrainOptions().over(published).steps_per_shot == 500
    assert TrainOptions(epochs=4).over(published) == TrainSettings(epochs=4, warmup_epochs=0)
    assert TrainOptions(epochs=4, steps_per_shot=7).over(published).steps_per_shot == 7


def test_steps_by_hand() -> None:
    """500 for each of 16 shots: 8000 for 47 classes with 752 images."""
    settings = TrainSettings(steps_per_shot=500, batch=32, warmup_epochs=0)
    assert settings.total_steps(images=47 * 16, classes=47, epoch_steps=24) == 8000
    assert settings.total_steps(images=1, classes=1000, epoch_steps=1) == 1


def test_a_training_too_short_to_learn_is_told(small_clip: Clip) -> None:
    def is_told(total: int, epoch_steps: int, warmup_epochs: int = 1) -> bool:
        return TrainSettings(warmup_epochs=warmup_epochs).note_on_length(total, epoch_steps) != ""

    # Three steps after the warm-up are enough, unless it is half of all.
    assert [is_told(total, 1) for total in (2, 3, 4)] == [True, True, False]
    assert [is_told(total, 10) for total in (20, 21)] == [True, False]
    assert [is_told(total, 1, warmup_epochs=0) for total in (2, 3)] == [True, False]
    method = small_dear(small_clip)
    with pytest.warns(UserWarning, match=r"a training of 2 steps, 1 of them .* --train.warmup-epochs 0\.$"):
        train(method, few(), TrainSettings(epochs=2, batch=7), seed=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps_per_shot": -1}, "steps_per_shot is -1"),
        ({"lr_end": -0.1}, r"lr_end is -0\.1: it must be from 0 to lr, which is 0\.001"),
        ({"lr_end": 0.1}, r"lr_end is 0\.1: it must be from 0 to lr"),
        ({"lr_end": math.nan}, "lr_end is nan"),
    ],
)
def test_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TrainSettings(**options)


def test_a_warm_up_of_all_steps(small_clip: Clip) -> None:
    settings = TrainSettings(steps_per_shot=1, batch=3, warmup_epochs=1)  # 2 steps, and 3 of the warm-up
    with pytest.raises(SettingsError, match="warmup_epochs is 1, of 3 steps each, and there are 2: all"):
        train(small_dear(small_clip), few(), settings, seed=1)
