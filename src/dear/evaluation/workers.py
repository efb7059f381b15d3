"""Workers that make runs: processes of this machine, each with its own GPU or its share of the cores, or
actors of a Ray cluster.
"""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from dear.backbone.device import find_device, threads_per_job, use_threads
from dear.errors import DearError, SettingsError, first_line, installation
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.runs import RunResult, files_beside, make_run
from dear.evaluation.session import Session
from dear.progress import RunProgress, TrainingStep, silent

RETRIES = 3
"""A run on a cluster that loses more workers is given up: it is probably the run that kills them."""


class LostWorkerError(DearError):
    """A worker ended in the middle of a run: killed, or out of memory."""


@dataclass(frozen=True)
class Pool:
    """Workers that make one run at a time.

    Attributes:
        size: How many there are.
        device: What they compute on.
        submit: Gives a single run to the worker of a number.
        lost_error: What a future raises if its worker is gone; another takes its place.
        show_progress: Shows the steps that workers have reported since the last call.
    """

    size: int
    device: torch.device
    submit: Callable[[int, Experiment], Future[RunResult | DearError]]
    lost_error: type[Exception] = BrokenProcessPool
    show_progress: Callable[[], None] = lambda: None

    def result(self, future: Future[RunResult | DearError]) -> RunResult | DearError:
        """What came of a run that is done."""
        try:
            return future.result()
        except self.lost_error as error:
            return LostWorkerError(
                f"a worker was lost in the middle of this run ({first_line(error)}). Is there enough memory? "
                "Repeat the command to continue, with fewer runs at a time."
            )


@contextmanager
def open_pool(machines: Machines, session: Session, runs: int, progress: RunProgress) -> Iterator[Pool]:
    """The workers that make the runs; this process with its ``session`` unless others are asked for."""
    if machines.cluster is not None:
        with open_cluster(machines.cluster, machines.device, machines.gpus, runs) as pool:
            yield pool
    elif machines.jobs > 1:
        with open_processes(min(machines.jobs, runs), machines.device, progress) as pool:
            yield pool
    else:

        def make(_slot: int, run: Experiment) -> Future[RunResult | DearError]:
            result = Future[RunResult | DearError]()
            result.set_result(make_run(session, run, progress))
            return result

        yield Pool(1, session.device, make)


@contextmanager
def open_processes(jobs: int, device: str, progress: RunProgress = silent) -> Iterator[Pool]:
    """Start processes on this machine, which take its GPUs in turn. They end with the block, or with this
    process.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share CUDA and threads
    lifeline, other_end = context.Pipe(duplex=False)  # only this process holds the other end
    machine = find_device(device)
    devices = [str(machine)] * jobs
    if machine.type == "cuda" and machine.index is None:
        devices = [f"cuda:{slot % torch.cuda.device_count()}" for slot in range(jobs)]

    steps = dict[int, Any]()  # of each worker: one that is killed may hold the lock of its queue

    def start(slot: int) -> ProcessPoolExecutor:
        steps[slot] = context.SimpleQueue()
        options = lifeline, steps[slot], devices[slot], threads_per_job(jobs)
        return ProcessPoolExecutor(1, context, _begin, options)

    processes = [*map(start, range(jobs))]

    def submit(slot: int, run: Experiment) -> Future[RunResult | DearError]:
        try:
            return processes[slot].submit(_make, run)
        except BrokenProcessPool:  # with the run before
            processes[slot] = start(slot)
            return processes[slot].submit(_make, run)

    def show() -> None:
        for queue in steps.values():
            while not queue.empty():
                progress(*queue.get())

    try:
        yield Pool(jobs, machine, submit, show_progress=show)
    except BaseException:
        other_end.close()  # which ends the runs under way
        raise
    finally:
        for process in processes:
            process.shutdown()
        other_end.close()


def _begin(lifeline: Any, steps: Any, device: str, threads: int) -> None:
    """Open the session of this process, which ends once the other end of ``lifeline`` is closed."""
    global _session, _steps

    def end() -> None:
        with suppress(EOFError):
            lifeline.recv()
        os._exit(1)  # safe at any moment, because files are renamed into place

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    threading.Thread(target=end, daemon=True).start()
    use_threads(threads)
    if torch.device(device).index is not None:
        torch.cuda.set_device(device)  # else whatever names no device begins a context on the first GPU
    _session, _steps = Session(device), steps


_session: Session
_steps: Any


def _make(run: Experiment) -> RunResult | DearError:
    return make_run(_session, run, _tell)


def _tell(run: str, step: TrainingStep | None) -> None:
    _steps.put((run, step))


class RemoteWorker:
    """A session on a machine that may not share the folder of records. ``folder`` is where the command was
    given: there relative paths of data begin, if it exists.
    """

    def __init__(self, device: str, folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        use_threads(1)
        self.session = Session(device)

    def make(self, run: Experiment) -> RunResult | DearError:
        result = make_run(self.session, run)
        if isinstance(result, RunResult):
            path = self.session.records[result.record["key"]][1]
            if path is not None:
                result = result._replace(files=files_beside(path))
        return result


@contextmanager
def open_cluster(address: str, device: str, gpus: float | None, most: int) -> Iterator[Pool]:
    """At most so many actors of a Ray cluster: "local" (a temporary one on this machine), "auto" (the running
    one) or ray://HOST:PORT.

    Every machine needs this version of dear, the data sets and the weights. Ray replaces a lost actor and
    repeats its run, elsewhere if the machine is gone; if the folder of records is shared, it resumes from its
    checkpoint. Raises SettingsError without Ray or a cluster, or for more GPUs per run than there are.
    """
    ray = _connect(address)
    try:
        resources = ray.cluster_resources()
        available, cores = float(resources.get("GPU", 0)), int(resources.get("CPU", 1))
        per_run = gpus if gpus is not None else float(device != "cpu" and available > 0)
        if per_run > available:
            raise SettingsError(
                f"{per_run:g} GPUs per run were requested, but the cluster has {available:g}: lower --gpus."
            )
        room = max(1, min(cores, int(available / per_run)) if per_run else cores)
        actor = ray.remote(
            num_cpus=1, num_gpus=per_run, max_restarts=-1, max_task_retries=RETRIES
        )(RemoteWorker)  # fmt: skip
        machine, actors = torch.device("cuda" if per_run else "cpu"), dict[int, Any]()

        def submit(slot: int, run: Experiment) -> Any:
            if slot not in actors:
                actors[slot] = actor.remote(machine.type, os.getcwd())
            return actors[slot].make.remote(run).future()

        yield Pool(min(room, most), machine, submit, ray.exceptions.RayActorError)
    finally:
        ray.shutdown()


def _connect(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise SettingsError(f"--cluster needs Ray: {installation('cluster')}.") from error
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        options["include_dashboard"] = False
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, **options)
    except Exception as error:  # no common class: a ConnectionError, a start that takes too long
        raise SettingsError(
            f"no Ray cluster answers at {address!r}: {str(error).splitlines()[0]} "
            "Start one with 'ray start --head', or use --cluster local."
        ) from error
    finally:
        if in_main_thread:  # where ray.init installs a handler that exits with code 15
            signal.signal(signal.SIGTERM, handler)
    return ray
