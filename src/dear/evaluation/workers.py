"""The loop that makes runs: in this process, in several of this machine, each with its own GPU or its share
of the cores, or with the actors of a Ray cluster.

It makes each run that has neither a record nor a holder: it locks the run, makes it and releases it. So loops
and commands share the runs of a folder. The system releases the locks of a process that is killed.
"""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeAlias

import torch
from filelock import FileLock, Timeout

from dear.backbone.device import find_device, threads_per_job, use_threads
from dear.errors import DearError, OutputError, SettingsError, installation
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.records import find_record
from dear.evaluation.runs import RunResult, files_beside, make_run, write_run
from dear.evaluation.session import Session
from dear.progress import TrainingStep
from dear.writing import UNFINISHED

WAIT = 0.1
"""Seconds between looks at runs that other commands make."""
RETRIES = 3
"""A run on a cluster that loses more workers is given up: it is probably the run that kills them."""


class LostWorkerError(DearError):
    """A worker ended in the middle of a run: killed, or out of memory."""

    def __init__(self) -> None:
        super().__init__(
            "a worker was lost in the middle of this run. Is there enough memory? Repeat the command to "
            "continue, with fewer runs at a time."
        )


class Task:
    """A run to make, and where its record will be.

    Attributes:
        name: The name of its files; of a run that cannot be resolved, data set and method.
        result: What came of it; None until then.
    """

    def __init__(self, session: Session, run: Experiment) -> None:
        """Resolve the run, and read its record if there is one."""
        facts, self.run = run.run_facts(), run
        self.name = f"{facts['dataset']}-{facts['method']}"
        self.result: RunResult | DearError | None = None
        try:
            resolved = session.resolve_run(run)
        except DearError as error:
            self.result = error
            return
        self.name, self.record = resolved.name, resolved.file(run.out)
        self._expected = {"key": resolved.key, "variant": resolved.setup.variant}
        self.result = self.read()

    def read(self) -> RunResult | DearError | None:
        """Its record, or what is wrong with it; None if there is none."""
        try:
            record = find_record(self.record, with_weights=self.run.keep_weights, **self._expected)
        except DearError as error:
            return error
        return None if record is None else RunResult(record)

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Context that holds the run; False if another one does. Raises OutputError."""
        folder = self.run.out / UNFINISHED
        lock = FileLock(folder / f"{self.name}.lock", timeout=0)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (Timeout, FileNotFoundError):  # or the holder has just removed the folder
            yield False
            return
        except OSError as error:
            raise OutputError(f"cannot lock a run in {folder}: {error}; choose another --out.") from error
        try:
            yield True
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)  # still held: who opened it before sees it is gone
            lock.release()
            with suppress(OSError):  # there are others, or checkpoints
                folder.rmdir()


Message: TypeAlias = TrainingStep | RunResult | DearError | None
"""What is told of a run: a step of its training, what came of it, or that another command holds it (None)."""
Tell = Callable[[int, Message], None]
"""Called with the number of a run among the tasks."""


def make_runs_here(
    tasks: Sequence[Task],
    session: Session,
    tell: Tell,
    begun: MutableSequence[int] | None = None,
    start: int = 0,
) -> None:
    """Make each run that has neither a record nor a holder, first those from ``start`` on, and wait for those
    of other commands. ``begun`` has 1 for each that a loop of this command has begun: none begins it again,
    whatever comes of it.
    """
    begun = [0] * len(tasks) if begun is None else begun
    waiting = [*range(start, len(tasks)), *range(start)]
    while waiting := [number for number in waiting if not begun[number]]:
        for number in waiting:
            if begun[number]:
                continue
            task = tasks[number]
            with task.lock() as is_locked:
                if not is_locked or begun[number]:  # in the meantime
                    continue
                begun[number] = 1
                result = task.read() or make_run(session, task.run, partial(tell, number))
            tell(number, result)
        if not any(begun[number] for number in waiting):
            time.sleep(WAIT)
            if not begun[waiting[0]]:
                tell(waiting[0], None)


def make_runs_in_processes(tasks: Sequence[Task], machines: Machines, tell: Tell) -> None:
    """Make the runs in processes of this machine, which take its GPUs in turn and end with this process. They
    start at different places of the list, because neighbors share what they compute of their data. If one is
    lost, its run has failed, and the others go on.
    """
    device, jobs = find_device(machines.device), min(machines.jobs, len(tasks))
    context = multiprocessing.get_context("spawn")  # a fork would share CUDA and threads
    begun, processes = context.RawArray("b", len(tasks)), dict[Any, Any]()
    try:
        for job in range(jobs):
            here, there = context.Pipe()  # of each process its own: one that is killed may hold a lock
            each = f"cuda:{job % torch.cuda.device_count()}" if device.type == "cuda" else str(device)
            options = there, each, threads_per_job(jobs), tasks, begun, len(tasks) * job // jobs
            processes[here] = context.Process(target=_run_loop, args=options)
            processes[here].start()
            there.close()
        while processes:
            connection: Any
            for connection in wait([*processes]):
                try:
                    number, message = connection.recv()
                except (EOFError, OSError):
                    processes.pop(connection).join()
                else:
                    tell(number, message)
    finally:
        for connection, process in processes.items():
            connection.close()  # which ends the process
            process.join()
        for number, task in enumerate(tasks):
            if begun[number] and task.result is None:
                with task.lock():  # removes the lock of a process that was killed
                    pass
    tell_lost(tasks, tell)


def tell_lost(tasks: Sequence[Task], tell: Tell) -> None:
    """Tell of the runs that were lost with their workers; the record may be there."""
    for number, task in enumerate(tasks):
        if task.result is None:
            tell(number, task.read() or LostWorkerError())


def _run_loop(connection: Any, device: str, threads: int, tasks: Sequence[Task], *place: Any) -> None:
    """The loop of a process, which ends once the other end of ``connection`` is closed."""

    def end() -> None:
        with suppress(EOFError, OSError):
            connection.recv()
        os._exit(1)  # safe at any moment, because files are renamed into place

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    threading.Thread(target=end, daemon=True).start()
    use_threads(threads)
    if torch.device(device).index is not None:
        torch.cuda.set_device(device)  # else whatever names no device begins a context on the first GPU
    make_runs_here(tasks, Session(device), lambda *message: connection.send(message), *place)


class RemoteWorker:
    """A session on a machine that may not share the folder of records. ``folder`` is where the command was
    given: there relative paths of data begin, if it exists.
    """

    def __init__(self, device: str, folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        use_threads(1)
        self.session = Session(device)

    def make(self, number: int, task: Task) -> tuple[int, RunResult | DearError | None]:
        """What came of a run, with the files beside its record; None if another command makes it."""
        with task.lock() as is_locked:
            if not is_locked:
                time.sleep(WAIT)
                return number, None
            result = task.read() or make_run(self.session, task.run)
        if isinstance(result, RunResult):
            result = result._replace(files=files_beside(task.record))
        return number, result


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster.

    Attributes:
        device: What its workers compute on.
        room: How many work at a time.
        start_worker: Starts an actor of `RemoteWorker`.
    """

    ray: Any
    device: torch.device
    room: int
    start_worker: Callable[[], Any]

    def make_runs(self, tasks: Sequence[Task], tell: Tell) -> None:
        """Make the runs on it. Their records are written here too, unless the folder is shared."""
        from ray.util import ActorPool

        workers: Any = ActorPool([self.start_worker() for _ in range(min(self.room, len(tasks)))])

        def submit(number: int) -> None:
            workers.submit(lambda worker, number: worker.make.remote(number, tasks[number]), number)

        for number in range(len(tasks)):
            submit(number)
        while workers.has_next():
            try:
                number, result = workers.get_next_unordered()
            except self.ray.exceptions.RayActorError:  # Ray has replaced it
                continue
            if result is None:
                submit(number)
            if isinstance(result, RunResult) and tasks[number].read() is None:
                write_run(tasks[number].record, result.record, result.files or {})
            tell(number, result)
        tell_lost(tasks, tell)


@contextmanager
def open_cluster(machines: Machines) -> Iterator[Cluster]:
    """The Ray cluster of some machines: "local" (a temporary one on this machine), "auto" (the running one)
    or ray://HOST:PORT.

    Every machine needs this version of dear, the data sets and the weights. Ray replaces a lost actor and
    repeats its run, elsewhere if the machine is gone; if the folder of records is shared, it resumes from its
    checkpoint. Raises SettingsError without Ray or a cluster, or for more GPUs per run than there are.
    """
    ray = _connect(str(machines.cluster))
    try:
        resources = ray.cluster_resources()
        available, cores = float(resources.get("GPU", 0)), int(resources.get("CPU", 1))
        gpus = float(machines.device != "cpu" and available > 0) if machines.gpus is None else machines.gpus
        if gpus > available:
            raise SettingsError(
                f"{gpus:g} GPUs per run were requested, but the cluster has {available:g}: lower --gpus."
            )
        room = max(1, min(cores, int(available / gpus)) if gpus else cores)
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": RETRIES}
        device = torch.device("cuda" if gpus else "cpu")
        start_worker = partial(ray.remote(**options)(RemoteWorker).remote, device.type, os.getcwd())
        yield Cluster(ray, device, room, start_worker)
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
