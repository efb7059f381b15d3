"""The interface of a protocol's part of the report."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dear.report.grid import Grid
from dear.report.reading import Record
from dear.report.svg import Drawing


@dataclass(frozen=True)
class Figure:
    """A figure above a table of the page.

    Attributes:
        svg: Made by `dear.report.svg.draw`.
        name: Text alternative, for screen readers.
    """

    svg: Drawing
    name: str
    caption: str


class ProtocolReport(ABC):
    """How the records of one protocol are shown. All methods raise DataError for records that cannot be
    combined in one table.

    Attributes:
        illustrates: Whether its records appear only in a section of the page and nowhere else.
        head: The template of the head of the page, if the page begins with this protocol.
        section: The template of a section of its own, in templates/protocols, shown before its tables.
        placed: Names of its tables that this section shows.
    """

    illustrates: ClassVar[bool] = False
    head: ClassVar[str | None] = None
    section: ClassVar[str | None] = None
    placed: ClassVar[frozenset[str]] = frozenset()

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
        """The protocol's variables for its templates, also if there are no records; drawings among them
        become markup. ``main`` is the method
        that the page is about, ``reference`` the one it is compared with.
        """
        del records, main, reference
        return {}
