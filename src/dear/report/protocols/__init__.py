"""What the report says of the runs of each protocol: ``summarize`` in the file named like the protocol's own.
All raise DataError for records that cannot be combined in one table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from pandas import DataFrame

from dear.errors import warn
from dear.evaluation.protocols import PROTOCOLS
from dear.report.differences import difference_grid
from dear.report.drawing import Drawing
from dear.report.grid import Cell, Grid
from dear.report.records import Record, choice_notes, deviation_notes, grouped, protocol, readable


@dataclass(frozen=True)
class Figure:
    """A figure of the page above the table ``grid``; ``name`` is its heading, for screen readers too."""

    grid: str
    drawing: Drawing
    name: str
    caption: str


@dataclass(frozen=True)
class Summary:
    """What the report says of the runs of a protocol.

    Attributes:
        runs: Those that the page describes; the others are rows of the ablation tables among ``grids``.
        standing: What the page begins with: by measure the numbers of methods, the verdict last.
        outcomes: A row a run: "label", "title" of what it was tested on, "seed", and the "value", in percent,
            of the ``measure`` by which methods are compared; None if they are not.
        template: What shows the tables on the page, with its ``variables`` as "part"; None shows each table
            below its heading.
    """

    runs: Sequence[Record]
    grids: Sequence[Grid]
    figures: Sequence[Figure] = ()
    standing: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    outcomes: DataFrame | None = None
    measure: str = ""
    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


def summaries_of(
    records: Sequence[Record], reference: str | None = None, against: str | None = None
) -> list[Summary]:
    """The summary of each protocol, in their order; ``reference`` is the method that others are compared to.
    With ``against``, a further table compares all methods with that one, where the protocol compares any.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    groups, summaries = grouped(records, protocol), list[Summary]()
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
