"""The few-shot table: accuracy by number of shots, for each data set and on average."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.plots import AVERAGE, Curves, few_shot_plot
from dear.report.protocols.base import Figure, ProtocolReport
from dear.report.reading import (
    CHANCE,
    Record,
    accuracy,
    checked,
    classes_of,
    data_set,
    data_set_title,
    distinct,
    grouped,
    method_label,
)


def few_shot_curves(records: Iterable[Record]) -> Curves:
    """Means and deviations over seeds, in percent. A method has an average if it has every data set.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    found = checked(records)
    curves: dict[str, dict[str, dict[int, Cell]]] = {}
    sums: dict[tuple[str, int], dict[str, dict[Any, float]]] = {}
    data_sets = grouped(found, data_set)
    for name, of_data in data_sets.items():
        for method, runs in grouped(of_data, method_label).items():
            for shots in sorted(distinct(run.get("shots") for run in runs)):
                by_seed = {
                    run.get("seed"): 100 * accuracy(run, "all") for run in runs if run.get("shots") == shots
                }
                title = data_set_title(of_data[0])
                curves.setdefault(title, {}).setdefault(method, {})[shots] = Cell.of([*by_seed.values()])
                sums.setdefault((method, shots), {})[name] = by_seed
    for (method, shots), by_data in sums.items():
        seeds = set.intersection(*(set(by_seed) for by_seed in by_data.values()))
        if len(by_data) == len(data_sets) and seeds:
            means = [fmean(by_seed[seed] for by_seed in by_data.values()) for seed in sorted(seeds)]
            curves.setdefault(AVERAGE, {}).setdefault(method, {})[shots] = Cell.of(means)
    return curves


def few_shot_grid(records: Iterable[Record]) -> Grid:
    """The curves as a table: one row per data set and method, one column per number of shots."""
    found = list(records)
    curves = few_shot_curves(found)
    guessed = {data_set_title(run): 100 / count for run in checked(found) if (count := classes_of(run))}
    if AVERAGE in curves and {*curves} == {*guessed, AVERAGE}:
        guessed[AVERAGE] = fmean(guessed.values())
    shots = sorted({n for methods in curves.values() for curve in methods.values() for n in curve})
    rows: list[GridRow] = []
    for title, methods in curves.items():
        block = [
            GridRow(f"{title}: {method}", tuple(curve.get(n) for n in shots))
            for method, curve in methods.items()
        ]
        if title in guessed:
            rows.append(GridRow(f"{title}: {CHANCE}", tuple(Cell(guessed[title]) for _ in shots)))
        rows += marked(block)
    columns = tuple("0 shots" if n == 0 else f"{n} shot{'s' if n > 1 else ''}" for n in shots)
    return Grid(
        "few-shot",
        "Few-shot learning",
        "Data set: method",
        columns,
        tuple(rows),
        ("Percent, all classes. 0 shots is zero-shot CLIP.",),
    )


class FewShotReport(ProtocolReport):
    """A table and curves over the shots."""

    def tables(self, records: Sequence[Record]) -> list[Grid]:
        return [few_shot_grid(records)]

    def figures(self, records: Sequence[Record]) -> dict[str, Figure]:
        drawn = few_shot_plot(few_shot_curves(records))
        caption = (
            "Accuracy in percent by images per class (dashed: zero-shot CLIP); bands are standard deviations "
            "over seeds."
        )
        return {"few-shot": Figure(drawn, "Few-shot accuracy by number of shots", caption)}


REPORT = FewShotReport()
