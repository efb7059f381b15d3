"""Make the runs of experiments: in this process, in several, or on a Ray cluster."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dear.backbone.device import find_device
from dear.backbone.names import warn_of_toy
from dear.data.dataset import Dataset
from dear.data.loading import deferred_warnings
from dear.errors import (
    DataError,
    DearError,
    OutputError,
    RoleTableError,
    SettingsError,
    WeightsError,
    installation,
    warn,
)
from dear.evaluation.experiment import Experiment, Machines, Run
from dear.evaluation.resolve import ResolvedRun, warn_of_unused_training
from dear.evaluation.runs import RunResult, check_runs
from dear.evaluation.session import Session
from dear.evaluation.workers import (
    Message,
    Task,
    make_runs_in_processes,
    open_cluster,
    wait_for_others,
)
from dear.progress import RunProgress, TrainingStep, silent
from dear.writing import make_folder, require_writable

WAITING = "waiting for a run that another command makes:"


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
    with ExitStack() as stack:
        if machines.log is not None:
            progress = stack.enter_context(log_epochs(machines.log, progress))
        target, make = None, None
        if machines.cluster is not None:
            target, make = stack.enter_context(open_cluster(machines))
        session = open_session(machines, target)
        if machines.jobs > 1:
            make = partial(make_runs_in_processes, machines=machines)
        with deferred_warnings() as notes:
            by_experiment = plan_runs(session, experiments)
            tasks = [task for part in by_experiment for task in part]
            for task in tasks:
                if task.missing is not None:
                    raise task.missing
        for experiment in experiments:
            make_folder(experiment.out)
        shown = {str(note.message) for note in notes}

        def tell(task: Task, message: Message) -> None:
            """Show what is told of a run, and give the run its result. No warning is shown twice."""
            if isinstance(message, OutputError):
                raise message  # no other run could be written either
            if isinstance(message, TrainingStep):
                progress(task.name, message)
                return
            task.result = message
            for note in message.notes if isinstance(message, RunResult) else ():
                if note[0] not in shown:
                    shown.add(note[0])
                    warnings.showwarning(*note)
            if isinstance(message, DearError) and len(tasks) > 1:
                warn(f"{task.name} failed: {message}")
            progress(task.name, None)

        for task in tasks:
            if task.result is not None:
                tell(task, task.result)
        while left := _without_result(tasks):
            if make is not None:
                make(left, tell)
            else:
                for task in left:
                    if (result := task.make(session, partial(tell, task))) is not None:
                        tell(task, result)
            if held := _without_result(left):
                if WAITING not in shown:
                    warn(f"{WAITING} {held[0].name}")
                shown.add(WAITING)
                wait_for_others(held)
                for task in held:
                    if (result := task.read()) is not None:
                        tell(task, result)
    records = [
        [task.result.record for task in part if isinstance(task.result, RunResult)] for part in by_experiment
    ]
    return records, [(task.run, task.result) for task in tasks if isinstance(task.result, DearError)]


def _without_result(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task.result is None]


def plan_runs(session: Session, experiments: Sequence[Experiment]) -> list[list[Task]]:
    """All runs of some experiments, grouped by experiment, resolved and checked before anything is computed.
    Raises DearError for what would stop a run, except for data, weights and roles that are `Task.missing`,
    and for bugs in the code of methods, which are the results of their runs.
    Creates nothing.
    """
    check_folders(experiments)
    by_experiment = []
    for experiment in experiments:
        tasks, resolved, datasets = list[Task](), list[ResolvedRun](), dict[str, Dataset]()
        for run in experiment.runs():
            try:
                resolved.append(session.resolve_run(run))
            except (DataError, WeightsError, RoleTableError) as error:  # perhaps there later, as a download
                tasks.append(Task(run, error))
                continue
            own_train = run.setup.train_over(experiment.train)
            warn_of_unused_training(run.setup, resolved[-1].settings, own_train)
            tasks.append(Task(run, resolved[-1]))
            datasets.update(zip(run.data, resolved[-1].datasets, strict=True))
        broken = check_runs(session, resolved, datasets)
        for task, checked in zip([task for task in tasks if not task.missing], resolved, strict=True):
            if task.result is None:
                bugs = (broken.get((training.setup, training.settings)) for training in checked.trainings)
                task.result = next(filter(None, bugs), None)
        warn_of_toy(experiment.backbone.model, world=experiment.world)
        by_experiment.append(tasks)
    return by_experiment


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
        require_writable(out, "to", folder=True)


def open_session(machines: Machines, target: torch.device | None = None) -> Session:
    """The session of this process, which only resolves the runs where others make them; ``target`` is what a
    cluster computes on, if it is known. Raises SettingsError for a device that is not here.
    """
    if machines.cluster is not None:
        return Session("cpu", target=target or torch.device("cpu" if machines.device == "cpu" else "cuda"))
    device = find_device(machines.device)
    return Session("cpu" if machines.jobs > 1 else device, target=device)


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
    make_folder(folder, "with --log")
    with SummaryWriter(folder) as writer:

        def log(run: str, step: TrainingStep | None) -> None:
            progress(run, step)
            if step is not None:
                for name, value in step.record.items():
                    writer.add_scalar(f"{run}/{step.method}/{name}", value, step.epoch)

        yield log
