"""The cross-dataset and domain generalization tables: methods down; source, average and targets across."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from dear.evaluation.schema import part_of
from dear.report import published
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.protocols import ProtocolReport
from dear.report.records import (
    AVERAGE,
    CHANCE,
    Record,
    accuracy,
    checked,
    class_count,
    data_set_title,
    distinct,
    grouped,
    method_label,
    tuned,
    user_data_only,
)

TITLES = {
    "cross-dataset": "Cross-dataset transfer",
    "domain-generalization": "Domain generalization",
}

RULE = {
    "cross-dataset": "class feature alone, as in the paper",
    "domain-generalization": "class feature alone, our choice: the paper specifies it for cross-dataset only",
}

USER_DATA_RULE = "class feature alone"

FUSED_NOTE = (
    "Fused: scored with all features instead; on targets, methods whose authors fuse on the source only "
    "are scored by the class feature alone."
)


TUNED_NOTE = (
    "Tuned on targets: with settings that the method's authors chose for each target; such rows are never "
    "marked as best."
)


def transfer_grid(records: Iterable[Record], protocol: str) -> Grid:
    """The table of one of the two protocols, with published rows if the targets are the paper's.

    Accuracies are those of the class feature alone: the paper's rule for cross-dataset transfer, our choice
    for domain generalization, for which it gives none. A method that fuses features has a second row with the
    fused accuracy, never marked as best; nor are methods that were tuned on the targets. A method has an
    average if it has every target.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    records = checked(records)
    source = data_set_title(records[0])
    titles = {
        str(t["name"]): str(t.get("title") or t["name"]) for run in records for t in part_of(run, "targets")
    }
    methods = grouped(records, method_label)
    untuned = {method for method, runs in methods.items() if not any(map(tuned, runs))}
    decoupled = [_row(method, runs, titles, "decoupled") for method, runs in methods.items()]
    ranked = {row.label: row for row in marked([row for row in decoupled if row.label in untuned])}
    rows = []
    for row, runs in zip(decoupled, methods.values(), strict=True):
        fused = _row(f"{row.label}, fused", runs, titles, "accuracy")
        differs = [cell and cell.mean for cell in row.cells] != [cell and cell.mean for cell in fused.cells]
        rows += [ranked.get(row.label, row), *([fused] if differs else [])]
    printed = _published(protocol, str(part_of(records[0], "dataset", "name")), titles)
    any_fused = any(row.label.endswith(", fused") for row in rows)
    rows = [*_chance(records[0], titles), *rows, *printed]
    rule = USER_DATA_RULE if user_data_only(records) else RULE[protocol]
    seeds = len(distinct(run.get("seed") for run in records))
    return Grid(
        protocol,
        TITLES[protocol],
        "Method",
        (f"{source} (source)", AVERAGE, *titles.values()),
        tuple(rows),
        (
            f"Percent, {seeds} seed{'s' if seeds > 1 else ''}"
            f"{', mean ± standard deviation' if seeds > 1 else ''}; {rule}; "
            "the average excludes the source.",
            *([FUSED_NOTE] if any_fused else ()),
            *([TUNED_NOTE] if len(untuned) < len(methods) else ()),
            *([f"Published: {published.sources()[protocol.replace('-', '_')]}."] if printed else ()),
        ),
    )


class TransferReport(ProtocolReport):
    """The table of one of the two protocols."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol

    def tables(self, records: Sequence[Record]) -> list[Grid]:
        return [transfer_grid(records, self.protocol)]


REPORT = {name: TransferReport(name) for name in TITLES}


def _row(label: str, runs: Sequence[Record], names: Iterable[str], read: str) -> GridRow:
    by_target = {name: [v for run in runs if (v := _target(run, name, read)) is not None] for name in names}
    complete = all(len(values) == len(runs) for values in by_target.values())
    averages = [fmean(of_run) for of_run in zip(*by_target.values(), strict=True)] if complete else []
    source = [100 * accuracy(run, "source", read=read) for run in runs]
    columns = [source, averages, *by_target.values()]
    return GridRow(label, tuple(Cell.of(values) if values else None for values in columns))


def _chance(run: Record, names: Iterable[str]) -> list[GridRow]:
    """A row of guessing among the classes of each data set, if the record tells their number."""
    targets: Any = part_of(run, "results", "targets")
    counts = [len((targets.get(name) or {}).get("per_class") or ()) for name in names]
    source = class_count(run)
    if not source or not all(counts):
        return []
    chances = [100 / count for count in counts]
    return [GridRow(CHANCE, tuple(Cell(value) for value in (100 / source, fmean(chances), *chances)))]


def _target(run: Record, name: str, read: str) -> float | None:
    targets: Any = part_of(run, "results", "targets")
    return 100 * accuracy(run, "targets", name, read=read) if name in targets else None


def _published(protocol: str, source: str, names: Iterable[str]) -> list[GridRow]:
    """The paper's rows if it has any of these targets, with its average if it has all of them."""
    rows = []
    columns = [published.paper_data_set(name) for name in names]
    for method, numbers in published.transfer(protocol).items():
        targets = set(numbers) - {"ImageNet", "average"}
        if not targets & set(columns):
            continue
        complete = targets <= set(columns)
        values = [numbers.get("ImageNet") if source == "ImageNet" else None]
        values.append(numbers["average"] if complete else None)
        values += [None if name == "average" else numbers.get(name) for name in columns]
        rows.append(GridRow(method, tuple(None if v is None else Cell(v) for v in values), published=True))
    return rows
