"""Make the runs of experiments: in this process, in several, or on a Ray cluster.

A run that has neither a record nor a holder is claimed by its lock, made and recorded. So several commands
share the work on one folder. The system releases the locks of a process that is killed.
"""

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from filelock import FileLock, Timeout

from dear.backbone.device import find_device
from dear.backbone.precision import device_precision
from dear.data.loading import held_notes
from dear.errors import DearError, OutputError, SettingsError, installation, plural, warn
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.records import find_record, make_folder
from dear.evaluation.runs import RunResult, check_experiment, write_run
from dear.evaluation.session import Session
from dear.evaluation.workers import Pool, open_pool
from dear.progress import RunProgress, TrainingStep, silent
from dear.writing import UNFINISHED

WAIT = 0.1
"""Seconds between looks at runs under way, here and in other commands."""


def launch(
    experiments: Sequence[Experiment], machines: Machines | None = None, progress: RunProgress = silent
) -> list[list[dict[str, Any]]]:
    """`make_runs`; returns the records, grouped by experiment. Raises the error of the first run that failed,
    once all others are made: called again, it makes only those without a record.
    """
    records, failed = make_runs(experiments, machines, progress)
    if failed:
        raise failed[0][1]
    return records


def make_runs(
    experiments: Sequence[Experiment], machines: Machines | None = None, progress: RunProgress = silent
) -> tuple[list[list[dict[str, Any]]], list[tuple[Experiment, DearError]]]:
    """Make all runs of some experiments; returns their records, grouped by experiment, and the runs that
    failed, with their errors. A run with a record is not repeated; one that another command makes is waited
    for, and made here if that leaves no record.

    Everything that can be checked is checked before the first run. Runs in one process compute what
    experiments share only once. Raises DearError for what concerns all runs; existing records are kept.
    """
    machines = machines or Machines()
    check_folders(experiments)
    check_device(machines, experiments)
    session = _open_session(machines)
    with ExitStack() as stack:
        if machines.log is not None:
            progress = stack.enter_context(log_epochs(machines.log, progress))
        with held_notes() as notes:
            for experiment in experiments:
                for error in check_experiment(session, experiment).values():
                    raise error
        for experiment in experiments:
            make_folder(experiment.out)
        by_experiment = [
            [Task(run) for run in replace(experiment, out=experiment.out.resolve()).runs()]
            for experiment in experiments
        ]
        tasks = [task for part in by_experiment for task in part]
        try:
            with open_pool(machines, session, len(tasks), progress) as pool:
                session.target = pool.device
                _make(tasks, session, pool, progress, {str(note.message) for note in notes})
        finally:  # after the workers have ended
            for task in tasks:
                task.release()
    records = [[task.result for task in part if isinstance(task.result, dict)] for part in by_experiment]
    return records, [(task.run, task.result) for task in tasks if isinstance(task.result, DearError)]


def check_device(machines: Machines, experiments: Sequence[Experiment]) -> None:
    """Raise SettingsError for contradictory training settings, an unavailable device, or a precision that it
    does not support. The devices of a cluster are checked there (`open_cluster`).
    """
    if machines.cluster is None:
        device = find_device(machines.device)
        for settings in (each for experiment in experiments for each in experiment.training_settings()):
            device_precision(settings.precision, device)


