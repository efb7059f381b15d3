"""The result table in the paper's shape: data sets down, methods across, base / novel / HM for each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from dear.evaluation.harmonic import harmonic_mean
from dear.report.reading import (
    HALVES,
    Record,
    accuracy,
    checked,
    data_set,
    data_set_title,
    grouped,
    method_label,
)

Measure = Literal["base", "novel", "hm"]

MEASURES: tuple[Measure, ...] = ("base", "novel", "hm")
SHOWN: Mapping[Measure, str] = {"base": "Base", "novel": "Novel", "hm": "HM"}
DECIMALS = 2
MISSING = "–"

# By seed: (base, novel), fractions.
Pairs = Mapping[Any, tuple[float, float]]


@dataclass(frozen=True)
class Entry:
    """One number, in percent. The deviation is the sample's (n - 1), None with a single seed."""

    mean: float
    std: float | None
    seeds: int
    best: bool = False
    second: bool = False

    @property
    def value(self) -> str:
        """The mean as shown."""
        return f"{self.mean:.{DECIMALS}f}"

    @property
    def spread(self) -> str:
        """The deviation as shown, empty where there is none."""
        return "" if self.std is None else f"± {self.std:.{DECIMALS}f}"

    def __str__(self) -> str:
        return f"{self.value} {self.spread}".rstrip()


@dataclass(frozen=True)
class Row:
    """The numbers of one data set: for each method its base, novel and HM, or None where there is no run."""

    title: str
    entries: tuple[dict[Measure, Entry] | None, ...]


@dataclass(frozen=True)
class Table:
    """A result table, in percent; `average` has None for a method that lacks a data set of the table.

    Each HM is that of the base and novel that stand beside it; its deviation is that of the HM by seed.
    """

    methods: tuple[str, ...]
    rows: tuple[Row, ...]
    average: Row

    @property
    def with_average(self) -> tuple[Row, ...]:
        """All rows, the average last."""
        return (*self.rows, self.average)

    def render(self, console: Console) -> None:
        """Print the table for people, the best of a row in bold; a line a method where too wide."""
        across = self._methods_across()
        wide = console.measure(across, options=console.options.update(width=10_000)).maximum
        console.print(across if wide <= console.width else self._methods_down())

    def _methods_across(self) -> RichTable:
        shown = RichTable(box=SIMPLE_HEAD, pad_edge=False)
        shown.add_column("\nData set", no_wrap=True)
        for method in self.methods:
            for measure in MEASURES:
                above = escape(method) if measure == MEASURES[0] else ""
                shown.add_column(f"{above}\n{SHOWN[measure]}", justify="right", no_wrap=True)
        for row in self.with_average:
            if row is self.average:
                shown.add_section()
            shown.add_row(escape(row.title), *(_rich(entry) for entry in self._flat(row)))
        return shown

    def _methods_down(self) -> RichTable:
        shown = RichTable(box=SIMPLE_HEAD, pad_edge=False)
        for name in ("Data set", "Method"):
            shown.add_column(name)
        for measure in MEASURES:
            shown.add_column(SHOWN[measure], justify="right", no_wrap=True)
        for row in self.with_average:
            for at, (method, cell) in enumerate(zip(self.methods, row.entries, strict=True)):
                numbers = [_rich(cell[measure] if cell else None) for measure in MEASURES]
                shown.add_row("" if at else escape(row.title), escape(method), *numbers)
            shown.add_section()
        return shown

    def entry(self, method: str, title: str | None = None) -> dict[Measure, Entry] | None:
        """The numbers of a method on the data set of that title, or on average."""
        row = self.average if title is None else next(row for row in self.rows if row.title == title)
        return row.entries[self.methods.index(method)]

    def _flat(self, row: Row) -> list[Entry | None]:
        return [None if cell is None else cell[measure] for cell in row.entries for measure in MEASURES]


def base_to_novel_table(records: Iterable[Record]) -> Table:
    """The base-to-novel table of some run records, data sets and methods in the order met.

    A method has an average where it has every data set of the table; its HM is the HM of the averages (the
    paper's rule), and it has a deviation where every data set has the same seeds.

    Raises:
        DataError: for records that may not stand in one table (see `checked`) or lack a number.
    """
    found = checked(records, "base-to-novel")
    methods = grouped(found, method_label)
    pairs = {
        (method, name): {run.get("seed"): (accuracy(run, "base"), accuracy(run, "novel")) for run in runs}
        for method, of_method in methods.items()
        for name, runs in grouped(of_method, data_set).items()
    }
    data_sets = {name: data_set_title(runs[0]) for name, runs in grouped(found, data_set).items()}
    rows = [
        _row(title, [numbers(pairs.get((method, name))) for method in methods])
        for name, title in data_sets.items()
    ]
    averages = [average([pairs.get((method, name)) for name in data_sets]) for method in methods]
    return Table(tuple(methods), tuple(rows), _row("Average", averages))


def numbers(pairs: Pairs | None) -> dict[Measure, Entry] | None:
    """Means over seeds, in percent."""
    if not pairs:
        return None
    base, novel = ([100 * pair[half] for pair in pairs.values()] for half in range(len(HALVES)))
    hms = [harmonic_mean(*both) for both in zip(base, novel, strict=True)]
    means = (fmean(base), fmean(novel), harmonic_mean(fmean(base), fmean(novel)))
    return {
        measure: Entry(mean, stdev(values) if len(values) > 1 else None, len(values))
        for measure, mean, values in zip(MEASURES, means, (base, novel, hms), strict=True)
    }


def average(by_data_set: Sequence[Pairs | None]) -> dict[Measure, Entry] | None:
    """The average over data sets, None where one is missing."""
    found = [pairs for pairs in by_data_set if pairs]
    if len(found) < len(by_data_set):
        return None
    if all(pairs.keys() == found[0].keys() for pairs in found):
        by_seed = {seed: _mean_pair([pairs[seed] for pairs in found]) for seed in found[0]}
        return numbers(by_seed)
    # Seeds differ between data sets: the average of the means is all that can be said.
    mean = _mean_pair([_mean_pair(list(pairs.values())) for pairs in found])
    entries = numbers({None: mean})
    fewest = min(len(pairs) for pairs in found)
    return entries and {measure: Entry(entry.mean, None, fewest) for measure, entry in entries.items()}


def _mean_pair(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return fmean(base for base, _ in pairs), fmean(novel for _, novel in pairs)


def _row(title: str, cells: Sequence[dict[Measure, Entry] | None]) -> Row:
    """A row with the best and the second of each measure marked: equal as shown is equally good; alone is not
    best, and of two the other is not second.
    """
    present = [cell for cell in cells if cell is not None]
    if len(present) < 2:
        return Row(title, tuple(cells))
    levels = {
        measure: sorted({round(cell[measure].mean, DECIMALS) for cell in present}, reverse=True)
        for measure in MEASURES
    }
    marked: list[dict[Measure, Entry] | None] = []
    for cell in cells:
        marked.append(
            cell
            and {
                measure: replace(
                    entry,
                    best=(place := levels[measure].index(round(entry.mean, DECIMALS))) == 0,
                    second=place == 1 and len(present) > 2,
                )
                for measure, entry in cell.items()
            }
        )
    return Row(title, tuple(marked))


def _rich(entry: Entry | None) -> str:
    if entry is None:
        return MISSING
    return f"[bold]{entry}[/bold]" if entry.best else str(entry)
