"""The loop: its schedule by hand, its checkpoints bit for bit, its cache without effect on the numbers."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dear.backbone.clip import Clip, tensors_hash
from dear.errors import OutputError, SettingsError, TrainingDiverged
from dear.methods.dear.method import Dear
from dear.progress import TrainingStep
from dear.training import batches
from dear.training.checkpoint import read_state
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import TrainSettings
from dear.training.trunks import TrunkCache
from tests.unit.training.world import CLASSES, Noise, few, small_dear
from tools.pretrain_settings import PretrainSettings

SETTINGS = TrainSettings(epochs=5, batch=3, lr=1e-2)


def numbers(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in history]


class TestSchedule:
    def test_by_hand(self) -> None:
        settings = TrainSettings()
        assert settings.lr_at(0) == 1e-5
        assert settings.lr_at(1) == 1e-3
        assert settings.lr_at(6) == pytest.approx(0.5e-3)  # half of ten epochs after the warm-up
        # 8/10 of the way: 0.5 (1 + cos 144 degrees)
        assert settings.lr_at(9) == pytest.approx(0.5e-3 * (1 - 0.8090169943749475))
        assert TrainSettings(warmup_epochs=0).lr_at(0) == 1e-3

    def test_pretraining_by_hand(self) -> None:
        settings = PretrainSettings(images=70, batch=7, warmup=4, lr=0.8)
        assert [settings.lr_at(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
        assert settings.lr_at(7) == pytest.approx(0.4)
        assert PretrainSettings(images=71, batch=7).steps == 11

    def test_each_epoch_is_trained_at_its_rate(
        self, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[float] = []
        step = torch.optim.AdamW.step

        def watched(self: Any, *args: Any, **keywords: Any) -> Any:
            seen.append(self.param_groups[0]["lr"])
            return step(self, *args, **keywords)

        monkeypatch.setattr(torch.optim.AdamW, "step", watched)
        history = train(small_dear(small_clip), few(), SETTINGS, seed=1)
        rates = [1e-5, *(0.5e-2 * (1 + math.cos(math.pi * k / 5)) for k in range(4))]
        assert seen == pytest.approx([rate for rate in rates for _ in range(3)])  # 7 images in batches of 3
        assert [epoch["lr"] for epoch in history] == pytest.approx(rates)

    def test_fusion_weights_have_a_rate_of_their_own(
        self, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[list[float]] = []
        step = torch.optim.AdamW.step

        def watched(self: Any, *args: Any, **keywords: Any) -> Any:
            seen.append([group["lr"] for group in self.param_groups])
            return step(self, *args, **keywords)

        monkeypatch.setattr(torch.optim.AdamW, "step", watched)
        usual, own = small_dear(small_clip), small_dear(small_clip, fusion_rate=50.0)
        start = usual.fusion.detach().clone()
        for method in (usual, own):
            train(method, few(), replace(SETTINGS, epochs=2), seed=1)
        assert seen[0] == [1e-5]
        assert seen[len(seen) // 2] == pytest.approx([1e-5, 50e-5])
        assert seen[-1][1] == pytest.approx(50 * seen[-1][0])
        moved = [float((method.fusion - start).abs().max().detach()) for method in (usual, own)]
        assert moved[1] > 10 * moved[0] > 0

    @pytest.mark.parametrize(
        "options",
        [
            {"epochs": 0},
            {"batch": 0},
            {"lr": 0.0},
            {"lr": -1.0},
            {"lr": math.nan},
            {"warmup_lr": 0.0},
            {"weight_decay": -1},
        ],
    )
    def test_settings_out_of_range(self, options: dict[str, Any]) -> None:
        with pytest.raises(SettingsError, match=f"{next(iter(options))} is"):
            TrainSettings(**options)
        if "warmup_lr" not in options:
            options = {"images": 0} if "epochs" in options else options
            with pytest.raises(SettingsError, match=f"{next(iter(options))} is"):
                PretrainSettings(**options)


class TestTraining:
    def test_it_learns_and_reports_means_over_images(self, small_clip: Clip) -> None:
        calls: list[TrainingStep] = []
        method = small_dear(small_clip)
        history = train(method, few(), SETTINGS, seed=1, progress=calls.append)
        ends = [step for step in calls if step.ends_epoch]
        assert [epoch["epoch"] for epoch in history] == [step.epoch for step in ends] == [1, 2, 3, 4, 5]
        assert history[-1]["loss"] < history[0]["loss"]
        for epoch, step in zip(history, ends, strict=True):
            assert step.losses == {name: epoch[name] for name in ("loss", "ce", "reg", "fusion")}
            assert epoch["loss"] == pytest.approx(
                epoch["ce"] + epoch["reg"] + 0.7 * epoch["fusion"], rel=1e-5
            )

    def test_each_step_is_reported(self, small_clip: Clip) -> None:
        calls: list[TrainingStep] = []
        train(small_dear(small_clip), few(), SETTINGS, seed=1, progress=calls.append)
        steps = calls[-1].of
        assert [step.done for step in calls] == [*range(steps + 1)]
        assert {(step.of, step.epochs) for step in calls} == {(steps, 5)}
        assert [step.epoch for step in calls] == [0] + [1 + done * 5 // steps for done in range(steps)]
        assert not calls[0].losses
        assert all("loss" in step.losses for step in calls[1:])

    def test_a_smaller_last_batch_weighs_less(
        self, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        method = small_dear(small_clip)
        monkeypatch.setattr(
            Dear, "loss", lambda self, _trunk, labels: {"loss": self.fusion.sum() * 0 + float(len(labels))}
        )
        history = train(method, few(), TrainSettings(epochs=1, batch=5), seed=1)
        assert history[0]["loss"] == pytest.approx((5 * 5 + 2 * 2) / 7)

    def test_a_last_batch_that_is_not_full_may_be_dropped(
        self, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes: list[int] = []

        def counted(self: Dear, _trunk: Tensor, labels: Tensor) -> dict[str, Tensor]:
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
        cache = TrunkCache(10**9)
        one = train(small_dear(small_clip), few(), replace(SETTINGS, epochs=2), seed=1, cache=cache)
        two = train(
            small_dear(small_clip), few(), replace(SETTINGS, epochs=2, crop=0.08), seed=1, cache=cache
        )
        assert {*seen} == {(0.5, 1.0), (0.08, 1.0)}  # and no view of the one is taken for the other's
        assert numbers(one) != numbers(two)
        crops = [replace(SETTINGS, crop=crop).fingerprint_fields().get("crop") for crop in (0.5, 0.08)]
        assert crops == [None, 0.08]  # a default is no part of it
        with pytest.raises(SettingsError, match=r"crop is 1\.5: it must be above 0"):
            replace(SETTINGS, crop=1.5)

    def test_the_seed_decides(self, small_clip: Clip) -> None:
        runs = [numbers(train(small_dear(small_clip), few(), SETTINGS, seed=seed)) for seed in (1, 1, 2)]
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


class TestCheckpoint:
    @pytest.mark.parametrize("done", [1, 3])
    def test_going_on_after_an_interruption_equals_an_undisturbed_run(
        self, done: int, small_clip: Clip, tmp_path: Path
    ) -> None:
        whole = small_dear(small_clip)
        want = train(whole, few(), SETTINGS, seed=1)
        path = tmp_path / "run" / "last.ckpt"

        def stop(step: TrainingStep) -> None:
            if step.ends_epoch and step.epoch == done:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(small_dear(small_clip), few(), SETTINGS, seed=1, checkpoint=path, progress=stop)
        assert [p.name for p in path.parent.iterdir()] == ["last.ckpt"]
        images, resumed = (
            few(),
            small_dear(small_clip, seed=9),
        )  # other initial parameters: all must come from the file
        got = train(resumed, images, SETTINGS, seed=1, checkpoint=path)
        assert numbers(got) == numbers(want)
        assert tensors_hash(resumed.state_dict()) == tensors_hash(whole.state_dict())
        assert images.loads == 3 * (5 - done)

    def test_a_finished_run_is_only_read(self, small_clip: Clip, tmp_path: Path) -> None:
        whole = small_dear(small_clip)
        want = train(whole, few(), SETTINGS, seed=1, checkpoint=tmp_path / "c")
        images, again = few(), small_dear(small_clip, seed=9)
        assert train(again, images, SETTINGS, seed=1, checkpoint=tmp_path / "c") == want
        assert images.loads == 0
        assert tensors_hash(again.state_dict()) == tensors_hash(whole.state_dict())

    def test_a_checkpoint_of_another_run_is_refused(self, small_clip: Clip, tmp_path: Path) -> None:
        path, short = tmp_path / "c", TrainSettings(epochs=1, batch=7)
        train(small_dear(small_clip), few(), short, seed=1, checkpoint=path)
        before = path.read_bytes()
        other_classes = small_dear(small_clip)
        other_classes.set_classes(CLASSES[::-1], ["a photo of a {}"])
        runs: list[tuple[str, Dear, Noise, TrainSettings, int]] = [
            ("train", small_dear(small_clip), few(), TrainSettings(epochs=2, batch=7), 1),
            ("seed", small_dear(small_clip), few(), short, 2),
            ("classes", other_classes, few(), short, 1),
            ("images", small_dear(small_clip), Noise(few().labels.tolist(), seed=5), short, 1),
            ("method_settings", small_dear(small_clip, beta=0.5), few(), short, 1),
        ]
        for fact, method, images, settings, seed in runs:
            with pytest.raises(OutputError, match=rf"another run \(different {fact}\)"):
                train(method, images, settings, seed=seed, checkpoint=path)
        assert path.read_bytes() == before

    def test_a_place_that_cannot_be_written(self, small_clip: Clip, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="cannot write the checkpoint"):
            train(small_dear(small_clip), few(), SETTINGS, seed=1, checkpoint=tmp_path / "file" / "c")

    @pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
    def test_a_write_that_is_cut_off_leaves_the_last_one(
        self, error: type[BaseException], small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "c.ckpt"

        def cut(_file: int) -> None:
            raise error

        def spoil(step: TrainingStep) -> None:
            if step.ends_epoch and step.epoch == 2:
                monkeypatch.setattr(os, "fsync", cut)

        with pytest.raises(OutputError if error is OSError else error):
            train(small_dear(small_clip), few(), SETTINGS, seed=1, checkpoint=path, progress=spoil)
        assert [p.name for p in tmp_path.iterdir()] == ["c.ckpt"]
        monkeypatch.undo()
        assert len(train(small_dear(small_clip), few(), SETTINGS, seed=1, checkpoint=path)) == 5


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

    def test_it_stops_with_the_step_and_keeps_the_last_good_checkpoint(
        self, small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "c"
        self.nan_at(8, monkeypatch)  # the second step of the third epoch
        with pytest.raises(
            TrainingDiverged, match=r"step 8.*last good checkpoint.*lower --train\.lr"
        ) as caught:
            train(small_dear(small_clip), few(), SETTINGS, seed=1, checkpoint=path)
        assert (caught.value.step, caught.value.checkpoint) == (8, path)
        monkeypatch.undo()
        whole, resumed = small_dear(small_clip), small_dear(small_clip, seed=9)
        want = train(whole, few(), SETTINGS, seed=1)
        assert numbers(train(resumed, few(), SETTINGS, seed=1, checkpoint=path)) == numbers(want)
        assert tensors_hash(resumed.state_dict()) == tensors_hash(whole.state_dict())

    def test_in_the_first_epoch_there_is_no_checkpoint(
        self, small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.nan_at(2, monkeypatch)
        with pytest.raises(TrainingDiverged, match="step 2") as caught:
            train(small_dear(small_clip), few(), SETTINGS, seed=1, checkpoint=tmp_path / "c")
        assert caught.value.checkpoint is None
        assert [*tmp_path.iterdir()] == []

    def test_a_bad_gradient_at_the_end_of_an_epoch_never_reaches_the_checkpoint(
        self, small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "c"
        self.nan_at(6, monkeypatch, gradient_only=True)  # the last step of the second epoch
        with pytest.raises(TrainingDiverged, match="step 6"):
            train(small_dear(small_clip), few(), SETTINGS, seed=1, checkpoint=path)
        state = read_state(path)["method"]
        assert all(torch.isfinite(value).all() for value in state.values())

    def test_a_last_step_that_goes_too_far_is_noticed(
        self, small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After it the loss is not finite, though no further step computes it."""
        path = tmp_path / "c"
        self.nan_at(16, monkeypatch)  # 3 steps x 5 epochs, and one more
        with pytest.raises(TrainingDiverged, match="step 15"):
            train(small_dear(small_clip), few(), SETTINGS, seed=1, checkpoint=path)
        assert len(json.loads(read_state(path)["history"])) == 4


