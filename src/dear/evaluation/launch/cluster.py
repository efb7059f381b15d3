"""Runs on a Ray cluster: one actor per slot; a lost actor is replaced and its run repeated elsewhere. As with
processes, an actor goes on with the data set and seed that it has begun.
"""

import logging
import os
import signal
import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from dear.backbone.device import use_threads
from dear.errors import DearError, SettingsError, installation
from dear.evaluation.experiment import Experiment, Run
from dear.evaluation.launch.processes import LostWorkerError, Waiting, with_method
from dear.evaluation.records import read_record
from dear.evaluation.resolve import run_name
from dear.evaluation.runs import Runner, RunProgress, run_one
from dear.writing import output_file, write_json

Job = TypeVar("Job", bound=Hashable)
TRIES = 4
"""A run that loses this many workers is given up: it is probably the run that kills them."""


class Worker:
    """The Ray actor: makes runs one after the other on its machine, in the folder where the command was given
    if it has that one, which relative paths of data begin at.
    """

    def __init__(self, device: str, threads: int, folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        use_threads(threads)
        self.runner = Runner(device)

    def run(self, experiment: Experiment, run: Run) -> tuple[dict[str, Any], bytes | None] | str:
        """The record and the file of predictions, or the message of a DearError."""
        try:
            with_method(run.setup.method)
            record = run_one(**self.runner.prepared(experiment, run))
            predictions = _file(experiment, run, record, ".npz")
            return record, predictions.read_bytes() if predictions.exists() else None
        except DearError as error:
            return str(error)


def on_cluster(
    tasks: Mapping[Job, tuple[Experiment, Run]],
    address: str,
    *,
    device: str,
    gpus: float | None,
    tell: RunProgress,
    slots: int | None = None,
) -> dict[Job, dict[str, Any]]:
    """Make all runs on a cluster; returns their records, each of which is also written here once.

    ``address`` is "local" (a temporary cluster on this machine), "auto" (the running cluster) or
    ray://HOST:PORT. Every machine needs this version of dear, the data sets and the weights. If the
    folder of records is shared, a lost run resumes from its checkpoint. Raises SettingsError without Ray or a
    cluster, the first error of a run, and LostWorkerError for a run that loses too many workers.
    """
    ray = _connect(address, slots)
    try:
        return _collect(ray, tasks, _gpus(ray, device, gpus), tell, slots)
    finally:
        ray.shutdown()


def _collect(
    ray: Any,
    tasks: Mapping[Job, tuple[Experiment, Run]],
    gpus: float,
    tell: RunProgress,
    slots: int | None,
) -> dict[Job, dict[str, Any]]:
    def hire() -> Any:
        actor = ray.remote(Worker).options(num_cpus=1, num_gpus=gpus)
        return actor.remote("cuda" if gpus else "cpu", 1, os.getcwd())

    waiting = Waiting({job: (run.dataset, run.seed) for job, (_, run) in tasks.items()})
    tries, records = dict.fromkeys(tasks, 0), dict[Job, dict[str, Any]]()
    idle = {number: hire() for number in range(min(slots or _slots(ray, gpus), len(tasks)))}
    busy: dict[Any, tuple[int, Job, Any]] = {}
    while len(records) < len(tasks):
        for number in [*idle]:
            if (job := waiting.next_for(number)) is None:
                break
            worker = idle.pop(number)
            tries[job] += 1
            busy[worker.run.remote(*tasks[job])] = number, job, worker
        (ready,), _ = ray.wait([*busy], num_returns=1)
        number, job, worker = busy.pop(ready)
        try:
            result = ray.get(ready)
        except ray.exceptions.RayActorError as error:
            if tries[job] >= TRIES:
                raise LostWorkerError(
                    f"{tasks[job][1].dataset}, {tasks[job][1].setup.method}: {TRIES} workers were lost in "
                    "this run. Is there enough memory? Repeat the command to continue."
                ) from error
            waiting.put_back(job)
            idle[number] = hire()
            continue
        if isinstance(result, str):
            raise DearError(result)
        record = records[job] = _stored(*tasks[job], *result)
        idle[number] = worker
        tell(f"{record['dataset']['name']}-{record['method']}", None)
    return records


def _stored(
    experiment: Experiment, run: Run, record: dict[str, Any], predictions: bytes | None
) -> dict[str, Any]:
    """Write a record and its predictions here, unless the worker has written them to the same folder."""
    path = _file(experiment, run, record, ".json")
    if path.exists():
        return read_record(path, key=record["key"], variant=record["variant"])
    if predictions is not None:
        with output_file(path.with_suffix(".npz")) as file:
            file.write(predictions)
    write_json(path, record)
    return record


def _file(experiment: Experiment, run: Run, record: Mapping[str, Any], ending: str) -> Path:
    parts = record["dataset"]["name"], run.setup, run.seed, run.shots, record["key"]
    return experiment.out / f"{run_name(run.protocol, *parts)}{ending}"


def _connect(address: str, slots: int | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise SettingsError(f"--cluster needs Ray: {installation('cluster')}.") from error
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        options |= {"include_dashboard": False, "num_cpus": slots}
    try:
        # Its workers import from the folder that is the current one here, which may be a stranger's.
        with _own_sigterm():
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise SettingsError(
            f"no Ray cluster answers at {address!r}: {str(error).splitlines()[0]} "
            "Start one with 'ray start --head', or use --cluster local."
        ) from error
    return ray


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Preserve the SIGTERM handler: in the main thread ``ray.init`` installs one that exits with code 15."""
    ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def _gpus(ray: Any, device: str, gpus: float | None) -> float:
    """GPUs per run: as requested, else one if the cluster has any and the device allows it."""
    available = float(ray.cluster_resources().get("GPU", 0))
    per_run = gpus if gpus is not None else float(device != "cpu" and available > 0)
    if per_run > available:
        raise SettingsError(
            f"{per_run:g} GPUs per run were requested, but the cluster has {available:g}: lower --gpus."
        )
    return per_run


def _slots(ray: Any, gpus: float) -> int:
    resources = ray.cluster_resources()
    cores = int(resources.get("CPU", 1))
    return max(1, min(cores, int(resources["GPU"] / gpus)) if gpus else cores)
