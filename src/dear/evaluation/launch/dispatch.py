"""Launch experiments sequentially, on several processes or GPUs, on a Ray cluster, or data parallel; or list
their runs in a dry run.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from dear.backbone.choice import Precision, warn_of_toy
from dear.backbone.device import find_device
from dear.backbone.precision import device_precision
from dear.data.loading import held_notes
from dear.errors import DearError, SettingsError, UnknownNameError
from dear.evaluation.experiment import Experiment, Machines, Run
from dear.evaluation.launch.claims import check_folders, claimed, require_distinct_folders
from dear.evaluation.runs import Runner, RunProgress, check_data, check_methods, run_one, silent
from dear.training.devices import make_fabric

Job = tuple[int, int]
"""The indices of an experiment and of a run in it."""


def launch(
    experiments: Sequence[Experiment], machines: Machines | None = None, progress: RunProgress = silent
) -> list[list[dict[str, Any]]]:
    """Make all runs of some experiments; returns their records, grouped by experiment.

    Everything that can be checked is checked before the first run. Sequential runs compute what experiments
    share only once. Raises DearError; the records of finished runs are kept.
    """
    machines = machines or Machines()
    require_distinct_folders(experiments)
    runs = [experiment.runs() for experiment in experiments]
    with ExitStack() as stack:
        check_device(machines, experiments)
        if machines.jobs > 1 or machines.cluster is not None:
            checker = Runner("cpu")
            notes = _check(experiments, checker)
            for experiment in experiments:
                stack.enter_context(claimed(experiment))
            by_job = _spread(experiments, runs, checker, machines, progress, notes)
            return [
                [by_job[at, number] for number in range(len(of_experiment))]
                for at, of_experiment in enumerate(runs)
            ]
        runner = _workplace(machines, experiments)
        _check(experiments, runner)
        for experiment in experiments:
            if runner.fabric is None or runner.fabric.is_global_zero:
                stack.enter_context(claimed(experiment))
        records: list[list[dict[str, Any]]] = []
        for experiment, of_experiment in zip(experiments, runs, strict=True):
            records.append([])
            for run in of_experiment:
                records[-1].append(run_one(**runner.prepared(experiment, run), progress=progress))
        return records


def first_process() -> bool:
    """True if this process writes and prints: the first process of data parallel training."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def check_device(machines: Machines, experiments: Sequence[Experiment]) -> None:
    """Raise SettingsError for contradictory training settings, an unavailable device, or a precision that it
    does not support. The devices of a cluster are checked by the cluster launcher.
    """
    if machines.cluster is None:
        device = find_device(machines.device)
        for precision in (name for experiment in experiments for name in experiment.precisions):
            device_precision(precision, device)


def _check(experiments: Sequence[Experiment], runner: Runner) -> set[str]:
    """Check all experiments; returns the notes that were shown."""
    with held_notes() as notes:
        for experiment in experiments:
            runner.check(experiment)
    return {str(note.message) for note in notes}


def _workplace(machines: Machines, experiments: Sequence[Experiment]) -> Runner:
    """A runner in this process; it starts the other processes of data parallel training."""
    if machines.devices * machines.nodes == 1 and machines.log is None and machines.wandb is None:
        return Runner(machines.device)
    precisions: set[Precision] = {experiment.train.precision or "auto" for experiment in experiments}
    if len(precisions) > 1:
        raise SettingsError(
            f"the experiments have different precisions ({', '.join(sorted(precisions))}): "
            "run them separately."
        )
    fabric = make_fabric(
        find_device(machines.device),
        precisions.pop(),
        devices=machines.devices,
        nodes=machines.nodes,
        log=machines.log,
        wandb=machines.wandb,
    )
    fabric.launch()
    return Runner(str(fabric.device), fabric)


def _spread(
    experiments: Sequence[Experiment],
    runs: Sequence[Sequence[Run]],
    checker: Runner,
    machines: Machines,
    progress: RunProgress,
    notes: Collection[str],
) -> dict[Job, dict[str, Any]]:
    """Make the runs without a record on other processes. ``checker`` only looks for existing records;
    ``notes`` were printed before and are not repeated.
    """
    records: dict[Job, dict[str, Any]] = {}
    tasks: dict[Job, tuple[Experiment, Run]] = {}
    for at, experiment in enumerate(experiments):
        placed = replace(experiment, out=experiment.out.resolve())  # workers may have another working folder
        for number, run in enumerate(runs[at]):
            record = checker.existing(experiment, run)
            if record is None:
                tasks[at, number] = placed, run
            else:
                records[at, number] = record
    if not tasks:
        return records
    if machines.cluster is not None:
        from dear.evaluation.launch.cluster import on_cluster

        computed = on_cluster(
            tasks, machines.cluster, device=machines.device, gpus=machines.gpus, tell=progress
        )
    else:
        from dear.evaluation.launch.processes import in_processes

        computed = in_processes(tasks, machines.jobs, device=machines.device, tell=progress, notes=notes)
    return records | computed


@dataclass(frozen=True)
class PlannedRun:
    """A run of an experiment.

    Attributes:
        done: True if its record already exists.
    """

    dataset: str
    method: str
    variant: str | None
    seed: int
    shots: int
    done: bool


def planned_runs(
    experiments: Sequence[Experiment], machines: Machines
) -> tuple[list[PlannedRun], str | None]:
    """Each run of the experiments; if some cannot begin yet, because data or weights are missing, also the
    reason. Creates nothing. Raises DearError for any other error that would stop them.
    """
    check_folders(experiments)
    check_device(machines, experiments)
    runner, runs, reason = Runner(machines.device), list[PlannedRun](), None
    with held_notes():
        for experiment in experiments:
            reason = reason or _missing(runner, experiment)
    for experiment in experiments:
        unavailable: set[tuple[str, ...]] = set()  # not sought again for each run
        for run in experiment.runs():
            names, done = (run.dataset, *run.targets), False
            try:
                if names not in unavailable:
                    unavailable.add(names)
                    runner.datasets(experiment, run)
                    runner.context(experiment)
                    unavailable.remove(names)
                    done = runner.existing(experiment, run) is not None
            except DearError as error:
                reason = reason or str(error)
            setup = run.setup
            runs.append(PlannedRun(run.dataset, setup.method, setup.variant, run.seed, run.shots, done))
    return runs, reason


def _missing(runner: Runner, experiment: Experiment) -> str | None:
    """Why a run cannot begin yet: missing data or weights. Raises DearError for all other errors."""
    try:
        datasets = runner.load_all(experiment)
    except UnknownNameError:
        raise
    except DearError as error:  # for example a benchmark that is not downloaded yet
        return str(error)
    check_data(experiment, datasets)
    warn_of_toy(experiment.backbone.model, world=experiment.world)
    try:
        context = runner.context(experiment)
    except DearError as error:
        return str(error)
    check_methods(experiment, context, [*datasets.values()])
    return None
