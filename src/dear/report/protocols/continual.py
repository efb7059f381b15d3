"""Continual learning in the report: accuracy after each group of classes."""

from collections.abc import Sequence
from statistics import fmean

from dear.evaluation.schema import part_of
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.protocols.base import ProtocolReport
from dear.report.reading import (
    CHANCE,
    Record,
    accuracy,
    checked,
    data_set,
    data_set_title,
    grouped,
    method_label,
)


class ContinualReport(ProtocolReport):
    """One row per data set and method, one column per group; then their average, and the final accuracy on
    the first group.
    """

    def tables(self, records: Sequence[Record]) -> list[Grid]:
        found = checked(records)
        groups = max(len(part_of(record, "results", "seen")) for record in found)
        rows: list[GridRow] = []
        for of_data in grouped(found, data_set).values():
            title = data_set_title(of_data[0])
            methods = grouped(of_data, method_label)
            rows += _chance(f"{title}: {CHANCE}", of_data[0], groups)
            rows += marked([_row(f"{title}: {method}", runs, groups) for method, runs in methods.items()])
        columns = (*(f"Group {at + 1}" for at in range(groups)), "Average", "Group 1, at the end")
        notes = (
            "Percent, mean over seeds. Group n: accuracy among all classes seen so far, after training on "
            "the n-th group alone; no images of earlier groups are kept. Average: mean of these. Group 1, "
            "at the end: classes of the first group, among all classes, after the last group.",
        )
        return [Grid("continual", "Continual learning", "Data set: method", columns, tuple(rows), notes)]


REPORT = ContinualReport()


def _row(label: str, runs: Sequence[Record], groups: int) -> GridRow:
    seen = [[100 * accuracy(run, "seen", at) for at in range(_groups(run))] for run in runs]
    by_group = [[one[at] for one in seen if at < len(one)] for at in range(groups)]
    cells = [Cell.of(values) if values else None for values in by_group]
    cells += [Cell.of([fmean(one) for one in seen])]
    cells += [Cell.of([100 * float(part_of(run, "results", "first")) for run in runs])]
    return GridRow(label, tuple(cells))


def _chance(label: str, run: Record, groups: int) -> list[GridRow]:
    """A row of guessing among all classes seen after each group, if the record tells their numbers."""
    seen = [one.get("classes") for one in part_of(run, "results", "seen")]
    if not all(seen):
        return []
    guessed = [100 / count for count in seen]
    cells = [Cell(value) for value in guessed] + [None] * (groups - len(seen))
    return [GridRow(label, (*cells, Cell(fmean(guessed)), Cell(guessed[-1])))]


def _groups(run: Record) -> int:
    return len(part_of(run, "results", "seen"))
