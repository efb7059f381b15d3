"""The interface of a protocol's part of the report."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from dear.report.grid import Grid
from dear.report.reading import Record


class ProtocolReport(ABC):
    """How the records of one protocol are shown. All methods raise DataError for records that cannot be
    combined in one table.

    Attributes:
        illustrates: Whether its records appear only in a section of the page and nowhere else.
        placed: Names of its tables that the page shows at a special position.
    """

    illustrates: ClassVar[bool] = False
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

    def page(self, records: Sequence[Record], main: str, reference: str | None) -> dict[str, Any]:
        """The protocol's variables for the page template, also if there are no records. ``main`` is the
        method that the page is about, ``reference`` the one it is compared with.
        """
        del records, main, reference
        return {}
