"""Runs on two processes: the records of one, each once; an error of a run ends them all."""

import multiprocessing
import queue
import warnings
from contextlib import suppress
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dear.errors import DearError, SettingsError
from dear.evaluation import runs
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.launch import processes
from dear.evaluation.launch.dispatch import check_device, launch
from dear.evaluation.launch.processes import Waiting, in_processes
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import silent
from dear.methods.dear import DearSettings
from dear.training.settings import TrainSettings
from tests.unit.evaluation.children import keep_a_worker, server


def experiment(out: Path) -> Experiment:
    return Experiment(
        protocol=BaseToNovel(),
        out=out,
        data=("mixed-paints",),
        methods=(MethodSetup("zero-shot"), MethodSetup("dear", "all-mixed", DearSettings(first=12))),
        shots=(1,),
        train=TrainSettings(epochs=1),
    )


@pytest.fixture
def fast_start(monkeypatch: pytest.MonkeyPatch) -> ForkServerContext:
    """Workers forked from a process that has imported everything, in place of new ones."""
    context = server()
    monkeypatch.setattr(processes.multiprocessing, "get_context", lambda _: context)
    return context


def numbers(record: dict[str, Any]) -> Any:
    return record["key"], record["results"], [epoch["loss"] for epoch in record["train"]["epochs"]]


def test_a_precision_is_judged_where_it_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the process that only looks for records; what a cluster has is told there."""
    half = replace(experiment(tmp_path), train=TrainSettings(precision="16-mixed"))
    with pytest.raises(SettingsError, match="precision 16-mixed needs a GPU"):
        check_device(Machines("cpu", jobs=2), [half])
    check_device(Machines("cpu", cluster="auto"), [half])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_device(Machines("cuda", jobs=2), [half])


@pytest.mark.parametrize("start", ["fast_start", pytest.param(None, marks=pytest.mark.long)])
def test_two_processes_give_the_records_of_one(
    start: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Those forked here, and those that start as a user's do."""
    if start:
        request.getfixturevalue(start)
    (alone,) = launch([experiment(tmp_path / "alone")], Machines("cpu"))
    names: list[str] = []
    found = launch(
        [experiment(tmp_path / "two")],
        Machines("cpu", jobs=2),
        lambda name, _step: names.append(name),
    )
    assert [numbers(record) for record in found[0]] == [numbers(record) for record in alone]
    written = {path.name for path in (tmp_path / "two").glob("*.json")}
    assert (
        written
        == {path.name for path in (tmp_path / "alone").glob("*.json")}
        == {f"{name}.json" for name in names}
    )
    again = launch([experiment(tmp_path / "two")], Machines("cpu", jobs=2))
    assert [numbers(record) for record in again[0]] == [numbers(record) for record in found[0]]


def test_a_worker_stays_with_what_it_has_begun() -> None:
    """Runs of one data set and seed share views and trunk outputs, which only their own process holds."""
    groups = {f"{task}{method}": task for task in "abc" for method in range(3)}
    waiting = Waiting(groups)
    assert [waiting.next_for(0), waiting.next_for(1)] == ["a0", "b0"]
    assert [waiting.next_for(1), waiting.next_for(1)] == ["b1", "b2"]
    assert waiting.next_for(1) == "c0"  # nobody works on it, while a is begun
    assert [waiting.next_for(1), waiting.next_for(1)] == ["c1", "c2"]
    assert waiting.next_for(1) == "a1"  # nothing else is left
    assert [waiting.next_for(0), waiting.next_for(0), waiting.next_for(1)] == ["a2", None, None]


def test_a_single_data_set_is_divided_among_all_workers() -> None:
    waiting = Waiting(dict.fromkeys(range(4), "one"))
    assert [waiting.next_for(worker) for worker in (0, 1, 2, 0, 1)] == [0, 1, 2, 3, None]


def test_a_worker_without_a_group_helps_with_the_longest() -> None:
    waiting = Waiting({"a0": "a", "a1": "a", "b0": "b", "b1": "b", "b2": "b"})
    assert [waiting.next_for(0), waiting.next_for(1), waiting.next_for(2)] == ["a0", "b0", "b1"]


def test_a_lost_run_is_the_next_of_its_group() -> None:
    waiting = Waiting({"a0": "a", "a1": "a", "b0": "b"})
    assert [waiting.next_for(0), waiting.next_for(1), waiting.next_for(0)] == ["a0", "b0", "a1"]
    waiting.put_back("a0")
    assert [waiting.next_for(1), waiting.next_for(0)] == ["a0", None]


