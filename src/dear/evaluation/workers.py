"""Runs on several workers: processes of this machine, each with its own GPU or its share of the cores, or
actors of a Ray cluster. A worker makes one run at a time, and prefers runs on the data set and seed of its
last one, because what these share is still in its memory.
"""

import logging
import multiprocessing
import os
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dear.backbone.device import find_device, threads_per_job, use_threads
from dear.errors import DearError, SettingsError, first_line, installation
from dear.evaluation.experiment import Experiment, Run
from dear.evaluation.runs import Runner, RunProgress, run_one, silent
from dear.methods.registry import METHODS, PATH, register
from dear.progress import TrainingStep
from dear.writing import output_file, write_json

RunResult = tuple[dict[str, Any], Path, bytes | None, list[tuple[Any, ...]]] | str
"""The record of a run, its file, the predictions if they were made on another machine, and warnings; or the
message of an error."""
WAIT = 0.1
"""Seconds between looks at the progress of processes."""
RETRIES = 3
"""A run on a cluster that loses more workers is given up: it is probably the run that kills them."""


class LostWorkerError(DearError):
    """A worker ended in the middle of a run: killed, or out of memory."""


class Worker(Runner):
    """A runner in a process of its own.

    On another machine ``folder`` is where the command was given: relative paths of data begin there if it
    exists, and predictions are sent back with the record.
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
        super().__init__(device)
        self.remote, self.progress = folder is not None, progress

    def make(self, experiment: Experiment, run: Run) -> RunResult:
        """Make a run."""
        if (name := run.setup.method) not in METHODS and PATH.fullmatch(name):
            register(name)  # as the process that sent the run had
        try:
            with warnings.catch_warnings(record=True) as notes:
                context, resolved = self.prepare(experiment, run)
                record = run_one(context, resolved, out=experiment.out, progress=self.progress)
        except DearError as error:
            return str(error)
        path = resolved.file(experiment.out)
        predictions = path.with_suffix(".npz")
        content = predictions.read_bytes() if self.remote and predictions.exists() else None
        places = [(str(note.message), note.category, note.filename, note.lineno) for note in notes]
        return record, path, content, places


@dataclass(frozen=True)
class Pool:
    """Workers that are ready.

    Attributes:
        size: How many there are.
        submit: Gives a run to the worker of a number.
        lost_error: What the result of a run raises if its worker is gone.
        show_progress: Shows the steps that workers have reported since the last call.
    """

    size: int
    submit: Callable[[int, Experiment, Run], Future[RunResult]]
    lost_error: type[Exception]
    show_progress: Callable[[], None] = lambda: None


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
    waiting, groups = [*range(len(tasks))], [(run.dataset, run.seed) for _, run in tasks]
    group_of = dict[int, Hashable]()
    idle, running = [*range(pool.size)], dict[Future[RunResult], tuple[int, int]]()
    records, warned = dict[int, dict[str, Any]](), {*notes}
    while len(records) < len(tasks):
        while idle and waiting:
            slot = idle.pop(0)
            number = choose_run(slot, waiting, groups, group_of)
            waiting.remove(number)
            running[pool.submit(slot, *tasks[number])] = slot, number
        done, _ = wait(running, timeout=WAIT, return_when=FIRST_COMPLETED)
        pool.show_progress()
        for future in done:
            slot, number = running.pop(future)
            idle.append(slot)
            try:
                result = future.result()
            except pool.lost_error as error:
                run = tasks[number][1]
                raise LostWorkerError(
                    f"{run.dataset}, {run.setup.method}: a worker was lost in the middle of this run "
                    f"({first_line(error)}). Is there enough memory? Repeat the command to continue, with "
                    "fewer runs at a time."
                ) from error
            if isinstance(result, str):
                raise DearError(result)
            records[number], path, predictions, new_notes = result
            for note in new_notes:
                if note[0] not in warned:
                    warned.add(note[0])
                    warnings.showwarning(*note)
            if not path.exists():  # it was written on another machine
                if predictions is not None:
                    with output_file(path.with_suffix(".npz")) as file:
                        file.write(predictions)
                write_json(path, records[number])
            progress(path.stem, None)
    return [records[number] for number in range(len(tasks))]


def choose_run(
    slot: int, waiting: Sequence[int], groups: Sequence[Hashable], group_of: dict[int, Hashable]
) -> int:
    """Choose the next run of a worker from the ``waiting`` ones: one of the worker's group, as ``group_of``
    says, else of a group that no worker has, else of the group with the most runs left. Runs of a group share
    what they compute.
    """
    runs_left = Counter(groups[run] for run in waiting)
    if (group := group_of.get(slot)) not in runs_left:
        free = [group for group in runs_left if group not in group_of.values()]
        group = group_of[slot] = free[0] if free else max(runs_left, key=runs_left.__getitem__)
    return next(run for run in waiting if groups[run] == group)


@contextmanager
def open_processes(jobs: int, device: str, progress: RunProgress = silent) -> Iterator[Pool]:
    """Start processes on this machine, which take its GPUs in turn. They end with the block, or with this
    process.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share CUDA and threads
    steps = context.SimpleQueue()
    lifeline, other_end = context.Pipe(duplex=False)  # only this process holds the other end
    machine = find_device(device)
    devices = [str(machine)] * jobs
    if machine.type == "cuda" and machine.index is None:
        devices = [f"cuda:{slot % torch.cuda.device_count()}" for slot in range(jobs)]
    processes = [
        ProcessPoolExecutor(1, context, _begin, (lifeline, steps, name, threads_per_job(jobs)))
        for name in devices
    ]

    def show() -> None:
        while not steps.empty():
            progress(*steps.get())

    try:
        yield Pool(jobs, lambda slot, *task: processes[slot].submit(_make, *task), BrokenProcessPool, show)
    except BaseException:
        other_end.close()  # which ends the runs under way
        raise
    finally:
        for process in processes:
            process.shutdown()
        other_end.close()


def _begin(lifeline: Any, steps: Any, device: str, threads: int) -> None:
    """Start the worker of this process. The process ends once the other end of ``lifeline`` is closed."""
    global _worker

    def end() -> None:
        with suppress(EOFError):
            lifeline.recv()
        os._exit(1)  # safe at any moment, because files are renamed into place

    def tell(run: str, step: TrainingStep | None) -> None:
        if step is not None:  # the end is told when the record is here
            steps.put((run, step))

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    threading.Thread(target=end, daemon=True).start()
    _worker = Worker(device, threads, progress=tell)


_worker: Worker


def _make(experiment: Experiment, run: Run) -> RunResult:
    return _worker.make(experiment, run)


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
        )(Worker)  # fmt: skip
        start = "cuda" if per_run else "cpu", 1, os.getcwd()
        actors = [actor.remote(*start) for _ in range(min(room, most))]
        lost = ray.exceptions.RayActorError
        yield Pool(len(actors), lambda slot, *task: actors[slot].make.remote(*task).future(), lost)
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
