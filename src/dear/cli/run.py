"""`dear run`: a command for every protocol, DeAR's ablations, and recipes."""

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import cleandoc
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from cyclopts import Group, Parameter
from rich.table import Table

from dear.cli.output import PrintableConsole, table
from dear.cli.parsing import Flat
from dear.errors import DataError, SettingsError, warn
from dear.evaluation.ablations import METHOD, ablation_setups, ablations
from dear.evaluation.experiment import DataOverrides, Experiment, Machines, RunOptions, TrainOverrides
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.recipe import change, expand_all, load_recipes
from dear.evaluation.resolve import MethodSetup, RoleVariant
from dear.methods.registry import METHODS, known_method, methods_with_roles, option_groups
from dear.report.grid import Grid
from dear.text import plural

WORK = ("steps", "test_images")
MAX_ROWS = 300
"""Runs that a dry run prints; a table of more takes longer than finding them."""
OF_A_PROTOCOL = """
Each run leaves one record in the output folder. A run that has a record is not repeated, and an interrupted
run continues where it stopped. Several commands on one folder share the work.

Args:
    methods: Methods to compare, or all; `dear methods` lists them. By default zero-shot and dear, if they
        suit the protocol.
    role_variant: Variants of the role table to run DeAR with. By default roles, the table as it is.
        all-isolated, all-mixed and shuffled are ablations of the paper (Table 5 and supplement Table 6), and
        random draws the role of each head anew.
    settings: Settings of the methods, such as --dear.beta or --coop.tokens.
"""


@Parameter(group=Group("Runs", sort_key=60))
@dataclass(frozen=True)
class DryRun:
    """Whether runs are only listed.

    Attributes:
        dry_run: List the runs, their work and all that is missing, without making them. Where the output
            folder has records, also how long a run of each method took.
    """

    dry_run: bool = False


@dataclass(frozen=True)
class RunsMade:
    """The result tables (percent) and where the records are; or, in a dry run, the runs that would be made.

    Attributes:
        earlier: How many of the runs had a record before, which was read instead.
        failed: The runs that failed, with the "error" and the "kind" of it.
        missing: In a dry run, each thing that is missing for some runs, as data or weights, in the words of
            the error that they would raise.
    """

    tables: list[Grid]
    records: list[Path]
    runs: int
    planned: list[dict[str, Any]] = field(default_factory=list)
    earlier: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def refusal(self) -> str | None:
        """The error of the exit code, raised after everything else has been shown."""
        if self.failed:
            count, first = f"{len(self.failed)} of {plural(self.runs, 'run')}", self.failed[0]["error"]
            return f"{count} failed, and the same command tries again: {first}"
        if len(self.missing) > 1:
            return f"{len(self.missing)} things are missing, the first: {self.missing[0]}"
        return self.missing[0] if self.missing else None


def protocol_command(kind: type[Protocol]) -> Callable[..., RunsMade]:
    """The command of a protocol, built from its class: the docstring is the help, the fields are options."""
    default = kind()
    hint: Any = Annotated[kind, Parameter(name="*") if fields(kind) else Parameter(parse=False)]

    def command(
        *,
        protocol: hint = default,
        methods: list[str] | None = None,
        role_variant: list[RoleVariant] | None = None,
        options: Flat[RunOptions] = RunOptions(),
        dry: Flat[DryRun] = DryRun(),
        machines: Flat[Machines] = Machines(),
        **settings: Mapping[str, Any],
    ) -> RunsMade:
        named = protocol.usual() if methods is None else expand_all(methods, protocol.methods())
        setups = make_setups(named, settings, role_variant)
        experiments = [Experiment(protocol=protocol, methods=setups, **vars(options))]
        return execute(experiments, machines, dry)

    about = cleandoc(kind.__doc__ or "").partition("\n\nAttributes:")[0]
    command.__doc__ = f"{about}\n{OF_A_PROTOCOL}"
    return command


globals().update({name.replace("-", "_"): protocol_command(kind) for name, kind in PROTOCOLS.items()})


