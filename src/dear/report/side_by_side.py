"""Methods side by side: their averages over the data sets, and the cost of a run of each."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from dear.report.grid import Cell, Grid, GridRow
from dear.report.method_plots import Costs
from dear.report.reading import CHANCE, Record, grouped, method_label
from dear.report.tables import MEASURES, SHOWN, Table

COSTS = ("Trainable parameters", "Seconds per run")
PEAK = "Peak memory, MiB"


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
    many = any(cell and cell.spread is not None for row in rows for cell in row.cells)
    notes = (
        f"Percent, average of the data sets{', mean ± standard deviation over seeds' if many else ''}.",
        "Seconds: median over runs; a run reuses what earlier runs of its process have cached.",
        *([] if memory is None else ["Runs that share a process share its peak memory."]),
    )
    names = (*(SHOWN[measure] for measure in MEASURES), *COSTS, *([] if memory is None else [PEAK]))
    return Grid(
        "base-to-novel-methods", "Methods side by side", "Method", names, tuple(rows), (" ".join(notes),)
    )


def costs_of(table: Table, records: Sequence[Record]) -> list[Costs]:
    """What the methods of the table that have an average reach and need, as in `methods_grid`."""
    runs = grouped(records, method_label)

    def cost(of: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
        cell = _cost(of, values)
        return None if cell is None else cell.mean

    return [
        Costs(
            method,
            entry["hm"].mean,
            cost(max, map(_parameters, runs[method])) or None,
            cost(median, map(_seconds, runs[method])) or None,
        )
        for method, entry in zip(table.methods, table.average.entries, strict=True)
        if entry
    ]


def _cost(
    of: Callable[[list[float]], float], values: Iterable[float | None], decimals: int = 0
) -> Cell | None:
    """One number computed from the values that the records have; None if none has any."""
    known = [value for value in values if value is not None]
    return Cell(of(known), decimals=decimals) if known else None


def _parameters(record: Record) -> float | None:
    return record.get("trainable_parameters")


def _seconds(record: Record) -> float | None:
    """Training and test time."""
    spent = record.get("seconds") or {}
    return spent["train"] + spent["test"] if {"train", "test"} <= {*spent} else None


def _memory(record: Record) -> float | None:
    peaks = record.get("peak_memory") or {}
    return peaks.get("gpu") or peaks.get("resident")
