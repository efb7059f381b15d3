"""Methods compared: side by side with their costs, paired over data sets, and with published numbers."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Any

from dear.evaluation.schema import harmonic_mean
from dear.report import published
from dear.report.base_to_novel import MEASURE_TITLES, MEASURES, Table, average
from dear.report.grid import INTERVAL, Cell, Grid, GridRow
from dear.report.intervals import FEWEST, LEVEL, half_width, paired
from dear.report.method_plots import Costs
from dear.report.records import (
    CHANCE,
    UNLABELLED,
    Record,
    accuracy,
    checked,
    data_set,
    data_set_title,
    grouped,
    method_label,
    settings_of,
)

TOO_FEW = (
    f"No interval over fewer than {FEWEST} data sets: that of two is 12.7 standard errors wide to each side, "
    "and says nothing."
)
COSTS = ("Trainable parameters", "Seconds per run")
PEAK = "Peak memory, MiB"
JOINT_RULES = ("HM, class feature alone", "HM, novel by zero-shot")
JOINT_NOTE = (
    "Percent, average of the data sets. Test images of base and of novel classes, each among the names of "
    "all classes. Where a method's authors score novel classes by the class feature alone, so are the novel "
    "ones here, beside the fused scores of the base classes."
)


def methods_grid(table: Table, records: Sequence[Record], memory: Sequence[Record] | None) -> Grid | None:
    """One row per method of the base-to-novel table of some records: its average; its number of trained
    parameters, on the data set with the most; the median time of a run, training and tests; and the highest
    peak GPU memory (process memory without a GPU) in the records ``memory``, a column omitted without them.
    None for a single method.
    """
    if len(table.methods) < 2:
        return None
    runs, peaks = grouped(records, method_label), grouped(memory or (), method_label)
    rows: list[GridRow] = []
    for method, entries in zip(table.methods, table.average.entries, strict=True):
        averages = [None if entries is None else entries[measure] for measure in MEASURES]
        costs = [_cost(max, map(_parameters, runs[method])), _cost(median, map(_seconds, runs[method]), 1)]
        peak = [] if memory is None else [_cost(max, map(_memory, peaks.get(method, ())))]
        rows.append(GridRow(method, (*averages, *costs, *peak)))
    if table.average.chance is not None:
        costless = [None] * (len(COSTS) + (memory is not None))
        rows.insert(0, GridRow(CHANCE, (*(table.average.chance[m] for m in MEASURES), *costless)))
    several = any(cell and cell.spread is not None for row in rows for cell in row.cells)
    notes = (
        f"Percent, average of the data sets{', mean ± standard deviation over seeds' if several else ''}.",
        "Seconds: median over runs; a run reuses what earlier runs of its process have cached.",
        *([] if memory is None else ["Runs that share a process share its peak memory."]),
    )
    names = (*(MEASURE_TITLES[measure] for measure in MEASURES), *COSTS, *([] if memory is None else [PEAK]))
    return Grid(
        "base-to-novel-methods", "Methods side by side", "Method", names, tuple(rows), (" ".join(notes),)
    )


def joint_grid(records: Sequence[Record]) -> Grid | None:
    """One row per method: its average where all classes of a data set are candidates at once, on images of
    base and of novel classes, and the HM of the two; then that by the class feature alone, and that where
    novel classes have the scores of zero-shot CLIP. None if no record has it.

    Raises:
        DataError: for records that cannot be combined in one table or lack a number.
    """
    records = checked(records)
    data_sets = {*map(data_set, records)}
    rows = []
    for method, group in grouped((run for run in records if "joint" in run["results"]), method_label).items():
        runs = grouped(group, data_set)
        if {*runs} != data_sets:
            continue
        entries = [
            average(
                [
                    {
                        run.get("seed"): (_joint(run, "base", read), _joint(run, "novel", read))
                        for run in of_data
                    }
                    for of_data in runs.values()
                ]
            )
            for read in ("accuracy", "decoupled", "zero_shot_for_new")
        ]
        fused, *others = (entry for entry in entries if entry)
        cells = *(fused[measure] for measure in MEASURES), *(entry["hm"] for entry in others)
        rows.append(GridRow(method, cells))
    if not rows:
        return None
    names = (*(MEASURE_TITLES[measure] for measure in MEASURES), *JOINT_RULES)
    several = any(cell.spread is not None for row in rows for cell in row.cells if cell)
    notes = (JOINT_NOTE, *(["± standard deviation over seeds."] if several else ()))
    return Grid("base-to-novel-joint", "All classes at once", "Method", names, tuple(rows), notes)


def _joint(run: Record, half: str, read: str) -> float:
    return accuracy(run, "joint", half, read=read)


def costs_of(table: Table, records: Sequence[Record]) -> list[Costs]:
    """The costs of the methods of the table that have an average, as in `methods_grid`."""
    runs = grouped(records, method_label)

    def cost(statistic: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
        cell = _cost(statistic, values)
        return None if cell is None else cell.mean or None

    return [
        Costs(
            method,
            entry["hm"].mean,
            cost(max, map(_parameters, runs[method])),
            cost(median, map(_seconds, runs[method])),
        )
        for method, entry in zip(table.methods, table.average.entries, strict=True)
        if entry
    ]


def _cost(
    statistic: Callable[[list[float]], float], values: Iterable[float | None], decimals: int = 0
) -> Cell | None:
    """A statistic of the values that the records have; None if no record has any."""
    recorded = [value for value in values if value is not None]
    return Cell(statistic(recorded), decimals=decimals) if recorded else None


def _parameters(record: Record) -> float | None:
    return record.get("trainable_parameters")


def _seconds(record: Record) -> float | None:
    """Training and test time."""
    spent = record.get("seconds") or {}
    return spent["train"] + spent["test"] if {"train", "test"} <= {*spent} else None


def _memory(record: Record) -> float | None:
    peaks = record.get("peak_memory") or {}
    return peaks.get("gpu") or peaks.get("resident")


def paired_grid(records: Sequence[Record]) -> Grid | None:
    """Each method minus the first: mean difference over the data sets that both have, with its interval
    (over fewer than three data sets without); None if there is only one method.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    methods = grouped(checked(records), method_label)
    first = next(iter(methods))
    means = {
        method: {name: _mean(runs) for name, runs in grouped(group, data_set).items()}
        for method, group in methods.items()
    }
    rows, any_few = [], False
    for method in [*methods][1:]:
        shared = [name for name in means[first] if name in means[method]]
        if not shared:
            continue
        cells = []
        for measure in MEASURES:
            minuend, subtrahend = ([means[m][name][measure] for name in shared] for m in (method, first))
            mean, half = paired(minuend, subtrahend)
            cells.append(Cell(mean, half, len(shared)))
            any_few = any_few or len(shared) < FEWEST
        rows.append(GridRow(f"{method} − {first}", tuple(cells)))
    if not rows:
        return None
    interval = f"± half-width of the {LEVEL:.0%} t interval of the paired differences"
    notes = [f"Points. Mean over data sets {interval}."]
    if any_few:
        any_interval = any(cell and cell.spread is not None for row in rows for cell in row.cells)
        notes = [*(notes if any_interval else ["Points. Mean over data sets."]), TOO_FEW]
    columns = tuple(MEASURE_TITLES[measure] for measure in MEASURES)
    return Grid(
        "base-to-novel-paired",
        f"Difference to {first}",
        "Methods",
        columns,
        tuple(rows),
        tuple(notes),
        spread=INTERVAL,
    )