@pytest.mark.usefixtures("fast_start")
def test_warnings_of_processes_are_shown_here_each_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "photos"
    for part in ("train", "test"):
        for label, color in (("a", "red"), ("b", "blue")):
            (folder / part / label).mkdir(parents=True)
            side = 64 if part == "train" else 63  # no copies
            Image.new("RGB", (side, side), color).save(folder / part / label / "one.png")
    (folder / "train" / "a" / "odd.txt").write_text("")
    made = replace(
        experiment(tmp_path / "out"), data=(str(folder),), methods=(MethodSetup("zero-shot"),), model="tiny"
    )
    two = replace(made, seeds=(1, 2))
    with pytest.warns(UserWarning, match="no image suffix") as held:
        in_processes(dict(enumerate((two, run) for run in two.runs())), 2, device="cpu", tell=silent)
    (note,) = (str(one.message) for one in held)
    again = replace(two, out=tmp_path / "again")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = dict(enumerate((again, run) for run in again.runs()))
        in_processes(runs, 2, device="cpu", tell=silent, notes={note})
    assert "Warning" not in capfd.readouterr().err


@pytest.mark.usefixtures("fast_start")
def test_an_error_of_a_run_ends_them_all(tmp_path: Path) -> None:
    good = experiment(tmp_path)
    run = replace(good.runs()[1], shots=65)  # there are 64 images a class
    with pytest.raises(DearError, match="has 64 images, fewer than 65 shots"):
        in_processes({0: (good, run)}, 2, device="cpu", tell=silent)
    assert not [*tmp_path.glob("*.json")]


def fail_with_runs_waiting(out: Path) -> None:
    """In a process of its own, whose worker is a fork of it.

    The first run fails; the descriptions of those that wait are more than a pipe holds (64 KiB)."""
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _: fork  # type: ignore[assignment]
    good = experiment(out)
    wordy = replace(good, data=tuple(f"no such data set {number}" for number in range(5_000)))
    bad = replace(good.runs()[1], shots=65)
    with suppress(DearError):
        in_processes(dict.fromkeys(range(9), (wordy, bad)), 1, device="cpu", tell=silent)


def test_an_error_ends_the_process_however_many_runs_wait(tmp_path: Path) -> None:
    """The thread that hands out the runs cannot finish when nobody takes them: nothing may wait for it."""
    process = server().Process(target=fail_with_runs_waiting, args=(tmp_path,))
    process.start()
    process.join(timeout=300)
    hangs = process.is_alive()
    process.kill()
    assert not hangs
    assert process.exitcode == 0


def test_workers_end_with_their_parent() -> None:
    """It holds the folder of the records: when it is killed, another may write there."""
    listener, held = multiprocessing.Pipe(duplex=False)
    parent = server().Process(target=keep_a_worker, args=(held,))
    parent.start()
    held.close()
    assert listener.recv() > 0  # the worker's id: it is there
    parent.terminate()
    parent.join()
    assert listener.poll(60)
    with pytest.raises(EOFError):  # nobody holds the other end any more
        listener.recv()


class Counting:
    """A way to start processes, with a count of those that were started."""

    def __init__(self, context: ForkServerContext) -> None:
        self.real, self.started = context, 0

    def Queue(self) -> Any:
        return self.real.Queue()

    def Process(self, **given: Any) -> Any:
        self.started += 1
        return self.real.Process(**given)


def test_a_sweep_starts_its_processes_once(
    fast_start: ForkServerContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one for each of the six runs; and the first two serve all of them."""
    counting = Counting(fast_start)
    monkeypatch.setattr(processes.multiprocessing, "get_context", lambda _: counting)
    sweep = replace(experiment(tmp_path), methods=(MethodSetup("zero-shot"),), seeds=(1, 2, 3, 4, 5, 6))
    (found,) = launch([sweep], Machines("cpu", jobs=2))
    assert [record["seed"] for record in found] == [1, 2, 3, 4, 5, 6]
    assert counting.started == 2


def test_a_process_loads_the_model_and_the_data_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def counted(load: Any) -> Any:
        def counting(*given: Any, **options: Any) -> Any:
            loads.append(load.__name__)
            return load(*given, **options)

        return counting

    for load in (runs.load_clip, runs.load_dataset):
        monkeypatch.setattr(runs, load.__name__, counted(load))
    sweep = replace(experiment(tmp_path), methods=(MethodSetup("zero-shot"),), seeds=(1, 2, 3, 4))
    inbox: queue.Queue[Any] = queue.Queue()
    results: queue.Queue[Any] = queue.Queue()
    for number, run in enumerate(sweep.runs()):
        inbox.put((number, (sweep, run)))
    inbox.put(None)
    processes.work(0, "cpu", 1, inbox, results)
    assert [kind for kind, _, _ in results.queue if kind != "progress"] == ["record"] * 4
    assert sorted(loads) == ["load_clip", "load_dataset"]
