"""Checkpoints: a training goes on bit for bit; a damaged one is one line, nothing loaded, nothing lost."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip, tensors_hash
from dear.errors import OutputError
from dear.progress import TrainingStep
from dear.training import loop
from dear.training.checkpoint import read_state, write_state
from dear.training.loop import train
from dear.training.settings import TrainSettings
from tests.helpers.data import CLASSES, Noise, few
from tests.helpers.methods import small_dear, train_until, without_seconds

SHORT = TrainSettings(epochs=3, batch=3, lr=1e-2)
State = dict[str, Any]


# 3 x 7 / 3 = 7 steps: three epochs, of which the last has one step.
STEPS = replace(SHORT, epochs=1, steps_per_shot=3, warmup_epochs=0, schedule="step")


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        (STEPS, None),
        (SHORT, 2.0**10),
        (SHORT, 2.0**126),  # overflows, so that steps are skipped
    ],
)
@pytest.mark.parametrize("done", [1, 2])
def test_going_on_equals_an_undisturbed_run(
    done: int, settings: TrainSettings, scale: float | None, small_clip: Clip, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """All comes from the file: the method that goes on begins with other parameters. With ``scale`` losses
    are scaled by twice as much after each 5 steps, and by half as much after one that overflows.
    """
    scalers: list[torch.amp.GradScaler] = []

    def build_scaler(*_: Any) -> torch.amp.GradScaler:
        options = {"enabled": False} if scale is None else {"init_scale": scale, "growth_interval": 5}
        scalers.append(torch.amp.GradScaler("cpu", **options))
        return scalers[-1]

    monkeypatch.setattr(loop, "gradient_scaler", build_scaler)
    whole, path = small_dear(small_clip), tmp_path / "run" / "c"
    steps, again = list[TrainingStep](), list[TrainingStep]()
    want = train(whole, few(), settings, seed=1, progress=steps.append)
    train_until(done, small_dear(small_clip), path, settings)
    assert [file.name for file in path.parent.iterdir()] == ["c"]
    resumed = small_dear(small_clip, seed=9)
    got = train(resumed, few(), settings, seed=1, checkpoint=path, progress=again.append)
    of_epochs = [step.done for step in steps if step.ends_epoch]
    assert (again[0].done, again[1].done) == (of_epochs[done - 1], of_epochs[done - 1] + 1)
    assert without_seconds(got) == without_seconds(want)
    assert tensors_hash(resumed.state_dict()) == tensors_hash(whole.state_dict())
    of_whole, _, of_rest = (scaler.state_dict() for scaler in scalers)
    assert of_whole == of_rest
    assert scale is None or of_whole["scale"] != scale
    images, reread = few(), small_dear(small_clip, seed=9)
    assert train(reread, images, settings, seed=1, checkpoint=path) == got  # it is only read
    assert images.loads == 0
    assert tensors_hash(reread.state_dict()) == tensors_hash(whole.state_dict())


def test_a_checkpoint_of_another_run_is_refused(small_clip: Clip, tmp_path: Path) -> None:
    path, short = tmp_path / "c", TrainSettings(epochs=1, batch=7)
    train(small_dear(small_clip), few(), short, seed=1, checkpoint=path)
    before = path.read_bytes()
    other_classes = small_dear(small_clip)
    other_classes.set_classes(CLASSES[::-1], ["a photo of a {}"])
    others: list[tuple[str, Any, Noise, TrainSettings, int]] = [
        ("train", small_dear(small_clip), few(), TrainSettings(epochs=2, batch=7), 1),
        ("seed", small_dear(small_clip), few(), short, 2),
        ("classes", other_classes, few(), short, 1),
        ("images", small_dear(small_clip), Noise(few().labels.tolist(), seed=5), short, 1),
        ("method_settings", small_dear(small_clip, beta=0.5), few(), short, 1),
    ]
    for fact, method, images, settings, seed in others:
        with pytest.raises(OutputError, match=rf"different {fact}\b"):
            train(method, images, settings, seed=seed, checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_write_that_is_cut_off_leaves_the_last_one(
    error: type[BaseException], small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c"

    def cut(_file: int) -> None:
        raise error

    def spoil(step: TrainingStep) -> None:
        if step.ends_epoch and step.epoch == 2:
            monkeypatch.setattr(os, "fsync", cut)

    with pytest.raises(OutputError if error is OSError else error):
        train(small_dear(small_clip), few(), SHORT, seed=1, checkpoint=path, progress=spoil)
    assert [file.name for file in tmp_path.iterdir()] == ["c"]
    assert len(json.loads(read_state(path)["history"])) == 2


def change(edit: Callable[[State], Any]) -> Callable[[Path], None]:
    """Whole bytes of other parts, as another version writes them."""

    def damage(path: Path) -> None:
        edit(state := read_state(path))
        write_state(path, state)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes().replace(path.read_bytes()[700:764], b"\0" * 64)),
        lambda path: torch.save(read_state(path), path),
        lambda path: (path.unlink(), path.mkdir()),
        change(lambda state: state.pop("history")),
        change(lambda state: state.update(run="[")),
        change(lambda state: state["method"].popitem()),
        change(lambda state: state["optimizer"].pop("param_groups")),
    ],
)
def test_a_damaged_checkpoint(damage: Callable[[Path], None], small_clip: Clip, tmp_path: Path) -> None:
    path = tmp_path / "c"
    train_until(2, small_dear(small_clip), path, SHORT)
    damage(path)
    starts_over(small_clip, path)


def starts_over(clip: Clip, path: Path) -> None:
    """A training that finds a damaged checkpoint keeps it under another name, and takes nothing of it."""
    whole, again = small_dear(clip), small_dear(clip)
    want = train(whole, few(), SHORT, seed=1)
    with pytest.warns(UserWarning, match=r"damaged: renamed to c\.damaged") as noted:
        got = train(again, few(), SHORT, seed=1, checkpoint=path)
    assert "\n" not in str(noted[0].message)
    assert without_seconds(got) == without_seconds(want)
    assert tensors_hash(again.state_dict()) == tensors_hash(whole.state_dict())
    assert path.with_name("c.damaged").exists()
