"""Make the runs of experiments: in this process, in several, or on a Ray cluster; or list them in a dry run.

A run that has neither a record nor a holder is claimed by its lock, made and recorded. So several commands
share the work on one folder. The system releases the locks of a process that is killed.
"""

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from dear.backbone.device import find_device
from dear.backbone.precision import device_precision
from dear.data.loading import held_notes
from dear.errors import DearError, OutputError, first_line, plural, warn
from dear.evaluation.experiment import Experiment, Machines, Run
from dear.evaluation.log import log_epochs
from dear.evaluation.records import make_folder, read_record
from dear.evaluation.runs import Runner, RunProgress, RunResult, silent
from dear.evaluation.workers import Pool, open_cluster, open_processes
from dear.reading.typed import shown
from dear.writing import UNFINISHED, output_file, write_json

MARK = ".recipe"
"""The file in a folder of records that names the recipe whose runs they are."""
WAIT = 0.1
"""Seconds between looks at runs under way, here and in other commands."""


class LostWorkerError(DearError):
    """A worker ended in the middle of a run: killed, or out of memory."""


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
) -> tuple[list[list[dict[str, Any]]], list[tuple[Run, DearError]]]:
    """Make all runs of some experiments; returns their records, grouped by experiment, and the runs that
    failed, with their errors. A run with a record is not repeated; one that another command makes is waited
    for, and made here if that leaves no record.

    Everything that can be checked is checked before the first run. Runs in one process compute what
    experiments share only once. Raises DearError for what concerns all runs; existing records are kept.
    """
    machines = machines or Machines()
    check_folders(experiments)
    check_device(machines, experiments)
    runner = _start_runner(machines)
    with ExitStack() as stack:
        if machines.log is not None:
            progress = stack.enter_context(log_epochs(machines.log, progress))
        return _make_runs(experiments, machines, runner, progress)


def _make_runs(
    experiments: Sequence[Experiment], machines: Machines, runner: Runner, progress: RunProgress
) -> tuple[list[list[dict[str, Any]]], list[tuple[Run, DearError]]]:
    with held_notes() as notes:
        for experiment in experiments:
            if (error := runner.check(experiment)) is not None:
                raise error
    for experiment in experiments:
        mark_folder(experiment)
    experiments = [replace(experiment, out=experiment.out.resolve()) for experiment in experiments]
    tasks = [(experiment, run) for experiment in experiments for run in experiment.runs()]
    sweep = Sweep(tasks, progress, {str(note.message) for note in notes})
    try:
        with open_pool(machines, runner, len(tasks), progress) as pool:
            runner.target = pool.device
            sweep.find(runner)
            sweep.make(pool)
    finally:  # after the workers have ended
        sweep.release()
    numbers = iter(range(len(tasks)))
    by_experiment = [[next(numbers) for _ in experiment.runs()] for experiment in experiments]
    records = [[sweep.records[n] for n in part if n in sweep.records] for part in by_experiment]
    return records, [(tasks[number][1], error) for number, error in sorted(sweep.failed.items())]


def list_runs(
    experiments: Sequence[Experiment], machines: Machines
) -> tuple[list[dict[str, Any]], str | None]:
    """The facts of each run of the experiments, with "done" if it has a record; if some cannot begin yet,
    because data or weights are missing, also the reason. Creates nothing. Raises DearError for any other
    error that would stop them.
    """
    check_folders(experiments)
    check_device(machines, experiments)
    runner, runs = Runner(machines.device), list[dict[str, Any]]()
    reason: str | None = None
    with held_notes():
        for experiment in experiments:
            missing = runner.check(experiment)
            reason = reason or (str(missing) if missing else None)
    for experiment in experiments:
        unavailable = set[tuple[str, ...]]()  # not sought again for each run
        for run in experiment.runs():
            names, done = (run.dataset, *run.targets), False
            if names not in unavailable:
                try:
                    place = RunPlace.of(runner, experiment, run)
                    done = place.record.exists() and bool(place.read())
                except DearError as error:
                    unavailable.add(names)
                    reason = reason or str(error)
            runs.append({**run.facts(), "done": done})
    return runs, reason


