"""Commands share the runs of a folder; runs on two processes are those of one, and end together."""

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from dear.backbone.names import Precision
from dear.data.settings import DataSettings
from dear.errors import OutputError, SettingsError, TrainingDiverged
from dear.evaluation import session, workers
from dear.evaluation.dry_run import list_runs
from dear.evaluation.experiment import Machines
from dear.evaluation.launch import check_folders, launch, make_runs, plan_runs
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import RunResult
from dear.evaluation.session import Session
from dear.evaluation.workers import LostWorkerError, deal, make_run
from dear.methods.base import Method
from dear.methods.registry import register
from dear.training import cache as cache_module
from tests.unit.evaluation.children import experiment, launch_alone, launch_and_tell, server

ENDLESS = {"epochs": 100_000}
DIVERGING = {"epochs": 5, "lr": 1e9, "weight_decay": 1e9, "warmup_epochs": 0}
ZERO = (MethodSetup("zero-shot"),)
BROKEN = """
import dear
from dear.methods.optional import UsesAllImages

class Broken(dear.Method, UsesAllImages):
    settings: dear.MethodSettings

    def __init__(self, clip, generator, settings=None):
        super().__init__(clip, generator, settings)

    def before_training(self, images):
        return {}['no such key']
"""
EARLY = BROKEN.replace("before_training(self, images)", "set_classes(self, classnames, templates)")
WAITING = BROKEN.replace(
    "return {}['no such key']",
    """import pathlib, time
        (pathlib.Path(__file__).parent / "begun").touch()
        time.sleep(600)""",
)


@pytest.fixture
def fast_start(monkeypatch: pytest.MonkeyPatch) -> ForkServerContext:
    """Workers forked from a process that has imported everything, in place of new ones."""
    context = server()
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda _: context)
    return context


def numbers(record: dict[str, Any]) -> Any:
    return record["key"], record["results"], [epoch["loss"] for epoch in record["train"]["epochs"]]


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    one, two = (experiment(tmp_path / "x", about={"recipe": name}) for name in "ab")
    with pytest.raises(OutputError, match="a and b both write to"):
        check_folders([one, two])


