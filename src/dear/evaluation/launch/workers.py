"""Runs on many workers: processes of this machine, each on its own GPU or its share of the cores, or actors
of a Ray cluster. A worker makes one run at a time, and goes on with the data set and seed that it has begun,
of which it holds what runs share.
"""

import logging
import multiprocessing
import os
import signal
import threading
import warnings
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dear.backbone.device import find_device, threads_per_job, use_threads
from dear.errors import DearError, SettingsError, installation
from dear.evaluation.experiment import Experiment, Run
from dear.evaluation.resolve import run_name
from dear.evaluation.runs import Runner, RunProgress, run_one, silent
from dear.methods.registry import METHODS, PATH, register
from dear.progress import TrainingStep
from dear.writing import output_file, write_json

Made = tuple[dict[str, Any], bytes | None, list[tuple[Any, ...]]] | str
"""The record of a run, the file of its predictions if asked for, and warnings; or the message of an error."""
WAIT = 0.1
"""Seconds between looks at the progress of processes."""


class LostWorkerError(DearError):
    """A worker ended in the middle of a run: killed, or out of memory."""


class Worker:
    """Makes runs one after the other.

    On another machine ``folder`` is the one where the command was given, which relative paths of data begin
    at if it exists there; predictions then go back with the record.
    """

    def __init__(
        self, device: str, threads: int, folder: str | None = None, progress: RunProgress = silent
    ) -> None:
        if folder is not None:
            with suppress(OSError):
                os.chdir(folder)
        use_threads(threads)
        if torch.device(device).index is not None:
            torch.cuda.set_device(device)  # else whatever names no device begins a context on the first GPU
        self.runner, self.remote, self.progress = Runner(device), folder is not None, progress

    def make(self, experiment: Experiment, run: Run) -> Made:
        """Make a run."""
        if (name := run.setup.method) not in METHODS and PATH.fullmatch(name):
            register(name)  # as the process that sent the run had
        try:
            with warnings.catch_warnings(record=True) as notes:
                record = run_one(**self.runner.prepared(experiment, run), progress=self.progress)
        except DearError as error:
            return str(error)
        predictions = _file(experiment, run, record).with_suffix(".npz")
        content = predictions.read_bytes() if self.remote and predictions.exists() else None
        return record, content, [(str(one.message), one.category, one.filename, one.lineno) for one in notes]


@dataclass(frozen=True)
class Pool:
    """Where workers are hired.

    Attributes:
        hire: Starts the worker of a slot; returns the function that gives it a run.
        slots: The most workers at a time.
        lost: The error of a run whose worker is gone.
        tries: A run that loses this many workers is given up: it is probably the run that kills them.
        show: Tells what progress the workers have sent.
    """

    hire: Callable[[int], Callable[[Experiment, Run], Future[Made]]]
    slots: int
    lost: type[Exception]
    tries: int
    show: Callable[[], None] = lambda: None