class TestTrunkCache:
    def test_it_changes_nothing_and_saves_the_trunk(self, small_clip: Clip) -> None:
        images, cache = few(), TrunkCache(10**7)
        plain = train(small_dear(small_clip), few(), SETTINGS, seed=1)
        for variant in ({}, {"beta": 0.5}, {}):
            got = train(small_dear(small_clip, **variant), images, SETTINGS, seed=1, cache=cache)
            if not variant:
                assert numbers(got) == numbers(plain)
        assert images.loads == 15  # 3 steps x 5 epochs, for three runs

    @pytest.mark.parametrize(("seed", "options"), [(2, {}), (1, {"first": 10})])
    def test_another_seed_or_span_has_its_own_views(
        self, seed: int, options: dict[str, Any], small_clip: Clip
    ) -> None:
        images, cache = few(), TrunkCache(10**7)
        train(small_dear(small_clip), images, SETTINGS, seed=1, cache=cache)
        got = train(small_dear(small_clip, **options), images, SETTINGS, seed=seed, cache=cache)
        assert numbers(got) == numbers(train(small_dear(small_clip, **options), few(), SETTINGS, seed=seed))
        assert images.loads == 30

    def test_it_respects_its_limit(self) -> None:
        cache, made = TrunkCache(4 * 11), []

        def maker(key: str, size: int) -> Tensor:
            def compute() -> Tensor:
                made.append(key)
                return torch.full((size,), float(size))

            return cache.get(key, compute)

        for _ in range(2):
            assert [len(maker(key, size)) for key, size in (("a", 7), ("b", 5), ("c", 3))] == [7, 5, 3]
        assert made == ["a", "b", "c", "b"]  # b would not fit behind a
        assert cache.bytes == 40
        cache.clear()
        assert cache.bytes == 0
        maker("b", 5)
        assert made[-1] == "b"


class TestSeeding:
    def test_purposes_and_seeds_are_independent(self) -> None:
        def draw(seed: int, *purpose: str | int) -> tuple[int, ...]:
            return tuple(torch.randint(0, 2**31, (5,), generator=generator(seed, *purpose)).tolist())

        purposes: list[tuple[str | int, ...]] = [
            ("order", 0),
            ("order", 1),
            ("views", 0),
            ("views", 0, 1),
            ("views", 1, 0),
            ("order",),
        ]
        drawn = {draw(seed, *purpose) for seed in (1, 2, 3) for purpose in purposes}
        assert len(drawn) == 3 * len(purposes)
        assert draw(1, "order", 0) == draw(1, "order", 0)
        assert draw(1, "views", 11) != draw(1, "views", 1, 1)
        assert draw(1, "1") != draw(1, 1)

    def test_the_global_generator_is_left_alone(self, small_clip: Clip) -> None:
        before = torch.get_rng_state()
        train(small_dear(small_clip), few(), TrainSettings(epochs=1), seed=1)
        assert torch.equal(torch.get_rng_state(), before)