def wait_for(is_so: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_commands_on_a_folder_share_its_runs(tmp_path: Path) -> None:
    """Two work at a time; one is killed in the middle of a run. Each run is made once, that one from its
    checkpoint.
    """
    sweep = experiment(tmp_path / "out", seeds=(1, 2), train={"epochs": 2})
    unfinished, context = sweep.out / "unfinished", server()
    made = context.SimpleQueue()
    killed, other = (
        context.Process(target=launch_alone, args=(sweep, made, stops)) for stops in (True, False)
    )
    killed.start()
    wait_for(lambda: [*unfinished.glob("*.pt")])  # DeAR has been trained for an epoch
    other.start()
    wait_for(lambda: len([*unfinished.glob("*.lock")]) == 2)
    killed.kill()
    other.join(timeout=120)
    assert other.exitcode == 0
    names = sorted(made.get() for _ in range(4))
    assert made.empty()
    assert names == sorted(path.stem for path in sweep.out.glob("*.json"))
    assert not unfinished.exists()
    (alone,) = launch([experiment(tmp_path / "alone", seeds=(1, 2), train=sweep.train)], Machines("cpu"))
    (found,) = launch([sweep], Machines("cpu"))
    assert [*map(numbers, found)] == [*map(numbers, alone)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_stops_no_other(jobs: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """And its error is the same from a process; the next command tries it again."""
    if jobs > 1:
        request.getfixturevalue("fast_start")
    apart = MethodSetup("dear", {"first": 12}, "all-mixed")
    sweep = experiment(tmp_path / "out", methods=(apart, *ZERO), train=DIVERGING)
    with pytest.warns(UserWarning, match="dear-all-mixed-1shot-seed1.* failed: training diverged"):
        records, failed = make_runs([sweep], Machines("cpu", jobs=jobs))
    assert [record["method"] for record in records[0]] == ["zero-shot"]
    ((run, error),) = failed
    assert (run.setup, type(error)) == (apart, TrainingDiverged)
    assert error.step > 0  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="diverged"), pytest.raises(TrainingDiverged):
        launch([sweep], Machines("cpu", jobs=jobs))


@pytest.mark.parametrize(("code", "jobs"), [(BROKEN, 1), (BROKEN, 2), (EARLY, 1), (EARLY, 2)])
def test_a_code_error_of_a_method_stops_no_other_run(
    code: str,
    jobs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """The message names the line of the class, and the traceback is there. A dry run says it if it shows."""
    module = f"broken_method_{len(code)}_{jobs}"
    file = tmp_path / f"{module}.py"
    file.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    name = register(f"{module}:Broken").name
    if jobs > 1:
        request.getfixturevalue("fast_start")
    sweep = experiment(tmp_path / "out", methods=(MethodSetup(name), *ZERO))
    with pytest.warns(UserWarning, match="failed: .*KeyError"):
        records, failed = make_runs([sweep], Machines("cpu", jobs=jobs))
    assert [record["method"] for record in records[0]] == ["zero-shot"]
    ((_, error),) = failed
    line = 1 + code.splitlines().index("        return {}['no such key']")
    assert f"{file}, line {line} " in str(error)
    said = capfd.readouterr().err
    assert "Traceback" in said or jobs > 1  # the server of processes began with another stderr
    missing = list_runs([sweep], Machines("cpu"))[1]
    assert missing == ([str(error)] if code == EARLY else [])


def test_a_precision_is_judged_where_it_is_computed(tmp_path: Path) -> None:
    """Not by the process that only resolves runs."""
    half = experiment(tmp_path, methods=ZERO, train={"precision": "16-mixed"})
    with pytest.raises(SettingsError, match="16-mixed needs a GPU"):
        list_runs([half], Machines("cpu", jobs=2))
    assert len(list_runs([half], Machines(cluster="auto"))[0]) == 1


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


@pytest.mark.usefixtures("fast_start")
def test_warnings_of_processes_are_shown_here_each_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = experiment(tmp_path / "out", seeds=(1, 2), train={"epochs": 2})
    (tmp_path / "photos" / "train" / "a" / "odd.txt").write_text("")
    with warnings.catch_warnings(record=True) as shown:
        launch([sweep], Machines("cpu", jobs=2))
    messages = [str(note.message) for note in shown]
    assert any("no image suffix" in message for message in messages)
    assert sum("may hardly change" in message for message in messages) == 1  # of a process
    assert len({*messages}) == len(messages)
    assert "Warning" not in capfd.readouterr().err


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("fast_start")
def test_a_signal_ends_all_workers(tmp_path: Path) -> None:
    endless = experiment(tmp_path / "out", train=ENDLESS, seeds=(1, 2))
    before = {child.pid for child in multiprocessing.active_children()}
    with pytest.raises(KeyboardInterrupt):
        launch([endless], Machines("cpu", jobs=2), interrupt)
    assert {child.pid for child in multiprocessing.active_children()} <= before
    assert not [*(tmp_path / "out").rglob("*.lock")]


def test_a_killed_launch_leaves_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers end with the process that started them, also one that has nothing to tell it."""
    (tmp_path / "waiting_method.py").write_text(WAITING)
    monkeypatch.syspath_prepend(tmp_path)
    waiting = MethodSetup(register("waiting_method:Broken").name)
    sweep = experiment(tmp_path / "out", methods=(waiting,), seeds=(1, 2))
    listener, told = multiprocessing.Pipe(duplex=False)
    process = server().Process(target=launch_and_tell, args=(sweep, tmp_path / "begun", told))
    process.start()
    told.close()
    workers_of = listener.recv()
    assert len(workers_of) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers_of), seconds=20)


class Workers:
    """Stand-ins that end the runs that they hold in turn; one of them is lost at its second."""

    def __init__(self) -> None:
        self.started = list[tuple[str, int]]()
        self.held = list[tuple[str, int]]()

    def start(self, worker: str, run: Any) -> tuple[str, int]:
        handle = worker, run
        self.started.append(handle)
        self.held.append(handle)
        return handle

    def receive(self, handles: Any) -> Any:
        assert sorted(handles) == sorted(self.held)
        worker, name = held = self.held.pop(0)
        if worker == "b" and [one for one, _ in self.started].count("b") == 2:
            yield held, LostWorkerError()
        else:
            yield held, None if name == 8 else RunResult({})


def test_each_run_is_dealt_once() -> None:
    """To a worker first those of its part, then the last ones of the longest part; to a lost one no more.
    What another command makes is not told.
    """
    runs: Any = [*range(9)]
    workers, told = Workers(), list[tuple[Any, Any]]()
    deal(runs, "abc", workers.start, workers.receive, lambda run, message: told.append((run, message)))  # type: ignore[arg-type]
    assert workers.started == [
        ("a", 0), ("b", 3), ("c", 6), ("a", 1), ("b", 4), ("c", 7), ("a", 2), ("c", 8), ("a", 5),
    ]  # fmt: skip
    assert [name for name, _ in told] == [0, 3, 6, 1, 4, 7, 2, 5]
    assert [name for name, message in told if isinstance(message, LostWorkerError)] == [4]


@pytest.mark.usefixtures("fast_start")
def test_a_lost_worker_stops_no_other(tmp_path: Path) -> None:
    """Its run has failed; another worker makes the rest."""
    long, seen = MethodSetup("dear", {"first": 12}, "all-mixed"), set[str]()
    training = {"epochs": 200, "warmup_epochs": 0}
    sweep = experiment(tmp_path / "out", methods=(long, *ZERO), seeds=(1, 2), train=training)

    def kill(name: str, step: Any) -> None:
        if step is not None and len(seen) < 2 and len(seen | {name}) == 2:  # both are under way
            multiprocessing.active_children()[0].kill()
        seen.add(name)

    with pytest.warns(UserWarning, match="enough memory"):
        (records,), failed = make_runs([sweep], Machines("cpu", jobs=2), kill)
    assert sorted(record["method"] for record in records) == ["dear", "zero-shot", "zero-shot"]
    assert [(run.setup, type(error)) for run, error in failed] == [(long, LostWorkerError)]


def test_a_process_loads_the_model_and_the_data_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def counted(load: Any) -> Any:
        def counting(*given: Any, **options: Any) -> Any:
            loads.append(load.__name__)
            return load(*given, **options)

        return counting

    for load in (session.load_clip, session.load_dataset):
        monkeypatch.setattr(session, load.__name__, counted(load))
    sweep = experiment(tmp_path / "out", methods=ZERO, seeds=(1, 2, 3, 4))
    shared = Session()
    (planned,) = plan_runs(shared, [sweep])
    assert [make_run(run, shared).record["seed"] for run, _ in planned] == [1, 2, 3, 4]  # type: ignore[union-attr]
    assert sorted(loads) == ["load_clip", "load_dataset"]


def test_two_experiments_share_a_run(tmp_path: Path) -> None:
    """It is made once, and copied."""
    outs = [experiment(tmp_path / name, methods=ZERO) for name in "ab"]
    one, two = launch(outs, Machines("cpu"))
    assert one == two
    files = [sorted((tmp_path / name).iterdir()) for name in "ab"]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_commands_share_what_they_read_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second command encodes no image, one with another seed only other random views, and the numbers are
    those of a first one.
    """
    encoded, encode = [0], cache_module._encode

    def count(methods: Sequence[Method], pixels: Tensor, precision: Precision) -> list[Tensor]:
        encoded[0] += len(pixels)
        return encode(methods, pixels, precision)

    monkeypatch.setattr(cache_module, "_encode", count)
    options: dict[str, Any] = {"protocol": FewShot(), "methods": (*ZERO, MethodSetup("gda")), "train": {}}

    def run(name: str, cache: str, *seeds: int) -> tuple[list[bytes], int]:
        encoded[0] = 0
        of_cache = DataSettings(cache=tmp_path / cache)
        launch([experiment(tmp_path / name, seeds=seeds, dataset=of_cache, **options)], Machines("cpu"))
        return [path.read_bytes() for path in sorted((tmp_path / name).glob("*.npz"))], encoded[0]

    first, views = run("first", "a", 1)
    assert len(first) == 2
    assert run("second", "a", 1) == (first, 0)
    both, of_second = run("both", "a", 1, 2)
    other, of_both = run("other", "b", 1, 2)
    assert both == other
    assert 0 < of_second < views
    assert of_both == views + of_second
