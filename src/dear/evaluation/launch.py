"""Make the runs of experiments: in this process, in several, or on a Ray cluster."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dear.backbone.device import find_device
from dear.data.loading import held_notes
from dear.errors import DearError, OutputError, SettingsError, installation, warn
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.runs import RunResult, check_experiment
from dear.evaluation.session import Session
from dear.evaluation.workers import Message, Task, make_runs_here, make_runs_in_processes, open_cluster
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
) -> tuple[list[list[dict[str, Any]]], list[tuple[Experiment, DearError]]]:
    """Make all runs of some experiments; returns their records, grouped by experiment, and the runs that
    failed, with their errors. A run with a record is not repeated; one that another command makes is waited
    for, and made here if that leaves no record.

    Everything that can be checked is checked before the first run. Runs in one process compute what
    experiments share only once. Raises DearError for what concerns all runs; existing records are kept.
    """
    machines = machines or Machines()
    check_folders(experiments)
    session = open_session(machines)
    with ExitStack() as stack:
        if machines.log is not None:
            progress = stack.enter_context(log_epochs(machines.log, progress))
        with held_notes() as notes:
            for experiment in experiments:
                for error in check_experiment(session, experiment).values():
                    raise error
        for experiment in experiments:
            make_folder(experiment.out)
        cluster = None
        if machines.cluster is not None:
            cluster = stack.enter_context(open_cluster(machines))
            session.target = cluster.device
        by_experiment = [
            [Task(session, run) for run in replace(experiment, out=experiment.out.resolve()).runs()]
            for experiment in experiments
        ]
        tasks = [task for part in by_experiment for task in part]
        shown = {str(note.message) for note in notes}
        take = partial(_take, progress=progress, shown=shown, alone=len(tasks) == 1)
        for task in tasks:
            if task.result is not None:
                take(task, task.result)
        waiting = [task for task in tasks if task.result is None]

        def tell(number: int, message: Message) -> None:
            take(waiting[number], message)

        if cluster is not None:
            cluster.make_runs(waiting, tell)
        elif machines.jobs > 1:
            make_runs_in_processes(waiting, machines, tell)
        else:
            make_runs_here(waiting, session, tell)
    records = [
        [task.result.record for task in part if isinstance(task.result, RunResult)] for part in by_experiment
    ]
    return records, [(task.run, task.result) for task in tasks if isinstance(task.result, DearError)]


def _take(task: Task, message: Message, progress: RunProgress, shown: set[str], *, alone: bool) -> None:
    """Show what is told of a run, and give the run its result. ``shown`` are the warnings that were shown and
    are not repeated. Unless a run is ``alone``, its failure is told at once. Raises an OutputError, because
    no other run could be written either.
    """
    if isinstance(message, OutputError):
        raise message
    if isinstance(message, TrainingStep):
        progress(task.name, message)
        return
    if message is None:
        if WAITING not in shown:
            warn(f"{WAITING} {task.name}")
        shown.add(WAITING)
        return
    task.result = message
    for note in message.notes if isinstance(message, RunResult) else ():
        if note[0] not in shown:
            shown.add(note[0])
            warnings.showwarning(*note)
    if isinstance(message, DearError) and not alone:
        warn(f"{task.name} failed: {message}")
    progress(task.name, None)


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


def open_session(machines: Machines) -> Session:
    """The session of this process, which only resolves the runs where others make them. Raises SettingsError
    for a device that is not here.
    """
    if machines.cluster is not None:  # whose machines are not known yet
        return Session("cpu", target=torch.device("cpu" if machines.device == "cpu" else "cuda"))
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