def check_device(machines: Machines, experiments: Sequence[Experiment]) -> None:
    """Raise SettingsError for contradictory training settings, an unavailable device, or a precision that it
    does not support. The devices of a cluster are checked there (`open_cluster`).
    """
    if machines.cluster is None:
        device = find_device(machines.device)
        for precision in (name for experiment in experiments for name in experiment.precisions):
            device_precision(precision, device)


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
        check_mark(experiment)


def check_mark(experiment: Experiment) -> None:
    """Raise OutputError if the folder of an experiment holds the runs of another recipe than its own."""
    mark = experiment.out / MARK
    owner = os.fsdecode(mark.read_bytes()).strip() if experiment.recipe and mark.exists() else ""
    if owner and owner != experiment.recipe:
        raise OutputError(
            f"{experiment.out} holds the runs of the recipe {shown(owner)}, not of {experiment.recipe}: "
            "choose another place with --out."
        )


def mark_folder(experiment: Experiment) -> None:
    """Create the folder of an experiment, and mark it as that of its recipe. Raises OutputError."""
    make_folder(experiment.out)
    if experiment.recipe:
        with suppress(FileExistsError), (experiment.out / MARK).open("xb") as mark:
            mark.write(os.fsencode(f"{experiment.recipe}\n"))
    check_mark(experiment)


@dataclass(frozen=True)
class RunPlace:
    """Where the record of a run is, and the lock of the process that makes it."""

    record: Path
    lock: Path
    key: str
    variant: str | None

    @classmethod
    def of(cls, runner: Runner, experiment: Experiment, run: Run) -> "RunPlace":
        """The place of a run. Raises DearError if it cannot be resolved."""
        resolved = runner.resolve(experiment, run)[1]
        lock = resolved.file(experiment.out / UNFINISHED, ".lock")
        return cls(resolved.file(experiment.out), lock, resolved.key, run.setup.variant)

    def read(self) -> dict[str, Any]:
        """The record. Raises DataError."""
        return read_record(self.record, key=self.key, variant=self.variant)

    def acquire(self) -> FileLock | None:
        """The lock of the run, or None if another process has it. Raises OutputError."""
        lock = FileLock(self.lock, timeout=0)
        try:
            self.lock.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (Timeout, FileNotFoundError):  # or the holder has just removed the folder
            return None
        except OSError as error:
            raise OutputError(
                f"cannot lock {self.lock}: {error}; choose another place with --out."
            ) from error
        return lock


