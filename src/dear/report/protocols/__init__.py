"""What the report says of the runs of each protocol: ``summarize`` in the file named like the protocol's own.
All raise DataError for records that cannot be combined in one table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module

from dear.errors import warn
from dear.evaluation.protocols import PROTOCOLS
from dear.report.differences import difference_grid
from dear.report.grid import Grid
from dear.report.records import Record, choice_notes, deviation_notes, grouped, protocol, readable
from dear.report.summary import ProtocolSummary


def summaries_of(
    records: Sequence[Record], reference: str | None = None, against: str | None = None
) -> list[ProtocolSummary]:
    """The summary of each protocol, in their order; ``reference`` is the method that others are compared to.
    With ``against``, a further table compares all methods with that one, where the protocol compares any.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    groups, summaries = grouped(records, protocol), list[ProtocolSummary]()
    for name in sorted(groups, key=[*PROTOCOLS].index):
        module = import_module(f"{__name__}.{PROTOCOLS[name].__module__.rpartition('.')[2]}")
        summary, runs = module.summarize(groups[name], reference), groups[name]
        tables = [(grid, runs) for grid in summary.grids]
        if against is not None and summary.outcomes is None:
            warn(f"{name} has no comparison of methods: --against {against} does not apply to its records.")
        elif against is not None:
            runs = summary.runs  # without those of the ablations
            tables.append((difference_grid(name, summary.measure, summary.outcomes, runs, against), runs))
        grids = [
            replace(grid, notes=(*grid.notes, *deviation_notes(of_grid), *choice_notes(of_grid)))
            for grid, of_grid in tables
        ]
        summaries.append(replace(summary, grids=grids))
    return summaries


def tables_of(records: Iterable[Record]) -> list[Grid]:
    """All tables of some records. Raises DataError as `summaries_of`."""
    return [grid for summary in summaries_of(readable(records)) for grid in summary.grids]
