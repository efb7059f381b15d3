"""Checkpoints that are not what was written: one line each, nothing taken up, nothing lost."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone import tiny
from dear.backbone.clip import Clip
from dear.evaluation.plan import Plan
from dear.evaluation.records import read_record
from dear.evaluation.runs import run_all
from dear.methods.dear import DearSettings
from dear.progress import TrainingStep
from dear.training.checkpoint import CheckpointError, _history, read_state, set_aside, write_state
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


def by_torch(path: Path) -> None:
    """As whoever opens it with torch, takes an epoch off the history and saves it again."""
    state = read_state(path)
    state["history"] = json.dumps(json.loads(state["history"])[:1])
    torch.save(state, path)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.write_bytes(b""), "not a checkpoint of this version"),
        (lambda path: path.write_bytes(b"no checkpoint"), "not a checkpoint of this version"),
        (by_torch, "not a checkpoint of this version"),
        (bytes_changed(lambda content: content[:1000]), "checksum is wrong"),
        (bytes_changed(lambda content: content[:-1]), "checksum is wrong"),
        (bytes_changed(lambda content: content + b"\0"), "checksum is wrong"),
        (bytes_changed(lambda content: content[:50]), "checksum is wrong"),
        (bytes_changed(lambda content: content[:700] + b"\0" * 64 + content[764:]), "checksum is wrong"),
        (lambda path: (path.unlink(), path.mkdir()), "it cannot be read"),
    ],
)
def test_bytes_that_were_changed(
    damage: Callable[[Path], None], why: str, small_clip: Clip, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    stopped(path, 2, small_clip)
    damage(path)
    with pytest.raises(CheckpointError, match=rf"c is damaged \(.*{why}.*--start-over") as told:
        train(small_dear(small_clip), few(), SHORT, seed=1, checkpoint=path)
    assert "\n" not in str(told.value)


def history(change: Callable[[list[Any]], Any]) -> Callable[[State], Any]:
    return lambda state: state.update(history=json.dumps(change(json.loads(state["history"]))))


def first(tensors: dict[str, Any]) -> str:
    return next(iter(tensors))


def method(change: Callable[[torch.Tensor], Any]) -> Callable[[State], Any]:
    return lambda s: s["method"].update({first(s["method"]): change(s["method"][first(s["method"])])})


def momenta(change: Callable[[dict[str, Any]], Any]) -> Callable[[State], Any]:
    return lambda s: [change(kept) for kept in s["optimizer"]["state"].values()]


def groups(change: Callable[[dict[str, Any]], Any]) -> Callable[[State], Any]:
    return lambda s: [change(group) for group in s["optimizer"]["param_groups"]]


def endless() -> list[Any]:
    """A list of a list twice, and so on: a few bytes in a file, and a text, or a copy, without an end."""
    value = list[Any]()
    for _ in range(60):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(run=endless()),
        lambda state: state.update(epochs=endless()),
        lambda state: state.update(steps=endless()),
        lambda state: state.update(scaling={"scale": endless()}),
        lambda state: state.update(method=endless()),
        lambda state: state["optimizer"].update(state={0: endless()}),
        groups(lambda group: group.update(weight_decay=endless())),
        momenta(lambda kept: kept.update(step=endless())),
        momenta(lambda kept: kept.update(exp_avg=endless())),
        momenta(lambda kept: kept.update(exp_avg=torch.zeros(1, dtype=torch.float64).expand(2**40))),
        history(lambda epochs: epochs[:1]),
        history(lambda epochs: [*epochs, epochs[-1]]),
        history(lambda epochs: [epochs[0], epochs[0]]),
        history(lambda epochs: epochs[::-1]),
        history(lambda epochs: [{**epoch, "loss": "low"} for epoch in epochs]),
        history(lambda epochs: [{**epoch, "loss": float("nan")} for epoch in epochs]),
        history(lambda _: [1, 2]),
        history(lambda epochs: [{**epoch, "seconds": 1e308} for epoch in epochs]),
        history(lambda epochs: [{**epoch, "seconds": -1.0} for epoch in epochs]),
        history(lambda epochs: [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in epochs]),
        history(lambda epochs: [epochs[0], {**epochs[1], "other": 1.0}]),
        history(lambda _: {"epoch": 1}),
        lambda state: state.update(history="{"),
        lambda state: state.update(history=7),
        lambda state: state.update(epochs=1),
        lambda state: state.update(epochs="2"),
        lambda state: state.update(steps=4),
        lambda state: state.update(steps=None),
        lambda state: state.update(best=state["method"]),
        lambda state: state.pop("best"),
        lambda state: state.pop("history"),
        lambda state: state.pop("optimizer"),
        lambda state: state.update(method=[]),
        lambda state: state["method"].popitem(),
        lambda state: state.update(run="["),
        lambda state: state.update(run=["a"]),
        lambda state: state.pop("run"),
        method(lambda one: one.flatten()[:1]),
        method(lambda one: one * float("nan")),
        method(lambda _: "tensor"),
        lambda state: state["optimizer"].pop("param_groups"),
        lambda state: state["optimizer"].update(state=7),
        method(lambda one: one.to(torch.complex64)),
        groups(lambda group: group.pop("rate")),
        groups(lambda group: group.update(rate="x")),
        groups(lambda group: group.update(weight_decay=7.0)),
        groups(lambda group: group.update(betas="x")),
        groups(lambda group: group.update(fused=True)),
        momenta(lambda kept: kept.update(exp_avg=[1, 2])),
        momenta(lambda kept: kept.update(exp_avg=kept["exp_avg"] * float("inf"))),
        momenta(lambda kept: kept.update(other=torch.zeros(()))),
        momenta(lambda kept: kept.update(step=torch.tensor(5.0))),
        momenta(lambda kept: kept.update(exp_avg=torch.zeros(1, 2))),
    ],
)
def test_a_whole_file_that_contradicts_itself(
    change: Callable[[State], Any], small_clip: Clip, tmp_path: Path
) -> None:
    """The checksum is of what is there: somebody has taken pains."""
    path = tmp_path / "c"
    state = stopped(path, 2, small_clip)
    assert state["epochs"] == 2
    assert state["steps"] == 2 * 3  # seven images, three at a time
    change(state)
    write_state(path, state)
    with pytest.raises(CheckpointError, match=r"c is damaged \(.*--start-over") as told:
        train(small_dear(small_clip), few(), SHORT, seed=1, checkpoint=path)
    assert "\n" not in str(told.value)


def test_the_best_epoch_must_be_there_where_one_is_chosen(small_clip: Clip, tmp_path: Path) -> None:
    path = tmp_path / "c"
    state = stopped(path, 2, small_clip, validate=lambda: 0.5)
    state["best"] = None
    write_state(path, state)
    with pytest.raises(CheckpointError):
        train(small_dear(small_clip), few(), SHORT, seed=1, checkpoint=path, validate=lambda: 0.5)


def test_epochs_without_the_score_by_which_one_is_chosen(small_clip: Clip, tmp_path: Path) -> None:
    path = tmp_path / "c"
    state = stopped(path, 2, small_clip, validate=lambda: 0.5)
    history(lambda epochs: [{k: v for k, v in epoch.items() if k != "val"} for epoch in epochs])(state)
    write_state(path, state)
    with pytest.raises(CheckpointError, match="its epochs lack values"):
        train(small_dear(small_clip), few(), SHORT, seed=1, checkpoint=path, validate=lambda: 0.5)


def runs(out: Path, **options: Any) -> list[dict[str, Any]]:
    clip = small_clip_of()
    plan = Plan("dear", settings=DearSettings(first=8))
    made = {"shots": 3, "roles": role_table(clip), "training": SHORT, "out": out} | options
    return run_all(clip, [noise_dataset()], [plan], **made)


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


def test_what_was_set_aside_before_stays(tmp_path: Path) -> None:
    for content in (b"one", b"two", b"three"):
        (tmp_path / "c").write_bytes(content)
        with pytest.warns(UserWarning, match="is damaged"):
            set_aside(tmp_path / "c")
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept == {"c.damaged": b"one", "c.damaged2": b"two", "c.damaged3": b"three"}


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(step=1),
        lambda state: state.update(step="2"),
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


def test_epochs_beyond_all_bounds() -> None:
    """They are compared with the history before they are listed."""
    with pytest.raises(ValueError, match="it claims 1" + "0" * 30 + " epochs, but lists others"):
        _history({"history": "[]", "epochs": 10**30, "steps": 0}, 1, 1)


def test_more_epochs_than_the_run_has() -> None:
    """As many steps as the run has stand for any number of epochs."""
    entry = {"loss": 1.0, "lr": 0.1, "seconds": 1.0}
    of = [json.dumps([{"epoch": at + 1, **entry} for at in range(count)]) for count in (3, 4)]
    assert len(_history({"history": of[0], "epochs": 3, "steps": 5}, 2, 5)) == 3
    with pytest.raises(ValueError, match="it has 4 epochs, more than the run"):
        _history({"history": of[1], "epochs": 4, "steps": 5}, 2, 5)
