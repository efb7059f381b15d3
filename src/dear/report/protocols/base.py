"""What the report asks of a protocol's file."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from dear.report.grid import Grid
from dear.report.reading import Record


class ProtocolReport(ABC):
    """How the records of one protocol are shown. All functions raise DataError for records that may not stand
    in one table.

    Attributes:
        illustrates: Whether its records have a section of the page only, and are left out of all else.
        placed: Its tables that the page shows in a place of their own, by name.
    """

    illustrates: ClassVar[bool] = False
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

    def page(self, records: Sequence[Record], main: str, reference: str | None) -> dict[str, Any]:
        """What the page's template is given of the protocol, also without any record. ``main`` is the method
        that the page is about, ``reference`` what it is compared with.
        """
        del records, main, reference
        return {}
