"""The protocols' parts of the report: the interface, the part of a protocol by its name, and the tables of
records of any protocols.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

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


class ProtocolReport(ABC):
    """How the records of one protocol are shown. All methods raise DataError for records that cannot be
    combined in one table.

    Attributes:
        illustrates: True if its records appear only in a section of the page and nowhere else.
        head: The template of the head of the page, if the page begins with this protocol.
        section: The template of a section of its own, in templates/protocols, shown before its tables.
        tables_in_section: Names of its tables that this section shows.
    """

    illustrates: ClassVar[bool] = False
    head: ClassVar[str | None] = None
    section: ClassVar[str | None] = None
    tables_in_section: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def tables(self, records: Sequence[Record]) -> list[Grid]:
        """The tables of at least one record, the main one first."""

    def appendix(self, records: Sequence[Record]) -> list[Grid]:
        """Tables that follow those of all protocols."""
        del records
        return []

    def headline(self, records: Sequence[Record]) -> list[Record]:
        """The records that the page begins with, if it begins with this protocol; otherwise none."""
        del records
        return []

    def figures(self, records: Sequence[Record]) -> dict[str, Figure]:
        """Figures for some of its tables, by the tables' names."""
        del records
        return {}

    def page(self, records: Sequence[Record], main: str, reference: str | None) -> dict[str, Any]:
        """The protocol's variables for its templates, also if there are no records. ``main`` is the method
        that the page is about, ``reference`` the one it is compared with.
        """
        del records, main, reference
        return {}


@cache
def report_of(protocol: str) -> ProtocolReport:
    """The report of a protocol: ``REPORT`` in the file of this folder named like the protocol's own file, or
    the entry under its name if one file holds several. Raises UnknownNameError.
    """
    module = protocol_class(protocol).__module__.rpartition(".")[2]
    reports = import_module(f"{__name__}.{module}").REPORT
    report: ProtocolReport = reports[protocol] if isinstance(reports, dict) else reports
    return report


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
    tables = [grid for name, group in by_protocol(records).items() for grid in report_of(name).tables(group)]
    return tables + appendix_of(records)


def appendix_of(records: Iterable[Record]) -> list[Grid]:
    """The appendix tables of all protocols, which follow the other tables."""
    groups = by_protocol(records)
    return [grid for name, group in groups.items() for grid in report_of(name).appendix(group)]