def command_ablation(
    *,
    of: list[str] | None = None,
    without: list[str] | None = None,
    options: Flat[RunOptions] = RunOptions(),
    dry: Flat[DryRun] = DryRun(),
    machines: Flat[Machines] = Machines(),
    **settings: Mapping[str, Any],
) -> RunsMade:
    """Run DeAR's ablations in base-to-novel. Each varies one setting.

    Each run leaves one record in the output folder. A run that has a record is not repeated, and an
    interrupted run continues where it stopped.

    Args:
        of: Ablations: mask, mask-form, loss, inference, quantile, attributes, beta, first. By default all.
        without: Labels of rows to leave out, for example 'K = 7', which needs seven known concepts.
        settings: Settings of DeAR, such as --dear.tokens, except those that a chosen ablation varies.
    """
    setups = ablation_setups(
        ablations() if of is None else of, settings.get(METHOD, {}), without=without or ()
    )
    options = replace(options, out=options.out or Path("runs/ablation"))
    experiments = [Experiment(protocol=BaseToNovel(), methods=setups, **vars(options))]
    return execute(experiments, machines, dry)


def command_recipe(
    path: Path,
    *,
    data: list[str] | None = None,
    methods: list[str] | None = None,
    seeds: list[int] | None = None,
    shots: list[int] | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    roles: Path | None = None,
    train: TrainOverrides = MappingProxyType({}),
    dataset: DataOverrides = MappingProxyType({}),
    out: Path | None = None,
    keep_weights: bool | None = None,
    dry: Flat[DryRun] = DryRun(),
    machines: Flat[Machines] = Machines(),
    **settings: Mapping[str, Any],
) -> RunsMade:
    """Run a recipe (YAML), or all recipes of a folder. What they share is computed once.

    docs/reproduce.md describes the keys of a recipe. Options replace the keys of the same name. A run that
    has a record is not repeated, and an interrupted run continues where it stopped.

    Args:
        path: A recipe, one part of it as FILE.yaml:NAME, or a folder of recipes.
        data: Run only these of the recipe's data sets. In a folder, recipes that have none of them are left
            out.
        methods: Run only these of the recipe's methods. A class outside the package has to be named here, so
            that it may be imported; if nothing else is named, all methods of the recipe run.
        seeds: Seeds to use in place of the recipe's.
        shots: Training images of each class.
        model: Backbone. Without --pretrained it has its usual weights.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        roles: Role table of the weights.
        train: Settings of training.
        dataset: How data sets are read.
        out: Another output folder. Each recipe writes to a folder in it that has the name of its own folder.
        keep_weights: Save the trained parameters beside each record.
        settings: Settings of the recipe's methods, except those in which its rows differ.
    """
    options = {
        "seeds": seeds, "shots": shots, "model": model, "pretrained": pretrained, "roles": roles,
        "keep_weights": keep_weights,
    }  # fmt: skip
    experiments = load_recipes(path, out, methods)
    names = dict.fromkeys(setup.method for experiment in experiments for setup in experiment.methods)
    experiments = change(
        experiments,
        data=data,
        methods=methods,
        settings=collect_settings([*names], settings),
        train=train,
        dataset=dataset,
        **{name: value for name, value in options.items() if value is not None},
    )
    return execute(experiments, machines, dry)


def execute(experiments: Sequence[Experiment], machines: Machines, dry: DryRun) -> RunsMade:
    """Make the runs of some experiments, or list them in a dry run. Raises DearError, that of a run if no run
    has a record.
    """
    folders = [experiment.out for experiment in experiments]
    if dry.dry_run:
        from dear.evaluation.dry_run import list_runs

        planned, missing = list_runs(experiments, machines)
        return RunsMade([], folders, len(planned), planned, missing=missing)
    experiments = with_data(experiments)  # before torch is loaded
    folders = [experiment.out for experiment in experiments]
    from dear.cli.progress import RunBars
    from dear.evaluation.launch import make_runs
    from dear.report.protocols import tables_of

    runs, before = sum(len(experiment.runs()) for experiment in experiments), _records_in(experiments)
    with RunBars(runs) as progress:
        records, failed = make_runs(experiments, machines, progress)
    if failed and not any(records):
        raise failed[0][1]
    return RunsMade(
        [grid for part in records for grid in tables_of(part)],
        folders,
        runs,
        earlier=max(0, sum(map(len, records)) - len(_records_in(experiments) - before)),
        failed=[
            {**run.identifying_facts(), "error": str(error), "kind": type(error).__name__}
            for run, error in failed
        ],
    )


def with_data(experiments: Sequence[Experiment]) -> list[Experiment]:
    """The experiments whose data are there; one line names the parts of a recipe that are left out. Raises
    DearError for unknown names of models and data sets, and if none is left that of the first.
    """
    from dear.backbone.names import check_model
    from dear.data.names import check_name

    present, left_out, errors = list[Experiment](), list[str](), list[DataError]()
    for experiment in experiments:
        check_model(experiment.model)
        missing = list[str]()
        for name in experiment.names:
            try:
                check_name(name, experiment.dataset)
            except DataError as error:
                missing.append(name)
                errors.append(error)
        if missing:
            left_out.append(f"{experiment.recipe} ({', '.join(missing)})")
        else:
            present.append(experiment)
    if not present:
        raise errors[0]
    if left_out:
        warn(f"left out, because data are missing (--dry-run says more): {', '.join(left_out)}")
    return present


