"""Folders have one owner and one writer; runs on two processes are those of one, and end together."""

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.errors import DearError, OutputError, SettingsError
from dear.evaluation import runs, workers
from dear.evaluation.experiment import Machines
from dear.evaluation.launch import LOCK, check_device, check_folders, launch, list_runs, lock_folder
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.workers import LostWorkerError, Worker, choose_run, make_runs, open_processes
from tests.unit.evaluation.children import experiment, launch_and_tell, server

ENDLESS = {"epochs": 100_000}
ZERO = (MethodSetup("zero-shot"),)


@pytest.fixture
def fast_start(monkeypatch: pytest.MonkeyPatch) -> ForkServerContext:
    """Workers forked from a process that has imported everything, in place of new ones."""
    context = server()
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda _: context)
    return context


def numbers(record: dict[str, Any]) -> Any:
    return record["key"], record["results"], [epoch["loss"] for epoch in record["train"]["epochs"]]


def test_a_folder_has_one_owner_and_one_writer(tmp_path: Path) -> None:
    one, two = (experiment(tmp_path / "x", about={"recipe": name}) for name in "ab")
    with pytest.raises(OutputError, match="a and b both write to"):
        check_folders([one, two])
    with lock_folder(one), pytest.raises(OutputError, match="another process is writing"), lock_folder(one):
        pass
    check_folders([one])  # the same recipe goes on
    with pytest.raises(OutputError, match="the recipe 'a', not of b"):
        check_folders([two])
    assert not (tmp_path / "x" / LOCK).exists()


def hold(folder: Path, ready: Any) -> None:
    with lock_folder(experiment(folder)):
        ready.send(True)
        signal.pause()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    listener, ready = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=hold, args=(tmp_path, ready))
    process.start()
    assert listener.recv()
    with pytest.raises(OutputError), lock_folder(experiment(tmp_path)):
        pass
    process.kill()
    process.join()
    with lock_folder(experiment(tmp_path)):
        pass


def test_a_precision_is_judged_where_it_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the process that only looks for records; what a cluster has is told there."""
    half = experiment(tmp_path, train={"precision": "16-mixed"})
    with pytest.raises(SettingsError, match="16-mixed needs a GPU"):
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
    names, two = list[str](), experiment(tmp_path / "two")
    (found,) = launch([two], Machines("cpu", jobs=2), lambda name, _step: names.append(name))
    (again,) = launch([two], Machines("cpu", jobs=2))
    assert [*map(numbers, found)] == [*map(numbers, again)] == [*map(numbers, alone)]
    files = [{path.stem for path in (tmp_path / out).glob("*.json")} for out in ("alone", "two")]
    assert files == [{*names}] * 2


@pytest.mark.parametrize(
    ("groups", "slots", "chosen"),
    [
        # It stays with what it has begun; nobody works on c, while a is begun; at last nothing else is left.
        ("aaabbbccc", [0, 1, 1, 1, 1, 1, 1, 1, 0], [0, 3, 4, 5, 6, 7, 8, 1, 2]),
        ("aaaa", [0, 1, 2, 0], [0, 1, 2, 3]),  # a single data set is divided among all
        ("aabbb", [0, 1, 2], [0, 2, 3]),  # one without a group helps with the longest
    ],
)
def test_runs_that_share_stay_together(groups: str, slots: list[int], chosen: list[int]) -> None:
    """Runs of one data set and seed share views and trunk outputs, which only their own worker holds."""
    left, begun, found = [*range(len(groups))], dict[int, Any](), list[int]()
    for slot in slots:
        found.append(choose_run(slot, left, groups, begun))
        left.remove(found[-1])
    assert found == chosen


@pytest.mark.usefixtures("fast_start")
def test_warnings_of_processes_are_shown_here_each_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def make(out: str, notes: Any = ()) -> None:
        made = experiment(tmp_path / out, methods=ZERO, seeds=(1, 2))
        (tmp_path / "photos" / "train" / "a" / "odd.txt").write_text("")
        with open_processes(2, "cpu") as pool:
            make_runs([(made, run) for run in made.runs()], pool, notes=notes)

    with pytest.warns(UserWarning, match="no image suffix") as shown:
        make("out")
    (note,) = (str(one.message) for one in shown)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make("again", {note})
    assert "Warning" not in capfd.readouterr().err


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("fast_start")
@pytest.mark.parametrize(("shots", "tell"), [(3, lambda *_: None), (1, interrupt)])
def test_an_error_or_a_signal_ends_all_workers(tmp_path: Path, shots: int, tell: Callable[..., None]) -> None:
    """There are two images a class."""
    endless = experiment(tmp_path / "out", train=ENDLESS, shots=(shots,))
    before = {child.pid for child in multiprocessing.active_children()}
    with pytest.raises((DearError, KeyboardInterrupt)), open_processes(2, "cpu") as pool:
        make_runs([(endless, endless.runs()[1])] * 9, pool, tell)
    assert {child.pid for child in multiprocessing.active_children()} <= before
    assert not [*(tmp_path / "out").glob("*.json")]


def test_a_killed_launch_leaves_no_worker(tmp_path: Path) -> None:
    """Workers end with the process that started them."""
    listener, told = multiprocessing.Pipe(duplex=False)
    endless = experiment(tmp_path / "out", train=ENDLESS)
    process = server().Process(target=launch_and_tell, args=(endless, told))
    process.start()
    told.close()
    workers_of = listener.recv()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while any(Path(f"/proc/{pid}").exists() for pid in workers_of):
        time.sleep(0.05)


@pytest.mark.usefixtures("fast_start")
def test_a_lost_worker_is_told(tmp_path: Path) -> None:
    def kill(*_: object) -> None:
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.raises(LostWorkerError, match="enough memory"):
        launch([experiment(tmp_path / "out", seeds=(1, 2), train=ENDLESS)], Machines("cpu", jobs=2), kill)


def test_a_process_loads_the_model_and_the_data_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def counted(load: Any) -> Any:
        def counting(*given: Any, **options: Any) -> Any:
            loads.append(load.__name__)
            return load(*given, **options)

        return counting

    for load in (runs.load_clip, runs.load_dataset):
        monkeypatch.setattr(runs, load.__name__, counted(load))
    sweep = experiment(tmp_path / "out", methods=ZERO, seeds=(1, 2, 3, 4))
    worker = Worker("cpu", 1)
    assert [worker.make(sweep, run)[0]["seed"] for run in sweep.runs()] == [1, 2, 3, 4]  # type: ignore[index]
    assert sorted(loads) == ["load_clip", "load_dataset"]


def test_a_dry_run_knows_what_has_a_record(tmp_path: Path) -> None:
    launch([experiment(tmp_path / "out", methods=ZERO)], Machines("cpu"))
    planned, reason = list_runs([experiment(tmp_path / "out")], Machines("cpu"))
    assert [(run["method"], run["variant"], run["done"]) for run in planned] == [
        ("zero-shot", None, True), ("dear", "all-mixed", False),
    ]  # fmt: skip
    assert reason is None


def test_two_experiments_share_a_run(tmp_path: Path) -> None:
    """It is made once, and copied."""
    outs = [experiment(tmp_path / name, methods=ZERO) for name in "ab"]
    one, two = launch(outs, Machines("cpu"))
    assert one == two
    files = [sorted((tmp_path / name).iterdir()) for name in "ab"]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
