"""Runs in parallel, each process on its own GPU or its share of the cores."""

import multiprocessing
import os
import queue
import threading
from collections.abc import Hashable, Mapping
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

from dear.backbone.device import find_device
from dear.errors import DearError
from dear.evaluation.experiment import Experiment, Run
from dear.evaluation.runs import Runner, RunProgress

Job = TypeVar("Job", bound=Hashable)
WAIT = 1.0


class LostWorkerError(DearError):
    """A process ended in the middle of a run: killed, or out of memory."""


def in_processes(
    tasks: Mapping[Job, tuple[Experiment, Run]], jobs: int, *, device: str, tell: RunProgress
) -> dict[Job, dict[str, Any]]:
    """Make all runs, ``jobs`` at a time; returns their records. Raises the first error of a run, and
    LostWorkerError if a process is lost; records of finished runs are kept.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share CUDA and threads
    waiting, results = context.Queue(), context.Queue()
    waiting.cancel_join_thread()  # of an error or a signal: nobody takes the runs that still wait
    jobs = min(jobs, len(tasks))
    for task in tasks.items():
        waiting.put(task)
    workers: list[BaseProcess] = []
    for number in range(jobs):
        waiting.put(None)
        place = _device(device, number)
        threads = max(1, torch.get_num_threads() // jobs)
        workers.append(context.Process(target=work, args=(place, threads, waiting, results), daemon=True))
        workers[-1].start()
    found: dict[Job, dict[str, Any]] = {}
    try:
        while len(found) < len(tasks):
            kind, job, value = _next(results, workers)
            if kind == "error":
                raise value
            if kind == "progress":
                tell(*value)
            else:
                found[job] = value
    finally:
        for worker in workers:
            worker.terminate() if len(found) < len(tasks) else worker.join()
    return found


def work(device: str, threads: int, waiting: Any, results: Any) -> None:
    """Main function of a worker process: make runs until none is left, and report their results. It exits
    with its parent, which holds the lock on the folder of records.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    runner = Runner(device)
    for job, (experiment, run) in iter(waiting.get, None):
        try:
            record = runner.run(experiment, run, lambda *value: results.put(("progress", None, value)))
        except DearError as error:
            results.put(("error", job, DearError(str(error))))
            return
        results.put(("record", job, record))


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
    found = find_device(device)
    if found.type != "cuda" or found.index is not None:
        return str(found)
    return f"cuda:{number % torch.cuda.device_count()}"
