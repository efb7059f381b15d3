"""The report of a protocol, by the protocol's name."""

from functools import cache
from importlib import import_module

from dear.evaluation.protocols.registry import protocol_class
from dear.report.protocols.base import ProtocolReport


@cache
def report_of(protocol: str) -> ProtocolReport:
    """The report of a protocol: ``REPORT`` in the file of this folder named like the protocol's own file, or
    the entry under its name if one file holds several. Raises UnknownNameError.
    """
    module = protocol_class(protocol).__module__.rpartition(".")[2]
    found = import_module(f"dear.report.protocols.{module}").REPORT
    report: ProtocolReport = found[protocol] if isinstance(found, dict) else found
    return report