def make_runs(
    tasks: Sequence[tuple[Experiment, Run]],
    pool: Pool,
    progress: RunProgress = silent,
    notes: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Make all runs; returns their records, each of which is written here too if its worker could not.

    Warnings of the workers are printed here, each once, except ``notes``, which were printed before. Raises
    the first error of a run, and LostWorkerError; records of finished runs are kept.
    """
    left, groups = [*range(len(tasks))], [(run.dataset, run.seed) for _, run in tasks]
    begun = dict[int, Hashable]()
    idle = {slot: pool.hire(slot) for slot in range(min(pool.slots, len(tasks)))}
    busy: dict[Future[Made], tuple[int, int, Any]] = {}
    tries, records, warned = Counter[int](), dict[int, dict[str, Any]](), {*notes}
    while len(records) < len(tasks):
        for slot in [*idle][: len(left)]:
            number, give = choose_run(slot, left, groups, begun), idle.pop(slot)
            left.remove(number)
            tries[number] += 1
            busy[give(*tasks[number])] = slot, number, give
        done, _ = wait(busy, timeout=WAIT, return_when=FIRST_COMPLETED)
        pool.show()
        for future in done:
            slot, number, idle[slot] = busy.pop(future)
            try:
                made = future.result()
            except pool.lost as error:
                if tries[number] >= pool.tries:
                    raise _lost(tasks[number][1]) from error
                insort(left, number)
                idle[slot] = pool.hire(slot)
                continue
            if isinstance(made, str):
                raise DearError(made)
            records[number], predictions, found = made
            for note in found:
                if note[0] not in warned:
                    warned.add(note[0])
                    warnings.showwarning(*note)
            progress(_store(*tasks[number], records[number], predictions).stem, None)
    return [records[number] for number in range(len(tasks))]


def _lost(run: Run) -> LostWorkerError:
    return LostWorkerError(
        f"{run.dataset}, {run.setup.method}: a worker was lost in the middle of this run. Is there enough "
        "memory? Repeat the command to continue, with fewer runs at a time."
    )


def _store(experiment: Experiment, run: Run, record: dict[str, Any], predictions: bytes | None) -> Path:
    """Write a record and its predictions here, unless the worker has written them to the same folder."""
    path = _file(experiment, run, record)
    if not path.exists():
        if predictions is not None:
            with output_file(path.with_suffix(".npz")) as file:
                file.write(predictions)
        write_json(path, record)
    return path


def _file(experiment: Experiment, run: Run, record: Mapping[str, Any]) -> Path:
    parts = record["dataset"]["name"], run.setup, run.seed, run.shots, record["key"]
    return experiment.out / f"{run_name(run.protocol, *parts)}.json"


def choose_run(slot: int, left: Sequence[int], groups: Sequence[Hashable], begun: dict[int, Hashable]) -> int:
    """The run, of those ``left``, that a slot makes next: of the group that it has ``begun``, else of one
    that no slot has, else of the one with the most runs left. Runs of a group share what they compute.
    """
    waiting = Counter(groups[run] for run in left)
    if (group := begun.get(slot)) not in waiting:
        free = [group for group in waiting if group not in begun.values()]
        group = begun[slot] = free[0] if free else max(waiting, key=waiting.__getitem__)
    return next(run for run in left if groups[run] == group)


@contextmanager
def open_processes(jobs: int, device: str, progress: RunProgress = silent) -> Iterator[Pool]:
    """Processes of this machine, on its GPUs in turn. They end with the block, and with this process."""
    context = multiprocessing.get_context("spawn")  # a fork would share CUDA and threads
    steps = context.SimpleQueue()
    alive, held = context.Pipe(duplex=False)  # only this process holds the other end
    pools: list[ProcessPoolExecutor] = []

    def hire(slot: int) -> Callable[[Experiment, Run], Future[Made]]:
        machine = find_device(device)
        if machine.type == "cuda" and machine.index is None:
            machine = torch.device("cuda", slot % torch.cuda.device_count())
        start = (alive, steps, str(machine), threads_per_job(jobs))
        pools.append(pool := ProcessPoolExecutor(1, context, _begin, start))
        return lambda experiment, run: pool.submit(_make, experiment, run)

    def show() -> None:
        while not steps.empty():
            progress(*steps.get())

    try:
        yield Pool(hire, jobs, BrokenProcessPool, tries=1, show=show)
    except BaseException:
        held.close()  # which ends the runs under way
        raise
    finally:
        for pool in pools:
            pool.shutdown()
        held.close()


def _begin(alive: Any, steps: Any, device: str, threads: int) -> None:
    """Start the worker of this process, which ends once nobody holds the other end of ``alive``."""
    global _make_run

    def end() -> None:
        with suppress(EOFError):
            alive.recv()
        os._exit(1)  # safe at any moment, because files are renamed into place

    def tell(run: str, step: TrainingStep | None) -> None:
        if step is not None:  # the end is told when the record is here
            steps.put((run, step))

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    threading.Thread(target=end, daemon=True).start()
    _make_run = Worker(device, threads, progress=tell).make


_make_run: Callable[[Experiment, Run], Made]


def _make(experiment: Experiment, run: Run) -> Made:
    return _make_run(experiment, run)


@contextmanager
def open_cluster(address: str, device: str, gpus: float | None, slots: int | None = None) -> Iterator[Pool]:
    """A Ray cluster: "local" (a temporary one on this machine), "auto" (the running one) or ray://HOST:PORT.

    Every machine needs this version of dear, the data sets and the weights. A lost actor is replaced and its
    run repeated elsewhere; if the folder of records is shared, it resumes from its checkpoint. Raises
    SettingsError without Ray or a cluster, or for more GPUs per run than there are.
    """
    ray = _connect(address, slots)
    try:
        resources = ray.cluster_resources()
        available, cores = float(resources.get("GPU", 0)), int(resources.get("CPU", 1))
        per_run = gpus if gpus is not None else float(device != "cpu" and available > 0)
        if per_run > available:
            raise SettingsError(
                f"{per_run:g} GPUs per run were requested, but the cluster has {available:g}: lower --gpus."
            )

        def hire(_slot: int) -> Callable[[Experiment, Run], Future[Made]]:
            actor = ray.remote(Worker).options(num_cpus=1, num_gpus=per_run)
            worker = actor.remote("cuda" if per_run else "cpu", 1, os.getcwd())
            return lambda *task: worker.make.remote(*task).future()

        most = max(1, min(cores, int(available / per_run)) if per_run else cores)
        yield Pool(hire, slots or most, ray.exceptions.RayActorError, tries=4)
    finally:
        ray.shutdown()


def _connect(address: str, slots: int | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise SettingsError(f"--cluster needs Ray: {installation('cluster')}.") from error
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        options |= {"include_dashboard": False, "num_cpus": slots}
    ours, handler = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, **options)
    except Exception as error:  # no common class: a ConnectionError, a start that takes too long
        raise SettingsError(
            f"no Ray cluster answers at {address!r}: {str(error).splitlines()[0]} "
            "Start one with 'ray start --head', or use --cluster local."
        ) from error
    finally:
        if ours:  # where ray.init installs a handler that exits with code 15
            signal.signal(signal.SIGTERM, handler)
    return ray