def _records_in(experiments: Sequence[Experiment]) -> set[tuple[Path, int]]:
    """The records of some experiments, and when they were written."""
    paths = {path for experiment in experiments for path in experiment.out.glob("*.json")}
    return {(path, path.stat().st_mtime_ns) for path in paths}


def make_setups(
    methods: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]],
    role_variants: Sequence[RoleVariant] | None = None,
) -> tuple[MethodSetup, ...]:
    """A setup for each method, and for one with head roles a setup for each of the given variants of its role
    table. ``settings`` are what the user sets of methods, by option group. Raises UnknownNameError for an
    unknown method, SettingsError for settings of a method that is not run.
    """
    names = [known_method(name) for name in methods]
    if role_variants is not None and not {*methods_with_roles()} & {*names}:
        raise SettingsError(
            f"--role-variant is a setting of {' or '.join(methods_with_roles())}; "
            f"this command runs only {', '.join(names)}."
        )
    by_method = collect_settings(names, settings)
    return tuple(
        MethodSetup(name, by_method.get(name, {}), variant)
        for name in names
        for variant in (role_variants if role_variants and METHODS[name].roles else ("roles",))
    )


def collect_settings(
    methods: Sequence[str], settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """What the user sets, by method. Raises SettingsError for a method that is not among ``methods``."""
    by_method = {}
    groups = option_groups()
    for group, values in settings.items():
        if (name := groups[group]) in methods:
            by_method[name] = values
        elif values:
            option = f"--{group}.{next(iter(values)).replace('_', '-')}"
            raise SettingsError(
                f"{option} is a setting of {name}; this command runs only {', '.join(methods)}."
            )
    return by_method


def work_table(planned: Sequence[Mapping[str, Any]]) -> Table:
    """What is left to do, by method: runs, training steps and test images, "?" where data are not known; and
    how long a run of the method took, if any in the folder did.
    """
    by_method = defaultdict[str, list[Mapping[str, Any]]](list)
    for run in planned:
        if not run["done"]:
            by_method[run["method"]].append(run)
    columns = ["method", "runs", "training steps", "test images"]
    if is_timed := any(run["seconds"] is not None for runs in by_method.values() for run in runs):
        columns.append("time of a run, by the records")
    rows = list[tuple[object, ...]]()
    for method, runs in by_method.items():
        row = [method, len(runs), *(_sum_or_unknown([run[key] for run in runs]) for key in WORK)]
        times = {run["seconds"] for run in runs if run["seconds"] is not None}
        rows.append((*row, *([" or ".join(map(duration, sorted(times)))] if is_timed else [])))
    return table("Left to do", columns, rows)


def _sum_or_unknown(values: Sequence[int | None]) -> int | str:
    return "?" if None in values else sum(value for value in values if value is not None)


def duration(seconds: float) -> str:
    """A time in words: seconds, minutes or hours."""
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"


def render(result: RunsMade, console: PrintableConsole) -> None:
    """Show the tables and where the records are, or the planned runs."""
    count = plural(result.runs, "run")
    if result.planned:
        columns = ("data set", "method", "variant", "shots", "seed", "record")
        keys = ("dataset", "method", "variant", "shots", "seed", "done")
        planned = [run | {"done": "done" if run["done"] else ""} for run in result.planned[:MAX_ROWS]]
        rows = [["" if run[key] is None else run[key] for key in keys] for run in planned]
        console.print(table(None, columns, rows))
        if result.runs > MAX_ROWS:
            console.print(f"... and {result.runs - MAX_ROWS:,} more: --json lists all.")
        done = sum(run["done"] for run in result.planned)
        console.print(f"{count}, {done} done" if done else count)
        console.print(work_table(result.planned))
        if result.missing:
            console.say("Missing for some runs:", *(f"- {line}" for line in result.missing))
        return
    for grid in result.tables:
        grid.render(console)
    earlier = f" ({result.earlier} made before, not repeated)" if result.earlier else ""
    console.say(
        f"{count}{earlier}, records in {', '.join(map(str, result.records))}",
        *(f"next: dear report {shlex.quote(str(folder))}" for folder in dict.fromkeys(result.records)),
    )
