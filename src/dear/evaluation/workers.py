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
from functools import partial
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


def read_result(run: Run) -> RunResult | DearError | None:
    """The record of a run, or what is wrong with it; None if there is none."""
    keep_weights, variant = run.experiment.keep_weights, run.setup.variant
    try:
        record = find_record(run.record, with_weights=keep_weights, key=run.key, variant=variant)
    except DearError as error:
        return error
    return None if record is None else RunResult(record)


@contextmanager
def lock_run(run: Run) -> Iterator[bool]:
    """Context that holds a run; False if another one does. Raises OutputError."""
    folder = run.record.parent / UNFINISHED
    lock = FileLock(folder / f"{run.record.stem}.lock", timeout=0)
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


def make_run(run: Run, session: Session, on_step: OnStep = silent) -> RunResult | DearError | None:
    """What comes of a run, or the error that it fails with; None if another command makes it. It is resolved
    again, because other processes get names alone. The traceback of a bug goes to stderr. Other data sets
    leave the memory, and the number of threads of this process is set.
    """
    keep_weights = run.experiment.keep_weights
    with lock_run(run) as is_locked:
        if not is_locked:
            return None
        if (result := read_result(run)) is not None:
            return result
        if (name := run.setup.method) not in METHODS and PATH.fullmatch(name):
            register(name)  # as in the process that sent the run
        try:
            with warnings.catch_warnings(record=True) as notes:
                session.release_datasets(but=run.data)
                resolved = session.resolve_run(run)
                if session.device.type == "cpu":
                    set_threads(*(each.clip for each in (resolved, resolved.teacher) if each is not None))
                out = run.record.parent
                record = run_one(session, resolved, out=out, keep_weights=keep_weights, on_step=on_step)
        except Exception as error:
            return run_error(error, run.setup)
    shown = [(str(note.message), note.category, note.filename, note.lineno) for note in notes]
    return RunResult(record, shown)


Message: TypeAlias = TrainingStep | RunResult | DearError
"""What is told of a run: a step of its training, or what came of it."""
OnMessage = Callable[[Run, Message], None]


def wait_for_others(runs: Sequence[Run]) -> None:
    """Wait until another command has ended one of the runs."""
    while True:
        for run in runs:
            with lock_run(run) as is_locked:
                if is_locked:
                    return
        time.sleep(WAIT)


def make_runs_here(runs: Sequence[Run], on_message: OnMessage, *, session: Session) -> None:
    """Make the runs that no other command makes in this process, one after the other."""
    for run in runs:
        if (result := make_run(run, session, partial(on_message, run))) is not None:
            on_message(run, result)


def deal(
    runs: Sequence[Run],
    workers: Sequence[Any],
    start: Callable[[Any, Run], Any],
    receive: Callable[[Sequence[Any]], Iterable[tuple[Any, Message | None]]],
    on_message: OnMessage,
) -> None:
    """Let each of some workers make one run after the other. ``start`` begins one and returns a handle, and
    ``receive`` waits for what some of the handles tell: None if another command makes the run.

    A worker begins with its own part of the list, because neighbors share what they compute of their data,
    and goes on with the end of the longest part. One that is lost gets no other run.
    """
    count, busy = len(workers), dict[Any, tuple[Any, list[Run], Run]]()
    parts = [[*runs[len(runs) * n // count : len(runs) * (n + 1) // count]] for n in range(count)]

    def start_next(worker: Any, part: list[Run]) -> None:
        rest = part or max(parts, key=len)
        if rest:
            run = rest.pop(0 if rest is part else -1)
            busy[start(worker, run)] = worker, part, run

    for worker, part in zip(workers, parts, strict=True):
        start_next(worker, part)
    while busy:
        for handle, message in receive([*busy]):
            worker, part, run = busy[handle]
            if not isinstance(message, TrainingStep):
                del busy[handle]
                if not isinstance(message, LostWorkerError):
                    start_next(worker, part)
            if message is not None:
                on_message(run, message)


def make_runs_in_processes(runs: Sequence[Run], on_message: OnMessage, *, machines: Machines) -> None:
    """Make the runs that no other command makes in processes of this machine, which take its GPUs in turn and
    end with this process. If one is lost, its run has failed, and the others go on.
    """
    device, jobs = find_device(machines.device), min(machines.jobs, len(runs))
    context = multiprocessing.get_context("spawn")  # a fork would share CUDA and threads
    processes = dict[Any, Any]()

    def start(connection: Any, run: Run) -> Any:
        with suppress(OSError):  # it is lost, which receiving tells
            connection.send(run)
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
        deal(runs, [*processes], start, receive, on_message)
    finally:
        for connection, process in processes.items():
            connection.close()  # which ends the process
            process.join()
        for run in runs:
            with lock_run(run):  # removes the lock of a process that was killed
                pass


def _make_received(connection: Any, device: str, threads: int) -> None:
    """Make the runs that come through a connection, until its other end is closed."""
    runs = SimpleQueue[Run]()

    def receive() -> None:
        with suppress(EOFError, OSError):
            while True:
                runs.put(connection.recv())
        os._exit(1)  # safe at any moment, because files are renamed into place

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    threading.Thread(target=receive, daemon=True).start()
    use_threads(threads)
    if torch.device(device).index is not None:
        torch.cuda.set_device(device)  # else whatever names no device begins a context on the first GPU
    session = Session(device)
    while True:
        connection.send(make_run(runs.get(), session, connection.send))


class RemoteWorker:
    """A session on a machine that may not share the folder of records. ``folder`` is where the command was
    given: there relative paths of data begin, if it exists.
    """

    def __init__(self, device: str, folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        use_threads(1)
        self.session = Session(device)

    def make(self, run: Run) -> RunResult | DearError | None:
        """What comes of a run, with the files beside its record; None if another command makes it."""
        result = make_run(run, self.session)
        return result._replace(files=files_beside(run.record)) if isinstance(result, RunResult) else result


@contextmanager
def open_cluster(
    machines: Machines,
) -> Iterator[tuple[torch.device, Callable[[Sequence[Run], OnMessage], None]]]:
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

        def make_remotely(runs: Sequence[Run], on_message: OnMessage) -> None:
            def write_result(run: Run, message: Message) -> None:
                if isinstance(message, RunResult) and read_result(run) is None:
                    write_run(run.record, message.record, message.files or {})
                on_message(run, message)

            workers = [remote(device.type, os.getcwd()) for _ in range(min(at_a_time, len(runs)))]
            deal(runs, workers, lambda worker, run: worker.make.remote(run), receive, write_result)

        yield device, make_remotely
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
