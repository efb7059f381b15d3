"""The protocols' parts of the report, each in the file named like the protocol's own: ``tables``, and where
there are any ``appendix`` (tables that follow those of all protocols), ``figures`` (above its tables) and
``standing`` (what the page begins with). All raise DataError for records that cannot be combined in one
table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dear.evaluation.protocols import PROTOCOLS, protocol_class
from dear.report.drawing import Drawing
from dear.report.grid import Grid
from dear.report.records import Record, grouped, protocol, readable


@dataclass(frozen=True)
class Figure:
    """A figure of the page above the table ``grid``; ``name`` is its heading, for screen readers too."""

    grid: str
    drawing: Drawing | None
    name: str
    caption: str


def parts_of(what: str, records: Sequence[Record], *options: Any) -> list[Any]:
    """What the protocols of some records make of them, in their order: their "tables", "appendix", "figures"
    or "standing".
    """
    groups, parts = grouped(records, protocol), list[Any]()
    for name in sorted(groups, key=[*PROTOCOLS].index):
        module = import_module(f"{__name__}.{protocol_class(name).__module__.rpartition('.')[2]}")
        parts += getattr(module, what)(groups[name], *options) if hasattr(module, what) else []
    return parts


def tables_of(records: Iterable[Record]) -> list[Grid]:
    """All tables of some records, in the order of the protocols, followed by the appendix tables.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    records = readable(records)
    return parts_of("tables", records) + parts_of("appendix", records)
