"""A Ray cluster of two workers of which one is killed: all runs finish, each once."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from dear.errors import SettingsError
from dear.evaluation.experiment import Experiment
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.workers import make_runs, open_cluster
from dear.methods.dear import DearSettings
from dear.training.settings import TrainSettings

BUSY = b"ray::Worker.make"


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _ours(pid: int) -> bool:
    while pid > 1:
        pid = _parent(pid)
        if pid == os.getpid():
            return True
    return False


def _kill_one(killed: list[int], done: threading.Event) -> None:
    """Kill the first worker of ours that is seen in the middle of a run."""
    while not done.is_set() and not killed:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if entry.read_bytes().startswith(BUSY) and _ours(pid := int(entry.parent.name)):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    return
            except OSError:  # gone in the meantime
                continue
        time.sleep(0.05)


@pytest.mark.long
def test_a_worker_killed_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[3] / "src")]))
    experiment = Experiment(
        protocol=BaseToNovel(),
        out=tmp_path / "runs",
        data=("mixed-paints",),
        methods=(MethodSetup("zero-shot"), MethodSetup("dear", "all-mixed", DearSettings(first=12))),
        seeds=(1, 2),
        shots=(1,),
        model="tiny",
        train=TrainSettings(epochs=1),
    )
    experiment.out.mkdir()
    tasks = [(experiment, run) for run in experiment.runs()]
    killed: list[int] = []
    done = threading.Event()
    killer = threading.Thread(target=_kill_one, args=(killed, done))
    killer.start()
    before, handlers = signal.getsignal(signal.SIGTERM), set[object]()

    def tell(*_: object) -> None:
        handlers.add(signal.getsignal(signal.SIGTERM))

    try:
        with open_cluster("local", "cpu", None, 2) as pool:
            found = make_runs(tasks, pool, tell)
    finally:
        done.set()
        killer.join()
    assert killed
    assert handlers == {before}  # which ray.init replaces by its own
    assert [(record["method"], record["seed"]) for record in found] == [
        ("zero-shot", 1), ("dear", 1), ("zero-shot", 2), ("dear", 2),
    ]  # fmt: skip
    assert len({record["key"] for record in found}) == len([*experiment.out.glob("*.json")]) == 4


def test_no_cluster_answers() -> None:
    with pytest.raises(SettingsError, match=r"no Ray cluster answers at 'auto'.*--cluster local"):
        open_cluster("auto", "cpu", None, 1).__enter__()
