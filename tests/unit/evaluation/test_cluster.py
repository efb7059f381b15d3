"""A Ray cluster of two nodes, a worker on each, of which one is killed: all runs finish, each once."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from dear.errors import SettingsError
from dear.evaluation.experiment import Machines
from dear.evaluation.launch import launch
from dear.evaluation.workers import open_cluster
from tests.unit.evaluation.children import experiment

BUSY = b"ray::RemoteWorker.make"


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
    """On two nodes of one core each, so that both are used."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3] / "src"))
    sweep = experiment(tmp_path / "runs", seeds=(1, 2))
    killed: list[int] = []
    done = threading.Event()
    killer = threading.Thread(target=_kill_one, args=(killed, done))
    original, handlers = signal.getsignal(signal.SIGTERM), set[object]()

    def tell(*_: object) -> None:
        handlers.add(signal.getsignal(signal.SIGTERM))

    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    killer.start()
    try:
        cluster.add_node(num_cpus=1)
        signal.signal(signal.SIGTERM, original)  # a node replaces it, as ray.init does
        (found,) = launch([sweep], Machines("cpu", cluster=cluster.address), tell)
    finally:
        done.set()
        killer.join()
        cluster.shutdown()
        signal.signal(signal.SIGTERM, original)
    assert killed
    assert handlers == {original}
    assert [(record["method"], record["seed"]) for record in found] == [
        ("zero-shot", 1), ("dear", 1), ("zero-shot", 2), ("dear", 2),
    ]  # fmt: skip
    assert len({record["key"] for record in found}) == len([*sweep.out.glob("*.json")]) == 4
    (alone,) = launch([experiment(tmp_path / "alone", seeds=(1, 2))], Machines("cpu"))
    assert [record["results"] for record in found] == [record["results"] for record in alone]


def test_no_cluster_answers() -> None:
    pytest.importorskip("ray")
    with pytest.raises(SettingsError, match=r"no Ray cluster answers at 'auto'"):
        open_cluster(Machines("cpu", cluster="auto")).__enter__()
