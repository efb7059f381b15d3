"""The protocols' parts of the report, each in the file named like the protocol's own: ``tables``, and where
there are any ``figures`` (above its tables) and ``standing`` (what the page begins with). All raise DataError
for records that cannot be combined in one table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dear.evaluation.protocols import PROTOCOLS, protocol_class
from dear.report.drawing import Drawing
from dear.report.grid import Cell, Grid
from dear.report.records import Record, grouped, protocol, readable


@dataclass(frozen=True)
class Figure:
    """A figure of the page above the table ``grid``; ``name`` is its heading, for screen readers too."""

    grid: str
    drawing: Drawing
    name: str
    caption: str


def tables_of(records: Iterable[Record]) -> list[Grid]:
    """All tables of some records, in the order of the protocols.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    return [grid for part, runs in _by_protocol(readable(records)) for grid in part.tables(runs)]


def figures_of(records: Sequence[Record], reference: str | None) -> list[Figure]:
    """The figures of some records; ``reference`` is the method that others are compared with."""
    parts = [(part, runs) for part, runs in _by_protocol(records) if hasattr(part, "figures")]
    return [figure for part, runs in parts for figure in part.figures(runs, reference)]


def standing_of(records: Sequence[Record]) -> dict[str, dict[str, Cell]]:
    """What the page begins with, of the first protocol: by measure the numbers of methods, the verdict
    last.
    """
    (part, runs), *_ = _by_protocol(records)
    standing: dict[str, dict[str, Cell]] = part.standing(runs)
    return standing


def _by_protocol(records: Sequence[Record]) -> list[tuple[Any, list[Record]]]:
    """The module of each protocol with its records."""
    groups = grouped(records, protocol)
    modules = {name: protocol_class(name).__module__.rpartition(".")[2] for name in groups}
    return [
        (import_module(f"{__name__}.{modules[name]}"), groups[name])
        for name in sorted(groups, key=[*PROTOCOLS].index)
    ]