def published_grid(records: Sequence[Record]) -> Grid | None:
    """Our numbers minus the published ones, for the methods and data sets that the paper prints and runs with
    the backbone and shots of its numbers; with at least three seeds also half the width of the t interval.
    None if there is nothing to compare.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    printed = {key: row for key, row in published.base_to_novel().items() if published.AVERAGE not in key}
    rows, compared = [], []
    for method, group in grouped(checked(records), method_label).items():
        paper = _printed_as(method, group[0])
        for runs in grouped(group, data_set).values():
            name = published.paper_data_set(data_set(runs[0]))
            if paper is None or (paper, name) not in printed or not published.comparable(paper, runs[0]):
                continue
            numbers = printed[paper, name]
            seeds = [_measured(run) for run in runs]
            cells: list[Cell | None] = []
            for measure in MEASURES:
                values = [measured[measure] for measured in seeds]
                difference = fmean(values) - numbers[measure]
                cells += [
                    Cell(fmean(values), None, len(values)),
                    Cell(numbers[measure]),
                    Cell(difference, half_width(values), len(values)),
                ]
            rows.append(GridRow(f"{data_set_title(runs[0])}: {method}", tuple(cells)))
            compared.append((paper, name))
    if not rows:
        return None
    columns = [f"{MEASURE_TITLES[m]}{part}" for m in MEASURES for part in ("", " (published)", " difference")]
    source = str(published.sources()["base_to_novel"])
    note = (
        f"Points; ± half-width of the {LEVEL:.0%} t interval over seeds, where there are at least {FEWEST}."
    )
    return Grid(
        "base-to-novel-published",
        "Difference to the published numbers",
        "Data set: method",
        tuple(columns),
        tuple(rows),
        (note, f"Published: {source}.", *slip_notes("base_to_novel", compared)),
        spread=INTERVAL,
    )


def slip_notes(table: str, numbers: Iterable[tuple[str, str]]) -> list[str]:
    """A note for each slip that concerns these numbers of a table, by the paper's method and data set."""
    return [f"Slip: {slip}." for slip in published.slips_of(table, numbers)]


def _printed_as(method: str, run: Record) -> str | None:
    """The paper's name for the method of a column, if it prints it."""
    return published.paper_method(method.removesuffix(f" ({UNLABELLED})"), settings_of(run, "method"))


def _measured(run: Record) -> dict[str, float]:
    base, novel = 100 * accuracy(run, "base"), 100 * accuracy(run, "novel")
    return {"base": base, "novel": novel, "hm": harmonic_mean(base, novel)}


def _mean(runs: Sequence[Record]) -> dict[str, Any]:
    by_run = [_measured(run) for run in runs]
    return {measure: fmean(measured[measure] for measured in by_run) for measure in MEASURES}
