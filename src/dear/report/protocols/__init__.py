"""The protocols' parts of the report, each in the file named like the protocol's own: ``tables``, and where
there are any ``appendix`` (tables that follow those of all protocols) and ``figures`` (above its tables, by
their names). All raise DataError for records that cannot be combined in one table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dear.evaluation.protocols import PROTOCOLS, protocol_class
from dear.report.drawing import Drawing
from dear.report.grid import Grid
from dear.report.records import Record, protocol, readable


@dataclass(frozen=True)
class Figure:
    """A figure above a table of the page; ``name`` is its text alternative, for screen readers."""

    drawing: Drawing | None
    name: str
    caption: str


def parts_of(what: str, records: Sequence[Record]) -> list[Any]:
    """What the protocols of some records make of them: their "tables", "appendix" or "figures"."""
    made = []
    for name, group in by_protocol(records).items():
        module = import_module(f"{__name__}.{protocol_class(name).__module__.rpartition('.')[2]}")
        if make := getattr(module, what, None):
            made += make(group)
    return made


def by_protocol(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records grouped by protocol, in the order of the protocols."""
    records = list(records)
    groups = {name: [record for record in records if protocol(record) == name] for name in PROTOCOLS}
    return {name: group for name, group in groups.items() if group}


def tables_of(records: Iterable[Record]) -> list[Grid]:
    """All tables of some records, in the order of the protocols, followed by the appendix tables.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    records = readable(records)
    return parts_of("tables", records) + parts_of("appendix", records)