class Sweep:
    """The runs of some experiments: those that wait, the locks of those under way, and what came of the rest.

    ``shown`` are warnings that were printed before and are not repeated.
    """

    def __init__(
        self, tasks: Sequence[tuple[Experiment, Run]], progress: RunProgress, shown: set[str]
    ) -> None:
        self.tasks, self.progress, self.shown = tasks, progress, shown
        self.places = dict[int, RunPlace]()
        self.waiting = dict.fromkeys(range(len(tasks)))
        self.locks = dict[int, FileLock]()
        self.records, self.failed = dict[int, dict[str, Any]](), dict[int, DearError]()

    def find(self, runner: Runner) -> None:
        """Find the places of all runs; those that cannot be resolved have failed."""
        for number, task in enumerate(self.tasks):
            try:
                self.places[number] = RunPlace.of(runner, *task)
            except DearError as error:
                self.fail(number, error)

    def make(self, pool: Pool) -> None:
        """Make the waiting runs. Workers begin at different places of the list and prefer the run after their
        last one, because neighbors are on the same data and share what they compute from it.
        """
        start = [len(self.tasks) * slot // pool.size for slot in range(pool.size)]
        idle, running = [*range(pool.size)], dict[Future[RunResult | DearError], tuple[int, int]]()
        told = False
        while self.waiting or running:
            while idle and (number := self.claim(start[idle[0]])) is not None:
                slot = idle.pop(0)
                start[slot] = number + 1
                running[pool.submit(slot, *self.tasks[number])] = slot, number
            if running:
                wait(running, timeout=WAIT, return_when=FIRST_COMPLETED)
            elif self.waiting:
                if not told:
                    warn(f"waiting for {plural(len(self.waiting), 'run')} that another command makes")
                told = True
                time.sleep(WAIT)
            pool.show_progress()
            for future in [future for future in running if future.done()]:
                slot, number = running.pop(future)
                idle.append(slot)
                self.settle(number, future, pool.lost_error)

    def claim(self, start: int) -> int | None:
        """Lock the first waiting run from ``start`` on that has neither a record nor a holder, and return its
        number. Runs with a record wait no longer. Raises OutputError.
        """
        for number in sorted(self.waiting, key=lambda number: (number - start) % len(self.tasks)):
            place = self.places[number]
            if not place.record.exists():
                if (lock := place.acquire()) is None:
                    continue
                self.locks[number] = lock
                if not place.record.exists():  # its holder has not written it in the meantime
                    del self.waiting[number]
                    return number
            try:
                self.finish(number, place.read())
            except DearError as error:
                self.fail(number, error)
        return None

    def settle(self, number: int, future: Future[RunResult | DearError], lost_error: type[Exception]) -> None:
        """Take the result of a run. Raises OutputError, because no other run could be written either."""
        try:
            result = future.result()
        except lost_error as error:
            result = LostWorkerError(
                f"a worker was lost in the middle of this run ({first_line(error)}). Is there enough memory? "
                "Repeat the command to continue, with fewer runs at a time."
            )
        if isinstance(result, OutputError):
            raise result
        if isinstance(result, DearError):
            return self.fail(number, result)
        for note in result.notes:
            if note[0] not in self.shown:
                self.shown.add(note[0])
                warnings.showwarning(*note)
        if not result.path.exists():  # it was written on another machine
            if result.predictions is not None:
                with output_file(result.path.with_suffix(".npz")) as file:
                    file.write(result.predictions)
            write_json(result.path, result.record)
        return self.finish(number, result.record)

    def finish(self, number: int, record: dict[str, Any]) -> None:
        """Take the record of a run."""
        self.records[number] = record
        self._end(number)

    def fail(self, number: int, error: DearError) -> None:
        """Take the error of a run; it is told at once if other runs go on."""
        self.failed[number] = error
        if len(self.tasks) > 1:
            warn(f"{self._name(number)} failed: {error}")
        self._end(number)

    def _name(self, number: int) -> str:
        run = self.tasks[number][1]
        return (
            self.places[number].record.stem if number in self.places else f"{run.dataset}-{run.setup.method}"
        )

    def _end(self, number: int) -> None:
        self.waiting.pop(number, None)
        self.release(number)
        self.progress(self._name(number), None)

    def release(self, *numbers: int) -> None:
        """Release the locks of some runs, or of all."""
        for lock in [self.locks.pop(number) for number in numbers or [*self.locks] if number in self.locks]:
            path = Path(lock.lock_file)
            path.unlink(missing_ok=True)  # still held: one who opened it before sees that it is gone
            lock.release()
            with suppress(OSError):  # there are others, or checkpoints
                path.parent.rmdir()


def _start_runner(machines: Machines) -> Runner:
    """The runner of this process, which only resolves the runs where others make them."""
    if machines.cluster is not None:  # whose machines are not known yet
        return Runner("cpu", target=torch.device("cpu" if machines.device == "cpu" else "cuda"))
    device = find_device(machines.device)
    if machines.jobs > 1:
        return Runner("cpu", target=device)
    return Runner(str(device))


@contextmanager
def open_pool(machines: Machines, runner: Runner, runs: int, progress: RunProgress) -> Iterator[Pool]:
    """The workers that make the runs; ``runner`` is the only one where this process makes them."""
    if machines.cluster is not None:
        with open_cluster(machines.cluster, machines.device, machines.gpus, runs) as pool:
            yield pool
    elif machines.jobs > 1:
        with open_processes(min(machines.jobs, runs), machines.device, progress) as pool:
            yield pool
    else:

        def make(_slot: int, experiment: Experiment, run: Run) -> Future[RunResult | DearError]:
            result = Future[RunResult | DearError]()
            result.set_result(runner.make(experiment, run, progress))
            return result

        yield Pool(1, find_device(machines.device), make)
