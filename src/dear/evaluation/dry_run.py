"""What a dry run lists: the runs of experiments, after the checks that precede the runs themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

from dear.backbone.choice import warn_of_toy
from dear.data.notes import held_notes
from dear.errors import DearError, UnknownNameError
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.launch.claims import check_folders
from dear.evaluation.launch.dispatch import check_device
from dear.evaluation.runs import Runner, check_data, check_methods


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
        for run in experiment.runs():
            try:
                done = runner.existing(experiment, run) is not None
            except DearError as error:
                reason, done = reason or str(error), False
            plan = run.plan
            runs.append(PlannedRun(run.dataset, plan.method, plan.variant, run.seed, run.shots, done))
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
