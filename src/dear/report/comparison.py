"""Differences: between methods, paired over data sets, and to published numbers, over seeds."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from dear.evaluation.schema import harmonic_mean
from dear.report import published
from dear.report.grid import Cell, Grid, GridRow
from dear.report.intervals import half_width, paired
from dear.report.reading import Record, accuracy, checked, data_set, data_set_title, grouped, method_label
from dear.report.tables import MEASURES, SHOWN


def paired_grid(records: Sequence[Record]) -> Grid | None:
    """Each method minus the first: mean difference over the data sets that both have, with its 95% interval;
    None if there is only one method.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    methods = grouped(checked(records), method_label)
    first = next(iter(methods))
    means = {
        method: {name: _mean(runs) for name, runs in _by_data(group).items()}
        for method, group in methods.items()
    }
    rows = []
    for method in [*methods][1:]:
        shared = [name for name in means[first] if name in means[method]]
        if not shared:
            continue
        cells = []
        for measure in MEASURES:
            one, other = ([means[m][name][measure] for name in shared] for m in (method, first))
            cells.append(Cell(*paired(one, other), len(shared)))
        rows.append(GridRow(f"{method} − {first}", tuple(cells)))
    if not rows:
        return None
    note = "Points. Mean over data sets ± half-width of the 95% t interval of the paired differences."
    columns = tuple(SHOWN[measure] for measure in MEASURES)
    return Grid("base-to-novel-paired", f"Difference to {first}", "Methods", columns, tuple(rows), (note,))


def published_grid(records: Sequence[Record]) -> Grid | None:
    """Our numbers minus the published ones, for the methods and data sets that the paper prints; with at
    least two seeds also half the width of the 95% t interval. None if there is nothing to compare.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    printed = published.base_to_novel()
    rows, slips = [], []
    for method, group in grouped(checked(records), method_label).items():
        paper = published.paper_method(method)
        for runs in _by_data(group).values():
            name = published.paper_data_set(data_set(runs[0]))
            if paper is None or (paper, name) not in printed:
                continue
            numbers = printed[paper, name]
            seeds = [_measured(run) for run in runs]
            cells: list[Cell | None] = []
            for measure in MEASURES:
                values = [one[measure] for one in seeds]
                difference = fmean(values) - numbers[measure]
                cells += [
                    Cell(fmean(values), None, len(values)),
                    Cell(numbers[measure]),
                    Cell(difference, half_width(values), len(values)),
                ]
            rows.append(GridRow(f"{data_set_title(runs[0])}: {method}", tuple(cells)))
            slips += [str(slip) for slip in published.slips() if (slip.method, slip.dataset) == (paper, name)]
    if not rows:
        return None
    columns = [f"{SHOWN[m]}{part}" for m in MEASURES for part in ("", " (published)", " difference")]
    source = str(published.sources()["base_to_novel"])
    note = "Points; ± half-width of the 95% t interval over seeds, where there are at least two."
    return Grid(
        "base-to-novel-published",
        "Difference to the published numbers",
        "Data set: method",
        tuple(columns),
        tuple(rows),
        (note, f"Published: {source}.", *(f"Error in the paper: {slip}." for slip in slips)),
    )


def slips_grid() -> Grid:
    """The published HMs that contradict their own base and novel."""
    printed = published.base_to_novel()
    rows = tuple(
        GridRow(
            f"{slip.dataset}: {slip.method}",
            (
                Cell(printed[slip.method, slip.dataset]["base"]),
                Cell(printed[slip.method, slip.dataset]["novel"]),
                Cell(slip.printed),
                Cell(slip.computed),
            ),
            published=True,
        )
        for slip in published.slips()
    )
    return Grid(
        "published-slips",
        "Errors in the published base-to-novel table",
        "Data set: method",
        ("Base", "Novel", "HM as printed", "HM of base and novel"),
        rows,
        (f"Published: {published.sources()['base_to_novel']}. All rows that differ by more than "
         f"{published.TOLERANCE} points.",),
    )  # fmt: skip


def _by_data(records: Sequence[Record]) -> dict[str, list[Record]]:
    return grouped(records, data_set)


def _measured(run: Record) -> dict[str, float]:
    base, novel = 100 * accuracy(run, "base"), 100 * accuracy(run, "novel")
    return {"base": base, "novel": novel, "hm": harmonic_mean(base, novel)}


def _mean(runs: Sequence[Record]) -> dict[str, Any]:
    found = [_measured(run) for run in runs]
    return {measure: fmean(one[measure] for one in found) for measure in MEASURES}
