"""The loop: what a step learns and reports, its cache without effect on the numbers, divergence, seeds."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.device import device_precision, half
from dear.backbone.names import Precision
from dear.errors import SettingsError, TrainingDiverged
from dear.methods.dear.method import Dear
from dear.progress import TrainingStep
from dear.training import batches
from dear.training.cache import Cache
from dear.training.checkpoint import read_state
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import TrainSettings
from tests.helpers.data import Noise, few
from tests.helpers.errors import refuses
from tests.helpers.methods import small_dear, without_seconds

SETTINGS = TrainSettings(epochs=5, batch=3, lr=1e-2)


class TestTraining:
    def test_it_learns_and_reports_each_step(self, small_clip: Clip) -> None:
        calls: list[TrainingStep] = []
        history = train(small_dear(small_clip), few(), SETTINGS, seed=1, progress=calls.append)
        steps = calls[-1].of
        assert [step.done for step in calls] == [*range(steps + 1)]
        assert {(step.of, step.epochs) for step in calls} == {(steps, 5)}
        assert [step.epoch for step in calls] == [0] + [1 + done * 5 // steps for done in range(steps)]
        assert not calls[0].losses
        assert all("loss" in step.losses for step in calls[1:])
        ends = [step for step in calls if step.ends_epoch]
        assert [epoch["epoch"] for epoch in history] == [step.epoch for step in ends] == [1, 2, 3, 4, 5]
        assert history[-1]["loss"] < history[0]["loss"]
        for epoch, step in zip(history, ends, strict=True):
            assert step.losses == {name: epoch[name] for name in ("loss", "ce", "reg", "fusion")}
            parts = epoch["ce"] + epoch["reg"] + 0.7 * epoch["fusion"]
            assert epoch["loss"] == pytest.approx(parts, rel=1e-5)

    def test_a_smaller_last_batch_weighs_less(
        self, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        method = small_dear(small_clip)
        monkeypatch.setattr(
            Dear,
            "loss",
            lambda self, _trunk, labels, _frozen: {"loss": self.fusion.sum() * 0 + float(len(labels))},
        )
        history = train(method, few(), TrainSettings(epochs=1, batch=5), seed=1)
        assert history[0]["loss"] == pytest.approx((5 * 5 + 2 * 2) / 7)

    def test_a_last_batch_that_is_not_full_may_be_dropped(
        self, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes: list[int] = []

        def counted(self: Dear, _trunk: Tensor, labels: Tensor, _frozen: Tensor) -> dict[str, Tensor]:
            sizes.append(len(labels))
            return {"loss": self.fusion.sum() * 0 + float(len(labels))}

        monkeypatch.setattr(Dear, "loss", counted)
        dropping = TrainSettings(epochs=1, batch=5, drop_last=True, warmup_epochs=0)
        assert train(small_dear(small_clip), few(), dropping, seed=1)[0]["loss"] == 5
        assert sizes == [5, 5]  # the step, and what it left
        train(small_dear(small_clip), few(), replace(dropping, batch=9), seed=1)
        assert sizes[2:] == [7, 7]  # there is no full one
        assert [dropping.epoch_steps(n) for n in (1, 4, 5, 9, 10)] == [1, 1, 1, 1, 2]
        assert [replace(dropping, drop_last=False).epoch_steps(n) for n in (1, 5, 9, 10)] == [1, 1, 2, 2]

    def test_the_crop_bounds_the_views(self, small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Any] = []
        view = batches.train_view

        def watched(*args: Any, **keywords: Any) -> Tensor:
            seen.append(keywords["scale"])
            return view(*args, **keywords)

        monkeypatch.setattr(batches, "train_view", watched)
        cache = Cache(10**9)
        one = train(small_dear(small_clip), few(), replace(SETTINGS, epochs=2), seed=1, cache=cache)
        two = train(
            small_dear(small_clip), few(), replace(SETTINGS, epochs=2, crop=0.08), seed=1, cache=cache
        )
        assert {*seen} == {(0.5, 1.0), (0.08, 1.0)}  # and no view of the one is taken for the other's
        assert without_seconds(one) != without_seconds(two)

    def test_the_seed_decides(self, small_clip: Clip) -> None:
        runs = [
            without_seconds(train(small_dear(small_clip), few(), SETTINGS, seed=seed)) for seed in (1, 1, 2)
        ]
        assert runs[0] == runs[1] != runs[2]

    def test_every_image_once_an_epoch(self, small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
        images, seen = few(), []
        load = Noise.load

        def watched(self: Noise, indices: Tensor) -> Tensor:
            seen.append(indices.tolist())
            return load(self, indices)

        monkeypatch.setattr(Noise, "load", watched)
        train(small_dear(small_clip), images, TrainSettings(epochs=2, batch=3), seed=1)
        assert [len(chosen) for chosen in seen] == [3, 3, 1] * 2
        first, second = ([i for chosen in half for i in chosen] for half in (seen[:3], seen[3:]))
        assert sorted(first) == sorted(second) == list(range(7))
        assert first != second


class TestPrecision:
    def test_half_precision_of_a_gpu_is_refused_on_a_cpu(self, small_clip: Clip) -> None:
        mixed = replace(SETTINGS, precision="16-mixed")
        refuses(SettingsError, "16-mixed", train, small_dear(small_clip), few(), mixed, seed=1)
        names: list[Precision] = ["auto", "16-mixed"]
        on_gpu = [device_precision(name, torch.device("cuda")) for name in names]
        assert on_gpu == ["bf16-mixed", "16-mixed"]

    def test_weights_in_float16_go_with_their_precision(self, small_clip: Clip) -> None:
        settings = TrainSettings(epochs=1, batch=4, optimizer="sgd", precision="16-true")
        method, rough = small_dear(small_clip), half(small_clip)
        refuses(SettingsError, ("16-true", "torch.float32"), train, method, few(), settings, seed=1)
        auto = replace(settings, precision="auto")
        refuses(SettingsError, ("auto", "torch.float16"), train, small_dear(rough), few(), auto, seed=1)
        assert train(small_dear(rough), few(), settings, seed=1)


class TestDivergence:
    def nan_at(self, at: int, monkeypatch: pytest.MonkeyPatch, *, gradient_only: bool = False) -> None:
        """Make the loss, or only its gradient, of step ``at`` (from 1) not a number."""
        loss, calls = Dear.loss, []

        def spoiled(self: Dear, *args: Any) -> dict[str, Tensor]:
            calls.append(1)
            parts = loss(self, *args)
            if len(calls) == at:
                bad = (self.fusion - self.fusion.detach()).sum().sqrt() if gradient_only else math.nan
                parts["loss"] = parts["loss"] + (bad * 0.0 if gradient_only else bad)
            return parts

        monkeypatch.setattr(Dear, "loss", spoiled)

    @pytest.mark.parametrize(
        ("at", "gradient_only", "step", "epochs"),
        [
            (2, False, 2, 0),  # in the first epoch there is no checkpoint
            (8, False, 8, 2),
            (6, True, 6, 1),  # a bad gradient at the end of the second epoch, which no loss tells
            (16, False, 15, 4),  # the last step goes too far, though no further one computes the loss
        ],
    )
    def test_it_stops_and_keeps_the_last_good_checkpoint(
        self, at: int, gradient_only: bool, step: int, epochs: int, small_clip: Clip, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        path = tmp_path / "c"
        self.nan_at(at, monkeypatch, gradient_only=gradient_only)
        with pytest.raises(TrainingDiverged, match=rf"step {step}\b.*--train\.lr") as caught:
            train(small_dear(small_clip), few(), SETTINGS, seed=1, checkpoint=path)
        assert (caught.value.step, caught.value.checkpoint) == (step, path if epochs else None)
        assert path.exists() == bool(epochs)
        if epochs:
            state = read_state(path)
            assert len(json.loads(state["history"])) == epochs
            assert all(torch.isfinite(value).all() for value in state["method"].values())


class TestCache:
    def test_it_changes_nothing_and_saves_the_trunk(self, small_clip: Clip) -> None:
        images, cache = few(), Cache(10**7)
        plain = train(small_dear(small_clip), few(), SETTINGS, seed=1)
        for variant in ({}, {"beta": 0.5}, {}):
            got = train(small_dear(small_clip, **variant), images, SETTINGS, seed=1, cache=cache)
            if not variant:
                assert without_seconds(got) == without_seconds(plain)
        assert images.loads == 15  # 3 steps x 5 epochs, for three runs

    @pytest.mark.parametrize(("seed", "options"), [(2, {}), (1, {"first": 10})])
    def test_another_seed_or_span_has_its_own_views(
        self, seed: int, options: dict[str, Any], small_clip: Clip
    ) -> None:
        images, cache = few(), Cache(10**7)
        train(small_dear(small_clip), images, SETTINGS, seed=1, cache=cache)
        got = train(small_dear(small_clip, **options), images, SETTINGS, seed=seed, cache=cache)
        assert without_seconds(got) == without_seconds(
            train(small_dear(small_clip, **options), few(), SETTINGS, seed=seed)
        )
        assert images.loads == 30


class TestSeeding:
    def test_purposes_and_seeds_are_independent(self) -> None:
        def draw(seed: int, *purpose: str | int) -> tuple[int, ...]:
            return tuple(torch.randint(0, 2**31, (5,), generator=generator(seed, *purpose)).tolist())

        purposes: list[tuple[str | int, ...]] = [
            ("order", 0), ("order", 1), ("views", 0), ("views", 0, 1), ("views", 1, 0), ("order",),
        ]  # fmt: skip
        drawn = {draw(seed, *purpose) for seed in (1, 2, 3) for purpose in purposes}
        assert len(drawn) == 3 * len(purposes)
        assert draw(1, "order", 0) == draw(1, "order", 0)
        assert draw(1, "views", 11) != draw(1, "views", 1, 1)
        assert draw(1, "1") != draw(1, 1)

    def test_the_global_generator_is_left_alone(self, small_clip: Clip) -> None:
        before = torch.get_rng_state()
        train(small_dear(small_clip), few(), TrainSettings(epochs=1), seed=1)
        assert torch.equal(torch.get_rng_state(), before)