def check_folders(experiments: Sequence[Experiment]) -> None:
    """Raise OutputError for an output folder that cannot be written to, or that would mix the records of two
    experiments. Creates nothing.
    """
    writers: dict[Path, Experiment] = {}
    for experiment in experiments:
        out = experiment.out.absolute()
        if (other := writers.setdefault(out.resolve(), experiment)) is not experiment:
            names = [writer.recipe or writer.protocol.name for writer in (other, experiment)]
            raise OutputError(f"{' and '.join(names)} both write to {experiment.out}: give each its own out.")
        existing = next(path for path in (out, *out.parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            why = "no permission" if existing.is_dir() else f"{existing} is not a folder"
            raise OutputError(f"cannot write to {out}: {why}. Choose another place with --out.")


class Task:
    """A run to make, the lock of the process that makes it, and what came of it.

    Attributes:
        result: The record, or the error; None until then.
    """

    def __init__(self, run: Experiment) -> None:
        facts, self.run = run.run_facts(), run
        self.name = f"{facts['dataset']}-{facts['method']}"
        self.result: dict[str, Any] | DearError | None = None
        self._lock: FileLock | None = None

    def find(self, session: Session) -> DearError | None:
        """Resolve the run, and read its record if there is one. Returns the error if either fails."""
        try:
            resolved = session.resolve_run(self.run)
            self.name, self._expected = (
                resolved.name,
                {"key": resolved.key, "variant": resolved.setup.variant},
            )
            self.record = resolved.file(self.run.out)
            self.read()
        except DearError as error:
            self.result = error
            return error
        return None

    def read(self) -> bool:
        """Take the record if there is one. Raises DataError."""
        if self.result is None:
            self.result = find_record(self.record, with_weights=self.run.keep_weights, **self._expected)
        return self.result is not None

    def acquire(self) -> bool:
        """Lock the run; False if another process has it. Raises OutputError."""
        lock = FileLock(self.run.out / UNFINISHED / f"{self.name}.lock", timeout=0)
        path = Path(lock.lock_file)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (Timeout, FileNotFoundError):  # or the holder has just removed the folder
            return False
        except OSError as error:
            raise OutputError(f"cannot lock {path}: {error}; choose another place with --out.") from error
        self._lock = lock
        return True

    def claim(self) -> bool:
        """Lock the run to make it; False if another process has it, or if it turns out to have a result."""
        try:
            return not self.read() and self.acquire() and not self.read()  # written in the meantime
        except OutputError:
            raise
        except DearError as error:
            self.result = error
            return False

    def take(self, result: RunResult | DearError) -> None:
        """Take the result of the run, and write what was computed on another machine. Raises OutputError,
        because no other run could be written either.
        """
        if isinstance(result, OutputError):
            raise result
        if isinstance(result, RunResult) and not self.read():
            write_run(self.record, result.record, result.files or {})
        self.result = result.record if isinstance(result, RunResult) else result

    def release(self) -> None:
        """Release the lock, if this process has it."""
        if self._lock is not None:
            path = Path(self._lock.lock_file)
            path.unlink(missing_ok=True)  # still held: one who opened it before sees that it is gone
            self._lock.release()
            self._lock = None
            with suppress(OSError):  # there are others, or checkpoints
                path.parent.rmdir()


def _make(
    tasks: Sequence[Task], session: Session, pool: Pool, progress: RunProgress, shown: set[str]
) -> None:
    """Make the runs without a record. Workers begin at different places of the list and prefer the run after
    their last one, because neighbors are on the same data and share what they compute from it. ``shown`` are
    warnings that were printed before and are not repeated.
    """

    def end(task: Task) -> None:
        task.release()
        if isinstance(task.result, DearError) and len(tasks) > 1:  # told at once, as others go on
            warn(f"{task.name} failed: {task.result}")
        progress(task.name, None)

    def claim(start: int) -> int | None:
        for number in sorted(waiting, key=lambda number: (number < start, number)):
            claimed = waiting[number].claim()
            if claimed or waiting[number].result is not None:
                task = waiting.pop(number)
                if claimed:
                    return number
                end(task)
        return None

    for task in tasks:
        task.find(session)
        if task.result is not None:
            end(task)
    waiting = {number: task for number, task in enumerate(tasks) if task.result is None}
    start = [len(tasks) * slot // pool.size for slot in range(pool.size)]
    idle, running = [*range(pool.size)], dict[Future[RunResult | DearError], tuple[int, Task]]()
    is_told = False
    while waiting or running:
        while idle and (number := claim(start[idle[0]])) is not None:
            slot = idle.pop(0)
            start[slot] = number + 1
            running[pool.submit(slot, tasks[number].run)] = slot, tasks[number]
        if running:
            wait(running, timeout=WAIT, return_when=FIRST_COMPLETED)
        elif waiting:
            if not is_told:
                warn(f"waiting for {plural(len(waiting), 'run')} that another command makes")
            is_told = True
            time.sleep(WAIT)
        pool.show_progress()
        for future in [future for future in running if future.done()]:
            slot, task = running.pop(future)
            idle.append(slot)
            result = pool.result(future)
            task.take(result)
            for note in result.notes if isinstance(result, RunResult) else ():
                if note[0] not in shown:
                    shown.add(note[0])
                    warnings.showwarning(*note)
            end(task)


def _open_session(machines: Machines) -> Session:
    """The session of this process, which only resolves the runs where others make them."""
    if machines.cluster is not None:  # whose machines are not known yet
        return Session("cpu", target=torch.device("cpu" if machines.device == "cpu" else "cuda"))
    device = find_device(machines.device)
    return Session("cpu", target=device) if machines.jobs > 1 else Session(device)


@contextmanager
def log_epochs(folder: Path, progress: RunProgress) -> Iterator[RunProgress]:
    """A progress that also writes what is recorded of each epoch into a folder for TensorBoard, under the run
    and the method that is trained: the run's own, or its teacher. Raises OutputError for a folder that cannot
    be written to, SettingsError without TensorBoard.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise SettingsError(f"TensorBoard is not installed: {installation('log')}, or omit --log.") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error}. Choose another folder with --log.") from error
    with SummaryWriter(folder) as writer:

        def log(run: str, step: TrainingStep | None) -> None:
            progress(run, step)
            if step is not None:
                for name, value in step.record.items():
                    writer.add_scalar(f"{run}/{step.method}/{name}", value, step.epoch)

        yield log
