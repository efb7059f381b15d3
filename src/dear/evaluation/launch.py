"""Make the runs of experiments: in this process, in several, or on a Ray cluster."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
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
from dear.evaluation.runs import BrokenMethods, RunResult, check_runs
from dear.evaluation.session import Session
from dear.evaluation.workers import (
    LostWorkerError,
    Message,
    make_runs_here,
    make_runs_in_processes,
    open_cluster,
    read_result,
    wait_for_others,
)
from dear.progress import OnRunStep, TrainingStep, silent
from dear.writing import make_folder, require_writable

WAITING = "waiting for a run that another command makes:"


def launch(
    experiments: Sequence[Experiment], machines: Machines | None = None, progress: OnRunStep = silent
) -> list[list[dict[str, Any]]]:
    """`make_runs`; returns the records, grouped by experiment. Raises the error of the first run that failed,
    once all others are made: called again, it makes only those without a record.
    """
    records, failed = make_runs(experiments, machines, progress)
    if failed:
        raise failed[0][1]
    return records


def make_runs(
    experiments: Sequence[Experiment], machines: Machines | None = None, progress: OnRunStep = silent
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
        device = None
        if machines.cluster is not None:
            device, make = stack.enter_context(open_cluster(machines))
        session = open_session(machines, device)
        if machines.jobs > 1:
            make = partial(make_runs_in_processes, machines=machines)
        elif machines.cluster is None:
            make = partial(make_runs_here, session=session)
        with deferred_warnings() as notes:
            by_experiment = plan_runs(session, experiments)
            planned = [*chain.from_iterable(by_experiment)]
            for run, result in planned:
                if isinstance(result, DearError) and not run.key:
                    raise result
        for experiment in experiments:
            make_folder(experiment.out)
        results, shown = dict[Path, RunResult | DearError](), {str(note.message) for note in notes}

        def on_message(run: Run, message: Message) -> None:
            """Show what is told of a run, and keep its result. No warning is shown twice."""
            if isinstance(message, LostWorkerError):
                message = read_result(run) or message
            if isinstance(message, OutputError):
                raise message  # no other run could be written either
            name = run.record.stem
            if isinstance(message, TrainingStep):
                progress(name, message)
                return
            results[run.record] = message
            for note in message.notes if isinstance(message, RunResult) else ():
                if note[0] not in shown:
                    shown.add(note[0])
                    warnings.showwarning(*note)
            if isinstance(message, DearError) and len(planned) > 1:
                warn(f"{name} failed: {message}")
            progress(name, None)

        for run, result in planned:
            if result is not None:
                on_message(run, result)
        while left := [run for run, _ in planned if run.record not in results]:
            make(left, on_message)
            if held := [run for run in left if run.record not in results]:
                if WAITING not in shown:
                    warn(f"{WAITING} {held[0].record.stem}")
                shown.add(WAITING)
                wait_for_others(held)
                for run in held:
                    if (result := read_result(run)) is not None:
                        on_message(run, result)
    made = [[(run, results[run.record]) for run, _ in part] for part in by_experiment]
    records = [[result.record for _, result in part if isinstance(result, RunResult)] for part in made]
    failed = [(run, result) for part in made for run, result in part if isinstance(result, DearError)]
    return records, failed


def plan_runs(
    session: Session, experiments: Sequence[Experiment]
) -> list[list[tuple[Run, RunResult | DearError | None]]]:
    """All runs of some experiments, grouped by experiment, resolved and checked before anything is computed,
    each with what is known to come of it: its record, or what is wrong with that; a bug in the code of its
    method; or that data, weights or roles are missing: such a run has no ``key``. Raises DearError for
    anything else that would stop a run. Creates nothing.
    """
    check_folders(experiments)
    by_experiment = []
    for experiment in experiments:
        runs, datasets = list[tuple[Run, ResolvedRun | DearError]](), dict[str, Dataset]()
        for run in experiment.runs():
            try:
                resolved = session.resolve_run(run)
            except (DataError, WeightsError, RoleTableError) as error:  # perhaps there later, as a download
                runs.append((run, error))
                continue
            warn_of_unused_training(run.setup, resolved.settings, run.setup.train_over(experiment.train))
            datasets.update(zip(run.data, resolved.datasets, strict=True))
            record = resolved.file(experiment.out.resolve())
            runs.append((replace(run, record=record, key=resolved.key), resolved))
        bugs = check_runs(session, [run for _, run in runs if isinstance(run, ResolvedRun)], datasets)
        by_experiment.append([(run, _known_result(run, resolved, bugs)) for run, resolved in runs])
        warn_of_toy(experiment.backbone.model, world=experiment.world)
    return by_experiment


def _known_result(
    run: Run, resolved: ResolvedRun | DearError, bugs: BrokenMethods
) -> RunResult | DearError | None:
    if isinstance(resolved, DearError):
        return resolved
    found = (bugs.get((training.setup, training.settings)) for training in resolved.trainings)
    return read_result(run) or next(filter(None, found), None)


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


def open_session(machines: Machines, cluster_device: torch.device | None = None) -> Session:
    """The session of this process, which only resolves the runs where others make them; ``cluster_device`` is
    what a cluster computes on, if it is known. Raises SettingsError for a device that is not here.
    """
    if machines.cluster is not None:
        device = cluster_device or torch.device("cpu" if machines.device == "cpu" else "cuda")
        return Session("cpu", run_device=device)
    device = find_device(machines.device)
    return Session("cpu" if machines.jobs > 1 else device, run_device=device)


@contextmanager
def log_epochs(folder: Path, progress: OnRunStep) -> Iterator[OnRunStep]:
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
