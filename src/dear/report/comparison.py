"""Differences: between methods, paired over data sets, and to published numbers, over seeds."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from dear.evaluation.schema import harmonic_mean
from dear.report import published
from dear.report.grid import Cell, Grid, GridRow
from dear.report.intervals import half_width, paired
from dear.report.reading import (
    UNLABELLED,
    Record,
    accuracy,
    checked,
    data_set,
    data_set_title,
    grouped,
    method_label,
)
from dear.report.tables import MEASURES, SHOWN

FEWEST = 3  # data sets for an interval
TOO_FEW = (
    f"No interval over fewer than {FEWEST} data sets: that of two is 12.7 standard errors wide to each side, "
    "and says nothing."
)


def paired_grid(records: Sequence[Record]) -> Grid | None:
    """Each method minus the first: mean difference over the data sets that both have, with its 95% interval
    (over two data sets without); None if there is only one method.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    methods = grouped(checked(records), method_label)
    first = next(iter(methods))
    means = {
        method: {name: _mean(runs) for name, runs in _by_data(group).items()}
        for method, group in methods.items()
    }
    rows, few = [], False
    for method in [*methods][1:]:
        shared = [name for name in means[first] if name in means[method]]
        if not shared:
            continue
        cells = []
        for measure in MEASURES:
            one, other = ([means[m][name][measure] for name in shared] for m in (method, first))
            mean, half = paired(one, other)
            cells.append(Cell(mean, half if len(shared) >= FEWEST else None, len(shared)))
            few = few or len(shared) < FEWEST
        rows.append(GridRow(f"{method} − {first}", tuple(cells)))
    if not rows:
        return None
    notes = ["Points. Mean over data sets ± half-width of the 95% t interval of the paired differences."]
    if few:
        notes = (
            notes
            if any(cell and cell.spread is not None for row in rows for cell in row.cells)
            else ["Points. Mean over data sets."]
        )
        notes.append(TOO_FEW)
    columns = tuple(SHOWN[measure] for measure in MEASURES)
    return Grid(
        "base-to-novel-paired", f"Difference to {first}", "Methods", columns, tuple(rows), tuple(notes)
    )


def published_grid(records: Sequence[Record]) -> Grid | None:
    """Our numbers minus the published ones, for the methods and data sets that the paper prints and runs with
    the backbone and shots of its numbers; with at least two seeds also half the width of the 95% t interval.
    None if there is nothing to compare.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    printed = published.base_to_novel()
    rows, shown = [], []
    for method, group in grouped(checked(records), method_label).items():
        paper = _printed_as(method, group[0])
        for runs in _by_data(group).values():
            name = published.paper_data_set(data_set(runs[0]))
            if paper is None or (paper, name) not in printed or not published.comparable(paper, runs[0]):
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
            shown.append((paper, name))
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
        (note, f"Published: {source}.", *slip_notes("base_to_novel", shown)),
    )


def slip_notes(table: str, shown: Iterable[tuple[str, str]]) -> list[str]:
    """A note for each slip that concerns printed numbers shown, by the paper's method and data set."""
    return [f"Slip: {slip}." for slip in published.slips_of(table, shown)]


def _printed_as(method: str, run: Record) -> str | None:
    """The paper's name for the method of a column, if it prints it."""
    settings = (run.get("settings") or {}).get("method")
    method = method.removesuffix(f" ({UNLABELLED})")
    return published.paper_method(method, settings if isinstance(settings, Mapping) else None)


def _by_data(records: Sequence[Record]) -> dict[str, list[Record]]:
    return grouped(records, data_set)


def _measured(run: Record) -> dict[str, float]:
    base, novel = 100 * accuracy(run, "base"), 100 * accuracy(run, "novel")
    return {"base": base, "novel": novel, "hm": harmonic_mean(base, novel)}


def _mean(runs: Sequence[Record]) -> dict[str, Any]:
    found = [_measured(run) for run in runs]
    return {measure: fmean(one[measure] for one in found) for measure in MEASURES}
