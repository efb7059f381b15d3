"""What the `dear run` commands share: run or list experiments, and show the results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dear.cli.output import table
from dear.errors import SettingsError
from dear.evaluation.experiment import Experiment
from dear.evaluation.launch.machines import Machines
from dear.evaluation.plan import Plan, RoleVariant, with_all
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS, USUAL, known_method, methods_with_roles, option_groups
from dear.report.grid import Grid

if TYPE_CHECKING:
    from dear.evaluation.dry_run import PlannedRun


@dataclass(frozen=True)
class Summary:
    """The result tables (percent) and where the records are; or, in a dry run, the runs that would be made.

    Attributes:
        why: In a dry run, why runs cannot begin yet: the error that the runs themselves would raise.
    """

    tables: list[Grid]
    records: list[Path]
    runs: int
    planned: list["PlannedRun"] = field(default_factory=list)
    why: str | None = None

    @property
    def refusal(self) -> str | None:
        """The error for the exit code, raised after everything known has been shown."""
        return self.why


def run(experiments: Sequence[Experiment], machines: Machines, *, dry_run: bool) -> Summary:
    """Make the runs of some experiments, or with ``dry_run`` only list them."""
    places = [experiment.out for experiment in experiments]
    if dry_run:
        from dear.evaluation.dry_run import planned_runs
        from dear.evaluation.launch.claims import check_places
        from dear.evaluation.launch.dispatch import check_device

        check_places(experiments)
        check_device(machines, experiments)
        planned, why = planned_runs(experiments, machines.device)
        return Summary([], places, len(planned), planned, why)

    from dear.backbone.choice import check_model
    from dear.data.names import check_name

    for experiment in experiments:
        check_model(experiment.model.name)
        for name in filter(None, (*experiment.data, experiment.protocol.trained_on)):
            check_name(name, experiment.dataset)
    from dear.cli.progress import RunProgress
    from dear.evaluation.launch.dispatch import first_process, launch  # loads torch
    from dear.report.protocols import tables_of

    runs = sum(len(experiment.runs()) for experiment in experiments)
    with RunProgress(runs, experiments[0].train.epochs) as progress:
        found = launch(experiments, machines, progress)
    if not first_process():
        raise SystemExit(0)
    shown = [grid for records in found for grid in tables_of(records)]
    return Summary(shown, places, runs)


def plans_of(
    methods: Sequence[str] | None,
    settings: Mapping[str, MethodSettings],
    role_variants: Sequence[RoleVariant] | None = None,
    every: Sequence[str] = tuple(METHODS),
) -> tuple[Plan, ...]:
    """A plan for each method ("all" means each of ``every``; the usual ones if none is named), and for one
    with head roles one for each of the given variants of its role table. ``settings`` are the methods'
    settings by option group. Raises UnknownNameError for an unknown method, SettingsError for settings of a
    method that is not run.
    """
    named = USUAL if methods is None else with_all(methods, every)
    chosen = [known_method(name) for name in named]
    given = settings_of_methods(chosen, settings)
    roles = methods_with_roles()
    if role_variants is not None and not {*roles} & {*chosen}:
        raise SettingsError(
            f"--role-variant applies to {' or '.join(roles)}, which is not run: {', '.join(chosen)}."
        )
    plans: list[Plan] = []
    for name in chosen:
        variants = role_variants or ("roles",) if METHODS[name].needs_roles else ("roles",)
        plans += [Plan(name, one, given.get(name)) for one in variants]
    return tuple(plans)


def settings_of_methods(
    methods: Sequence[str], settings: Mapping[str, MethodSettings]
) -> dict[str, MethodSettings]:
    """Settings by method. Raises SettingsError for settings of a method that is not among ``methods``."""
    found = {}
    for group, name in option_groups().items():
        own = settings[group]
        if name in methods:
            found[name] = own
        elif changes := [field.name for field in fields(own) if getattr(own, field.name) != field.default]:
            option = f"--{group}.{changes[0].replace('_', '-')}"
            raise SettingsError(f"{option} applies to {name}, which is not run: {', '.join(methods)}.")
    return found


def render(result: Summary, console: Console) -> None:
    """Show the tables and where the records are, or the planned runs."""
    if result.planned:
        _render_planned(result, console)
        return
    for grid in result.tables:
        grid.render(console)
    places = ", ".join(str(place) for place in result.records)
    console.print(f"{_runs(result)}, records in {places}", markup=False)


def _render_planned(result: Summary, console: Console) -> None:
    rows = [
        (run.dataset, run.method, run.variant or "", run.shots, run.seed, "done" if run.done else "")
        for run in result.planned
    ]
    console.print(table(None, ("data set", "method", "variant", "shots", "seed", "record"), rows))
    done = sum(run.done for run in result.planned)
    console.print(f"{_runs(result)}, {done} done" if done else _runs(result))
    if result.why:
        console.print(f"some runs cannot begin yet: {result.why}", markup=False)


def _runs(result: Summary) -> str:
    return f"{result.runs} run{'s' * (result.runs != 1)}"
