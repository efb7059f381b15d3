"""The schedule of the rate by epochs and steps, the length of a training, and settings out of range."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.methods.base import Method
from dear.methods.dear.method import Dear
from dear.methods.optional import StepHooks
from dear.training import loop
from dear.training.loop import train
from dear.training.settings import TrainSettings, resolve_training
from tests.helpers.data import few
from tests.helpers.errors import refuses
from tests.helpers.methods import make, small_dear
from tools.pretraining import PretrainSettings

# 7 images of 3 classes in batches of 3: 3 steps an epoch, and 3 x 7 / 3 = 7 steps in all.
STEPS = TrainSettings(steps_per_shot=3, batch=3, lr=0.5, lr_end=0.1, warmup_epochs=0, schedule="step")


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rates of all steps of AdamW that follow; of several groups, one after the other."""
    seen: list[float] = []
    step = torch.optim.AdamW.step

    def watched(self: Any, *args: Any, **keywords: Any) -> Any:
        seen.extend(group["lr"] for group in self.param_groups)
        return step(self, *args, **keywords)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    return seen


def test_the_schedule_by_hand() -> None:
    settings = TrainSettings()
    assert settings.lr_at(0) == 1e-5
    assert settings.lr_at(1) == 1e-3
    assert settings.lr_at(6) == pytest.approx(0.5e-3)  # half of ten epochs after the warm-up
    # 8/10 of the way: 0.5 (1 + cos 144 degrees)
    assert settings.lr_at(9) == pytest.approx(0.5e-3 * (1 - 0.8090169943749475))
    assert TrainSettings(warmup_epochs=0).lr_at(0) == 1e-3
    pretraining = PretrainSettings(images=70, batch=7, warmup=4, lr=0.8)
    assert [pretraining.lr_at(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert pretraining.lr_at(7) == pytest.approx(0.4)
    assert PretrainSettings(images=71, batch=7).steps == 11


def test_each_epoch_is_trained_at_its_rate(small_clip: Clip, rates: list[float]) -> None:
    settings = TrainSettings(epochs=5, batch=3, lr=1e-2)
    history = train(small_dear(small_clip), few(), settings, seed=1)
    want = [1e-5, *(0.5e-2 * (1 + math.cos(math.pi * k / 5)) for k in range(4))]
    assert rates == pytest.approx([rate for rate in want for _ in range(3)])  # 7 images in batches of 3
    assert [epoch["lr"] for epoch in history] == pytest.approx(want)


@pytest.mark.parametrize("name", ["coop", "prograd"])
def test_a_term_of_all_methods_is_trained_and_recorded(
    name: str, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A penalty of 3 |p|^2 moves a step of SGD by 6 p times the rate more, also where a method makes its own
    gradients.
    """
    settings = TrainSettings(epochs=1, batch=7, lr=0.01, warmup_epochs=0, optimizer="sgd", weight_decay=0)

    def trained() -> tuple[Tensor, Tensor, dict[str, Any]]:
        method = make(name, small_clip)
        (parameter,) = method.trainable
        start = parameter.detach().clone()
        (record,) = train(method, few(), settings, seed=1)
        return start, parameter.detach(), record

    def add_penalty(method: Method, _settings: TrainSettings) -> dict[str, Tensor]:
        return {"penalty": 3 * sum(parameter.square().sum() for parameter in method.trainable)}

    start, plain, without = trained()
    monkeypatch.setattr(loop, "loss_terms", add_penalty)
    _, penalized, record = trained()
    assert record["penalty"] == pytest.approx(3 * float(start.square().sum()))
    assert record["loss"] == pytest.approx(without["loss"] + record["penalty"])
    torch.testing.assert_close(penalized, plain - 0.01 * 6 * start)


def test_fusion_weights_have_a_rate_of_their_own(small_clip: Clip, rates: list[float]) -> None:
    settings = TrainSettings(epochs=2, batch=3, lr=1e-2)
    usual, own = small_dear(small_clip), small_dear(small_clip, fusion_rate=50.0)
    start, moved = usual.fusion.detach().clone(), list[float]()
    for method in (usual, own):
        train(method, few(), settings, seed=1)
        moved.append(float((method.fusion - start).abs().max().detach()))
    assert rates[6:] == pytest.approx([rate for one in rates[:6] for rate in (one, 50 * one)])
    assert moved[1] > 10 * moved[0] > 0


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
        Dear, "loss", lambda self, _, labels, __: {"loss": self.fusion.sum() * 0 + float(len(labels))}
    )
    monkeypatch.setattr(StepHooks, "after_step", lambda _self, share: shares.append(share))
    monkeypatch.setattr(StepHooks, "after_epoch", lambda _self, *epoch: ends.append(epoch))
    images = few()
    history = train(small_dear(small_clip), images, STEPS, seed=1)
    assert [epoch["loss"] for epoch in history] == pytest.approx([(9 + 9 + 1) / 7, (9 + 9 + 1) / 7, 3])
    assert shares == pytest.approx([step / 7 for step in range(1, 8)])
    assert ends == [(1, 3), (2, 3), (3, 3)]
    assert images.loads == 7  # nothing is loaded for steps that are not made


def test_epochs_that_are_given_replace_published_steps() -> None:
    published = {"steps_per_shot": 500, "warmup_epochs": 0}
    assert resolve_training(published, {}).steps_per_shot == 500
    assert resolve_training(published, {"epochs": 4}) == TrainSettings(epochs=4, warmup_epochs=0)
    assert resolve_training(published, {"epochs": 4, "steps_per_shot": 7}).steps_per_shot == 7


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
    "options",
    [
        {"epochs": 0}, {"batch": 0}, {"lr": 0.0}, {"lr": math.nan}, {"warmup_lr": 0.0}, {"weight_decay": -1},
        {"steps_per_shot": -1}, {"lr_end": -0.1}, {"lr_end": 0.1}, {"lr_end": math.nan}, {"crop": 1.5},
        {"momentum": 1.0}, {"epochs": 10**390}, {"steps_per_shot": 10**390}, {"lr": 1e308},
        {"weight_decay": 1e308},
    ],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range(options: dict[str, Any]) -> None:
    [name, *_] = options
    with pytest.raises(SettingsError, match=rf"{name} is"):
        TrainSettings(**options)
    if name in ("batch", "lr", "weight_decay"):
        with pytest.raises(SettingsError, match=rf"{name} is"):
            PretrainSettings(**options)


def test_a_warm_up_of_all_steps(small_clip: Clip) -> None:
    settings = TrainSettings(steps_per_shot=1, batch=3, warmup_epochs=1)  # 2 steps, and 3 of the warm-up
    refuses(SettingsError, "warmup_epochs", train, small_dear(small_clip), few(), settings, seed=1)
