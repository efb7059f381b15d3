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
from dear.evaluation.launch.workers import make_runs, open_cluster, open_processes
from dear.evaluation.runs import Runner, RunProgress, check_data, check_methods, run_one, silent
from dear.training.devices import make_fabric


def launch(
    experiments: Sequence[Experiment], machines: Machines | None = None, progress: RunProgress = silent
) -> list[list[dict[str, Any]]]:
    """Make all runs of some experiments; returns their records, grouped by experiment.

    Everything that can be checked is checked before the first run. Sequential runs compute what experiments
    share only once. Raises DearError; the records of finished runs are kept.
    """
    machines = machines or Machines()
    require_distinct_folders(experiments)
    check_device(machines, experiments)
    spread = machines.jobs > 1 or machines.cluster is not None
    runner = Runner("cpu") if spread else _workplace(machines, experiments)
    with held_notes() as notes:
        for experiment in experiments:
            runner.check(experiment)
    tasks = [(experiment, run) for experiment in experiments for run in experiment.runs()]
    with ExitStack() as stack:
        if runner.fabric is None or runner.fabric.is_global_zero:
            for experiment in experiments:
                stack.enter_context(claimed(experiment))
        if spread:
            records = _spread(tasks, runner, machines, progress, {str(note.message) for note in notes})
        else:
            records = [run_one(**runner.prepared(*task), progress=progress) for task in tasks]
    made = iter(records)
    return [[next(made) for _ in experiment.runs()] for experiment in experiments]


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
    tasks: Sequence[tuple[Experiment, Run]],
    checker: Runner,
    machines: Machines,
    progress: RunProgress,
    notes: Collection[str],
) -> list[dict[str, Any]]:
    """Make the runs without a record on other processes. ``checker`` only looks for existing records;
    ``notes`` were printed before and are not repeated.
    """
    records = [checker.existing(*task) for task in tasks]
    missing = [  # workers may have another working folder
        (replace(experiment, out=experiment.out.resolve()), run)
        for (experiment, run), record in zip(tasks, records, strict=True)
        if record is None
    ]
    if not missing:
        return [*filter(None, records)]
    if machines.cluster is None:
        opened = open_processes(min(machines.jobs, len(missing)), machines.device, progress)
    else:
        opened = open_cluster(machines.cluster, machines.device, machines.gpus)
    with opened as pool:
        made = iter(make_runs(missing, pool, progress, notes))
    return [next(made) if record is None else record for record in records]


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
