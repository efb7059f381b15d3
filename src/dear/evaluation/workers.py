"""What makes runs: this process, several of this machine, each with its own GPU or its share of the cores, or
the actors of a Ray cluster.

A run is made under its lock, so that commands share the runs of a folder. The system releases the locks of a
process that is killed.
"""

import logging
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch
from filelock import FileLock, Timeout

from dear.backbone.device import find_device, set_threads, threads_per_job, use_threads
from dear.errors import DearError, OutputError, SettingsError, installation
from dear.evaluation.experiment import Machines, Run
from dear.evaluation.records import find_record
from dear.evaluation.resolve import ResolvedRun
from dear.evaluation.runs import RunResult, files_beside, run_error, run_one, write_run
from dear.evaluation.session import Session
from dear.methods.registry import METHODS, PATH, register
from dear.progress import OnStep, TrainingStep, silent
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
        missing: The error of a data set, of weights or of roles that it needs; it then has no name.
        name: The name of its files.
        record: The path of its record, absolute because other processes may have other working folders.
        result: What came of it; None until then.
    """

    def __init__(self, run: Run, resolved: ResolvedRun | DearError) -> None:
        """Read the record, if there is one."""
        self.run = run
        self.result: RunResult | DearError | None = None
        self.missing = resolved if isinstance(resolved, DearError) else None
        if isinstance(resolved, DearError):
            return
        self.name, self.record = resolved.name, resolved.file(run.experiment.out.resolve())
        self._expected = {"key": resolved.key, "variant": resolved.setup.variant}
        self.result = self.read()

    def read(self) -> RunResult | DearError | None:
        """Its record, or what is wrong with it; None if there is none."""
        try:
            record = find_record(self.record, with_weights=self.run.experiment.keep_weights, **self._expected)
        except DearError as error:
            return error
        return None if record is None else RunResult(record)

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Context that holds the run; False if another one does. Raises OutputError."""
        folder = self.record.parent / UNFINISHED
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
            Path(lock.lock_file).unlink(missing_ok=True)  # while locked: whoever opened it before notices
            lock.release()
            with suppress(OSError):  # there are others, or checkpoints
                folder.rmdir()

    def make(self, session: Session, on_step: OnStep = silent) -> RunResult | DearError | None:
        """What comes of the run, or the error that it fails with; None if another command makes it. The
        traceback of a bug goes to stderr. Other data sets leave the memory, and the number of threads of this
        process is set.
        """
        run, keep_weights = self.run, self.run.experiment.keep_weights
        with self.lock() as is_locked:
            if not is_locked:
                return None
            if (result := self.read()) is not None:
                return result
            if (name := run.setup.method) not in METHODS and PATH.fullmatch(name):
                register(name)  # as in the process that sent the run
            try:
                with warnings.catch_warnings(record=True) as notes:
                    session.release_datasets(but=run.data)
                    resolved = session.resolve_run(run)
                    if session.device.type == "cpu":
                        set_threads(*(each.clip for each in (resolved, resolved.teacher) if each is not None))
                    out = self.record.parent
                    record = run_one(session, resolved, out=out, keep_weights=keep_weights, on_step=on_step)
            except Exception as error:
                return run_error(error, run.setup)
        return RunResult(
            record, [(str(note.message), note.category, note.filename, note.lineno) for note in notes]
        )


Message: TypeAlias = TrainingStep | RunResult | DearError
"""What is told of a run: a step of its training, or what came of it."""
Tell = Callable[[Task, Message], None]


def wait_for_others(tasks: Sequence[Task]) -> None:
    """Wait until another command has ended one of the runs."""
    while True:
        for task in tasks:
            with task.lock() as is_locked:
                if is_locked:
                    return
        time.sleep(WAIT)


