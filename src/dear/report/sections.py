"""The tables of a report: those of each protocol (`protocols`), in order, then their appendices."""

from collections.abc import Iterable

from dear.evaluation.protocols.registry import PROTOCOLS
from dear.evaluation.schema import part_of
from dear.report.grid import Grid
from dear.report.protocols.registry import report_of
from dear.report.reading import Record, distinct, protocol, readable


def by_protocol(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records grouped by protocol, in the order of the protocols."""
    found = list(records)
    groups = {name: [record for record in found if protocol(record) == name] for name in PROTOCOLS}
    return {name: group for name, group in groups.items() if group}


def tables_of(records: Iterable[Record]) -> list[Grid]:
    """All tables of some records, in the order of the protocols, followed by the appendix tables.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    found = readable(records)
    tables = [grid for name, group in by_protocol(found).items() for grid in report_of(name).tables(group)]
    return tables + appendix_of(found)


def appendix_of(records: Iterable[Record]) -> list[Grid]:
    """The appendix tables of all protocols, which follow the other tables."""
    groups = by_protocol(records)
    return [grid for name, group in groups.items() for grid in report_of(name).appendix(group)]


def weights_of(records: Iterable[Record]) -> list[str]:
    """The distinct weight hashes of the records."""
    return [str(sha) for sha in distinct(part_of(record, "weights", "sha256") for record in records)]
