"""Runs in parallel, each process on its own GPU or its share of the cores."""

import multiprocessing
import os
import queue
import threading
import warnings
from collections.abc import Collection, Hashable, Mapping
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

import torch

from dear.backbone.device import find_device, threads_per_job, use_threads
from dear.errors import DearError
from dear.evaluation.experiment import Experiment, Run
from dear.evaluation.runs import Runner, RunProgress, run_one
from dear.methods.registry import METHODS, PATH, register

Job = TypeVar("Job", bound=Hashable)
WAIT = 1.0


class LostWorkerError(DearError):
    """A process ended in the middle of a run: killed, or out of memory."""


def in_processes(
    tasks: Mapping[Job, tuple[Experiment, Run]],
    jobs: int,
    *,
    device: str,
    tell: RunProgress,
    notes: Collection[str] = (),
) -> dict[Job, dict[str, Any]]:
    """Make all runs, ``jobs`` at a time; returns their records. A process goes on with the data set and seed
    that it has begun, of which it holds what runs share. Warnings of the processes are printed here, each
    once, except ``notes``, which were printed before. Raises the first error of a run, and LostWorkerError
    if a process is lost; records of finished runs are kept.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share CUDA and threads
    results = context.Queue()
    waiting = Waiting({job: (run.dataset, run.seed) for job, (_, run) in tasks.items()})
    jobs = min(jobs, len(tasks))
    workers: list[BaseProcess] = []
    threads = threads_per_job(jobs)
    inboxes = [context.Queue() for _ in range(jobs)]

    def give(number: int) -> None:
        job = waiting.next_for(number)
        inboxes[number].put(None if job is None else (job, tasks[job]))

    for number, inbox in enumerate(inboxes):
        inbox.cancel_join_thread()  # of an error or a signal: nobody takes what still waits there
        give(number)
        machine = _device(device, number)
        arguments = (number, machine, threads, inbox, results)
        workers.append(context.Process(target=work, args=arguments, daemon=True))
        workers[-1].start()
    records: dict[Job, dict[str, Any]] = {}
    warned = {*notes}
    try:
        while len(records) < len(tasks):
            kind, job, value = _next(results, workers)
            if kind == "error":
                raise value
            if kind == "progress":
                tell(*value)
            elif kind == "warning":
                if value[0] not in warned:
                    warned.add(value[0])
                    warnings.showwarning(*value)
            else:
                number, records[job] = value
                give(number)
    finally:
        for worker in workers:
            worker.terminate() if len(records) < len(tasks) else worker.join()
    return records


class Waiting(Generic[Job]):
    """The runs that no worker has begun, in groups that share what they compute."""

    def __init__(self, groups: Mapping[Job, Hashable]) -> None:
        """``groups`` of the runs, in the order in which they are to be made."""
        self._groups = dict(groups)
        self._left: dict[Hashable, list[Job]] = {}
        self._with: dict[int, Hashable] = {}
        for job, group in groups.items():
            self._left.setdefault(group, []).append(job)

    def next_for(self, worker: int) -> Job | None:
        """The next run of a worker: of its own group, else of one that nobody works on, else of the one with
        the most runs left; None if no run is left.
        """
        waiting = {group: jobs for group, jobs in self._left.items() if jobs}
        if not waiting:
            return None
        group = self._with.get(worker)
        if group not in waiting:
            taken = {*self._with.values()}
            free = [group for group in waiting if group not in taken]
            group = free[0] if free else max(waiting, key=lambda group: len(waiting[group]))
        self._with[worker] = group
        return self._left[group].pop(0)

    def put_back(self, job: Job) -> None:
        """A run whose worker was lost is the next of its group."""
        self._left[self._groups[job]].insert(0, job)


def work(number: int, device: str, threads: int, inbox: Any, results: Any) -> None:
    """Main function of a worker process: make the runs that it is given until there are none, and report
    their results. It exits with its parent, which holds the lock on the folder of records.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    use_threads(threads)
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)  # else whatever names no device begins a context on the first GPU
    # Python would print them from here with the line of code that they come from.
    warnings.showwarning = lambda message, *where: results.put(("warning", None, (str(message), *where[:3])))
    runner = Runner(device)
    for job, (experiment, run) in iter(inbox.get, None):
        try:
            with_method(run.setup.method)
            record = run_one(
                **runner.prepared(experiment, run),
                progress=lambda *value: results.put(("progress", None, value)),
            )
        except DearError as error:
            results.put(("error", job, DearError(str(error))))
            return
        results.put(("record", job, (number, record)))


def with_method(name: str) -> None:
    """Make the method of a run known in a worker too: the process that sent the run had registered it."""
    if name not in METHODS and PATH.fullmatch(name):
        register(name)


def _end_with_parent() -> None:
    """Exit when the parent does. This is safe at any moment, because files are renamed into place."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _next(results: Any, workers: list[BaseProcess]) -> Any:
    while True:
        try:
            return results.get(timeout=WAIT)
        except queue.Empty:
            lost = [worker for worker in workers if worker.exitcode not in (None, 0)]
            if lost:
                raise LostWorkerError(
                    f"a process ended in the middle of a run (exit code {lost[0].exitcode}): out of memory? "
                    "Repeat the command, with fewer --jobs, to continue."
                ) from None


def _device(device: str, number: int) -> str:
    machine = find_device(device)
    if machine.type != "cuda" or machine.index is not None:
        return str(machine)
    return f"cuda:{number % torch.cuda.device_count()}"