def deal(
    tasks: Sequence[Task],
    workers: Sequence[Any],
    start: Callable[[Any, Task], Any],
    receive: Callable[[Sequence[Any]], Iterable[tuple[Any, Message | None]]],
    tell: Tell,
) -> None:
    """Let each of some workers make one run after the other. ``start`` begins one and returns a handle, and
    ``receive`` waits for what some of the handles tell: None if another command makes the run.

    A worker begins with its own part of the list, because neighbors share what they compute of their data,
    and goes on with the end of the longest part. One that is lost gets no other run.
    """
    count, busy = len(workers), dict[Any, tuple[Any, list[Task], Task]]()
    parts = [[*tasks[len(tasks) * n // count : len(tasks) * (n + 1) // count]] for n in range(count)]

    def start_next(worker: Any, part: list[Task]) -> None:
        rest = part or max(parts, key=len)
        if rest:
            task = rest.pop(0 if rest is part else -1)
            busy[start(worker, task)] = worker, part, task

    for worker, part in zip(workers, parts, strict=True):
        start_next(worker, part)
    while busy:
        for handle, message in receive([*busy]):
            worker, part, task = busy[handle]
            if isinstance(message, TrainingStep):
                tell(task, message)
                continue
            del busy[handle]
            if isinstance(message, LostWorkerError):
                message = task.read() or message
            else:
                start_next(worker, part)
            if message is not None:
                tell(task, message)


def make_runs_in_processes(tasks: Sequence[Task], tell: Tell, *, machines: Machines) -> None:
    """Make the runs that no other command makes in processes of this machine, which take its GPUs in turn and
    end with this process. If one is lost, its run has failed, and the others go on.
    """
    device, jobs = find_device(machines.device), min(machines.jobs, len(tasks))
    context = multiprocessing.get_context("spawn")  # a fork would share CUDA and threads
    processes = dict[Any, Any]()

    def start(connection: Any, task: Task) -> Any:
        with suppress(OSError):  # it is lost, which receiving tells
            connection.send(task)
        return connection

    def receive(connections: Sequence[Any]) -> Iterator[tuple[Any, Message | None]]:
        connection: Any
        for connection in wait(connections):
            try:
                yield connection, connection.recv()
            except (EOFError, OSError):
                yield connection, LostWorkerError()

    try:
        for job in range(jobs):
            here, there = context.Pipe()  # of each process its own: one that is killed may hold a lock
            each = f"cuda:{job % torch.cuda.device_count()}" if device.type == "cuda" else str(device)
            processes[here] = context.Process(
                target=_make_received, args=(there, each, threads_per_job(jobs))
            )
            processes[here].start()
            there.close()
        deal(tasks, [*processes], start, receive, tell)
    finally:
        for connection, process in processes.items():
            connection.close()  # which ends the process
            process.join()
        for task in tasks:
            if not isinstance(task.result, RunResult):
                with task.lock():  # removes the lock of a process that was killed
                    pass


def _make_received(connection: Any, device: str, threads: int) -> None:
    """Make the runs that come through a connection, until its other end is closed."""
    tasks = SimpleQueue[Task]()

    def receive() -> None:
        with suppress(EOFError, OSError):
            while True:
                tasks.put(connection.recv())
        os._exit(1)  # safe at any moment, because files are renamed into place

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    threading.Thread(target=receive, daemon=True).start()
    use_threads(threads)
    if torch.device(device).index is not None:
        torch.cuda.set_device(device)  # else whatever names no device begins a context on the first GPU
    session = Session(device)
    while True:
        connection.send(tasks.get().make(session, connection.send))


class RemoteWorker:
    """A session on a machine that may not share the folder of records. ``folder`` is where the command was
    given: there relative paths of data begin, if it exists.
    """

    def __init__(self, device: str, folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        use_threads(1)
        self.session = Session(device)

    def make(self, task: Task) -> RunResult | DearError | None:
        """What comes of a run, with the files beside its record; None if another command makes it."""
        result = task.make(self.session)
        return result._replace(files=files_beside(task.record)) if isinstance(result, RunResult) else result


@contextmanager
def open_cluster(machines: Machines) -> Iterator[tuple[torch.device, Callable[[Sequence[Task], Tell], None]]]:
    """The Ray cluster of some machines: "local" (a temporary one on this machine), "auto" (the running one)
    or ray://HOST:PORT. Yields what it computes on, and what makes the runs there that no other command makes.

    Every machine needs this version of dear, the data sets and the weights. Ray replaces a lost actor and
    repeats its run, elsewhere if the machine is gone; if the folder of records is shared, it resumes from its
    checkpoint; otherwise the records are written here. Raises SettingsError without Ray or a cluster, or for
    more GPUs per run than there are.
    """
    ray = connect_ray(str(machines.cluster))
    try:
        resources = ray.cluster_resources()
        available, cores = float(resources.get("GPU", 0)), int(resources.get("CPU", 1))
        gpus = float(machines.device != "cpu" and available > 0) if machines.gpus is None else machines.gpus
        if gpus > available:
            raise SettingsError(
                f"{gpus:g} GPUs per run were requested, but the cluster has {available:g}: lower --gpus."
            )
        at_a_time = max(1, min(cores, int(available / gpus)) if gpus else cores)
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": RETRIES}
        device, remote = torch.device("cuda" if gpus else "cpu"), ray.remote(**options)(RemoteWorker).remote

        def receive(references: Sequence[Any]) -> Iterator[tuple[Any, Message | None]]:
            for reference in ray.wait(references)[0]:
                try:
                    yield reference, ray.get(reference)
                except ray.exceptions.RayActorError:
                    yield reference, LostWorkerError()

        def make_runs(tasks: Sequence[Task], tell: Tell) -> None:
            def tell_written(task: Task, message: Message) -> None:
                if isinstance(message, RunResult) and task.read() is None:
                    write_run(task.record, message.record, message.files or {})
                tell(task, message)

            workers = [remote(device.type, os.getcwd()) for _ in range(min(at_a_time, len(tasks)))]
            deal(tasks, workers, lambda worker, task: worker.make.remote(task), receive, tell_written)

        yield device, make_runs
    finally:
        ray.shutdown()


def connect_ray(address: str) -> Any:
    """The library ray, connected to a cluster: "local" (a temporary one on this machine), "auto" or an
    address. Raises SettingsError without Ray or a cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what is wrong is told by Python
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
