"""The base-to-novel table in the paper's layout: data sets down, methods across; base, novel and HM."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from dear.evaluation.schema import harmonic_mean
from dear.report.grid import MISSING, Cell, Grid, GridRow, marked, rich_cell
from dear.report.records import (
    AVERAGE,
    CHANCE,
    HALVES,
    Record,
    accuracy,
    checked,
    class_count,
    data_set,
    data_set_title,
    grouped,
    method_label,
)

Measure = Literal["base", "novel", "hm"]

MEASURES: tuple[Measure, ...] = ("base", "novel", "hm")
MEASURE_TITLES: Mapping[Measure, str] = {"base": "Base", "novel": "Novel", "hm": "HM"}

Pairs = Mapping[Any, tuple[float, float]]
"""By seed: (base, novel), fractions."""

Entry = dict[Measure, Cell]
"""Base, novel and HM of a method on a data set, in percent."""


@dataclass(frozen=True)
class Row:
    """The numbers of one data set: base, novel and HM for each method, or None if there is no run; and those
    of guessing, or None if the records do not tell the classes.
    """

    title: str
    entries: tuple[Entry | None, ...]
    chance: Entry | None = None

    @property
    def chance_text(self) -> str:
        """Chance on base and novel classes, in percent."""
        return MISSING if self.chance is None else " / ".join(self.chance[m].value for m in MEASURES[:2])


@dataclass(frozen=True)
class Table:
    """A result table, in percent; `average` has None for a method that lacks a data set of the table.

    Each HM is that of the base and novel beside it; its deviation is that of the per-seed HMs.
    """

    methods: tuple[str, ...]
    rows: tuple[Row, ...]
    average: Row

    @property
    def with_average(self) -> tuple[Row, ...]:
        """All rows, the average last."""
        return (*self.rows, self.average)

    def render(self, console: Console) -> None:
        """Print the table, the best of a row in bold; one line per method if it would be too wide."""
        across = self._methods_across()
        wide = console.measure(across, options=console.options.update(width=10_000)).maximum
        if wide <= console.width:
            console.print(across)
        else:
            base_to_novel_grid(self).render(console)

    def _methods_across(self) -> RichTable:
        printed = RichTable(box=SIMPLE_HEAD, pad_edge=False)
        printed.add_column("\nData set", no_wrap=True)
        printed.add_column(f"{CHANCE}\nBase / Novel", justify="right", no_wrap=True)
        for method in self.methods:
            for measure in MEASURES:
                above = escape(method) if measure == MEASURES[0] else ""
                printed.add_column(f"{above}\n{MEASURE_TITLES[measure]}", justify="right", no_wrap=True)
        for row in self.with_average:
            if row is self.average:
                printed.add_section()
            printed.add_row(
                escape(row.title),
                row.chance_text,
                *(rich_cell(None if entry is None else entry[m]) for entry in row.entries for m in MEASURES),
            )
        return printed

    def entry(self, method: str, title: str | None = None) -> Entry | None:
        """The numbers of a method on the data set with that title, or on average."""
        row = self.average if title is None else next(row for row in self.rows if row.title == title)
        return row.entries[self.methods.index(method)]


def base_to_novel_table(records: Iterable[Record]) -> Table:
    """The base-to-novel table of some run records, data sets and methods in order of first appearance.

    A method has an average if it has every data set of the table; its HM is the HM of the averages (the
    paper's rule), and it has a deviation if every data set has the same seeds.

    Raises:
        DataError: for records that cannot be combined in one table (see `checked`) or lack a number.
    """
    records = checked(records)
    methods, data_sets = grouped(records, method_label), grouped(records, data_set)
    pairs = {
        (method, name): {run.get("seed"): (accuracy(run, "base"), accuracy(run, "novel")) for run in runs}
        for method, of_method in methods.items()
        for name, runs in grouped(of_method, data_set).items()
    }
    chances = {name: chance_pairs(runs[0]) for name, runs in data_sets.items()}
    rows = [
        _row(
            data_set_title(runs[0]),
            [numbers(pairs.get((method, name))) for method in methods],
            numbers(chances[name]),
        )
        for name, runs in data_sets.items()
    ]
    averages = [average([pairs.get((method, name)) for name in data_sets]) for method in methods]
    return Table(tuple(methods), tuple(rows), _row(AVERAGE, averages, average([*chances.values()])))


def chance_pairs(run: Record) -> Pairs | None:
    """The accuracy of guessing among the base classes, the first ceil(n / 2), and among the novel ones."""
    classes = class_count(run) or 0
    base = (classes + 1) // 2
    return {None: (1 / base, 1 / (classes - base))} if classes > base else None


def numbers(pairs: Pairs | None) -> Entry | None:
    """Means over seeds, in percent."""
    if not pairs:
        return None
    base, novel = ([100 * pair[half] for pair in pairs.values()] for half in range(len(HALVES)))
    hms = [harmonic_mean(*both) for both in zip(base, novel, strict=True)]
    means = (fmean(base), fmean(novel), harmonic_mean(fmean(base), fmean(novel)))
    return {
        measure: Cell(mean, stdev(values) if len(values) > 1 else None, len(values))
        for measure, mean, values in zip(MEASURES, means, (base, novel, hms), strict=True)
    }


def average(by_data_set: Sequence[Pairs | None]) -> Entry | None:
    """The average over data sets, None if one is missing."""
    complete = [pairs for pairs in by_data_set if pairs]
    if len(complete) < len(by_data_set):
        return None
    if all(pairs.keys() == complete[0].keys() for pairs in complete):
        return numbers({seed: _mean_pair([pairs[seed] for pairs in complete]) for seed in complete[0]})
    # Seeds differ between data sets: only the average of the means is defined.
    mean = numbers({None: _mean_pair([_mean_pair(list(pairs.values())) for pairs in complete])})
    fewest = min(len(pairs) for pairs in complete)
    return mean and {measure: Cell(cell.mean, None, fewest) for measure, cell in mean.items()}


def _mean_pair(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return fmean(base for base, _ in pairs), fmean(novel for _, novel in pairs)


def base_to_novel_grid(table: Table) -> Grid:
    """The result table as a grid: one row per method and data set."""
    rows = [
        GridRow(f"{row.title}: {method}", _cells(entry))
        for row in table.with_average
        for method, entry in [
            *([] if row.chance is None else [(CHANCE, row.chance)]),
            *zip(table.methods, row.entries, strict=True),
        ]
    ]
    seeds = max((cell.seeds for row in rows for cell in row.cells if cell), default=1)
    note = "Mean ± standard deviation over seeds. " if seeds > 1 else "One seed. "
    return Grid(
        "base-to-novel",
        "Base-to-novel generalization",
        "Data set: method",
        tuple(MEASURE_TITLES[measure] for measure in MEASURES),
        tuple(rows),
        (note + "Percent. The average's HM is that of the averages. Best and second by data set.",),
    )


def _row(title: str, entries: Sequence[Entry | None], chance: Entry | None) -> Row:
    """A row with the best and the second of each measure marked."""
    rows = marked([GridRow("", _cells(entry)) for entry in entries])
    return Row(
        title,
        tuple(
            entry and dict(zip(MEASURES, (cell for cell in row.cells if cell), strict=True))
            for entry, row in zip(entries, rows, strict=True)
        ),
        chance,
    )


def _cells(entry: Entry | None) -> tuple[Cell | None, ...]:
    return tuple(None if entry is None else entry[measure] for measure in MEASURES)
