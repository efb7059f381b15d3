"""What the report asks of a protocol's file."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dear.report.grid import Grid
from dear.report.reading import Record


@dataclass(frozen=True)
class Figure:
    """A figure above a table of the page.

    Attributes:
        svg: As `dear.report.svg.inline` gives it.
        name: For those who do not see it.
    """

    svg: str
    name: str
    caption: str


class ProtocolReport(ABC):
    """How the records of one protocol are shown. All functions raise DataError for records that may not stand
    in one table.

    Attributes:
        illustrates: Whether its records have a section of the page only, and are left out of all else.
        head: The template of what it says at the head of the page, if the page begins with it.
        section: The template of a section of its own, in templates/protocols; it stands before its tables.
        placed: Its tables that this section shows, by name.
    """

    illustrates: ClassVar[bool] = False
    head: ClassVar[str | None] = None
    section: ClassVar[str | None] = None
    placed: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def tables(self, records: Sequence[Record]) -> list[Grid]:
        """The tables of one record or more, the main one first."""

    def appendix(self, records: Sequence[Record]) -> list[Grid]:
        """Tables that stand behind those of all protocols."""
        del records
        return []

    def headline(self, records: Sequence[Record]) -> list[Record]:
        """The records that the page begins with, if it begins with this protocol; else none."""
        del records
        return []

    def figures(self, records: Sequence[Record]) -> dict[str, Figure]:
        """A figure for some of its tables, by their names."""
        del records
        return {}

    def page(self, records: Sequence[Record], main: str, reference: str | None) -> dict[str, Any]:
        """What the templates of the protocol are given, also without any record. ``main`` is the method that
        the page is about, ``reference`` what it is compared with.
        """
        del records, main, reference
        return {}
