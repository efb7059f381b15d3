"""Damaged checkpoints: one line each, nothing loaded, nothing lost."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone import tiny
from dear.backbone.clip import Clip
from dear.evaluation.records import read_record
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import run_all
from dear.methods.dear import DearSettings
from dear.progress import TrainingStep
from dear.training.checkpoint import CheckpointError, read_state, write_state
from dear.training.loop import train
from dear.training.settings import TrainSettings
from dear.writing import UNFINISHED
from tests.conftest import small_clip_of
from tests.unit.training.test_pretrain import SMALL
from tests.unit.training.world import few, noise_dataset, role_table, small_dear
from tools.pretrain_settings import PretrainSettings
from tools.pretraining import Pretraining

CPU = torch.device("cpu")
SHORT = TrainSettings(epochs=3, batch=3, lr=1e-2)
State = dict[str, Any]


def stopped(path: Path, epochs: int, clip: Clip, **options: Any) -> State:
    """The state after some epochs of a run that was stopped then."""

    def stop(step: TrainingStep) -> None:
        if step.ends_epoch and step.epoch == epochs:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(small_dear(clip), few(), SHORT, seed=1, checkpoint=path, progress=stop, **options)
    return read_state(path)


def bytes_changed(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no checkpoint"),
        lambda path: torch.save(read_state(path), path),
        bytes_changed(lambda content: content[:1000]),
        bytes_changed(lambda content: content[:-1]),
        bytes_changed(lambda content: content[:700] + b"\0" * 64 + content[764:]),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_bytes_that_were_changed(damage: Callable[[Path], None], small_clip: Clip, tmp_path: Path) -> None:
    path = tmp_path / "c"
    stopped(path, 2, small_clip)
    damage(path)
    with pytest.raises(CheckpointError, match=rf"{path}.*--start-over") as told:
        train(small_dear(small_clip), few(), SHORT, seed=1, checkpoint=path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("history"),
        lambda state: state.update(history="{"),
        lambda state: state.update(run="["),
        lambda state: state["method"].popitem(),
        lambda state: state["optimizer"].pop("param_groups"),
    ],
)
def test_a_checkpoint_of_another_version(
    change: Callable[[State], Any], small_clip: Clip, tmp_path: Path
) -> None:
    """Its bytes are whole, but other parts were written."""
    path = tmp_path / "c"
    state = stopped(path, 2, small_clip)
    change(state)
    write_state(path, state)
    with pytest.raises(CheckpointError, match="--start-over"):
        train(small_dear(small_clip), few(), SHORT, seed=1, checkpoint=path)


def runs(out: Path, **options: Any) -> list[dict[str, Any]]:
    clip = small_clip_of()
    setup = MethodSetup("dear", settings=DearSettings(first=8))
    made = {"shots": 3, "roles": role_table(clip), "training": SHORT, "out": out} | options
    return run_all(clip, [noise_dataset()], [setup], **made)


def numbers(record: dict[str, Any]) -> list[Any]:
    return [record["results"], [{**e, "seconds": 0} for e in record["train"]["epochs"]]]


def test_a_run_starts_over_only_if_it_is_asked_to(tmp_path: Path) -> None:
    (whole,) = runs(tmp_path / "whole")

    def stop(_name: str, step: TrainingStep | None) -> None:
        if step is not None and step.ends_epoch and step.epoch == 2:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        runs(out, progress=stop)
    (checkpoint,) = (out / UNFINISHED).iterdir()
    bad = checkpoint.read_bytes()[:-9]
    checkpoint.write_bytes(bad)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="--start-over"):
            runs(out)
        assert checkpoint.read_bytes() == bad
    with pytest.warns(UserWarning, match=r"damaged: renamed to .*\.pt\.damaged"):
        (again,) = runs(out, start_over=True)
    assert numbers(again) == numbers(whole)
    (aside,) = (out / UNFINISHED).iterdir()
    assert (aside.name, aside.read_bytes()) == (f"{checkpoint.name}.damaged", bad)
    assert len([read_record(path) for path in out.glob("*.json")]) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("model"),
        lambda state: state["model"].popitem(),
        lambda state: state.update(loss=None),
    ],
)
def test_pretraining_starts_over_only_if_it_is_asked_to(
    change: Callable[[State], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny, "config", lambda: copy.deepcopy(SMALL))
    settings = PretrainSettings(images=20, batch=8, warmup=1)  # 3 steps
    want = Pretraining(settings, tmp_path / "whole").run(every=1)

    def stop(run: Pretraining) -> None:
        if run.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pretraining(settings, tmp_path / "out").run(every=1, progress=stop)
    path = tmp_path / "out" / "checkpoint.pt"
    state = read_state(path)
    change(state)
    write_state(path, state)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt is damaged .*--start-over"):
        Pretraining(settings, tmp_path / "out").run(every=1)
    with pytest.warns(UserWarning, match="is damaged"):
        got = Pretraining(settings, tmp_path / "out").run(every=1, start_over=True)
    assert got["loss"] == want["loss"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "whole")]
    assert weights[0] == weights[1]
