"""Which run records of a folder a report is of: some methods, some data sets, one set of weights."""

from collections.abc import Sequence

from dear.errors import DataError, UnknownNameError
from dear.evaluation.records import part_of
from dear.report.records import (
    Record,
    data_set,
    data_set_title,
    distinct,
    grouped,
    method_label,
    readable,
)


def select_runs(records: Sequence[Record], methods: Sequence[str], data: Sequence[str]) -> list[Record]:
    """The records of some methods (by label, or by name with all variants) and data sets (by name or title;
    those that were trained on, in transfer); of all where none is named. Raises UnknownNameError for a name
    that no record has.
    """

    def methods_of(record: Record) -> tuple[str, ...]:
        return method_label(record), str(part_of(record, "method"))

    def data_of(record: Record) -> tuple[str, ...]:
        return data_set(record), data_set_title(record)

    for kind, names, names_of in (("method", methods, methods_of), ("data set", data, data_of)):
        known = distinct(name for record in records for name in names_of(record))
        if unknown := [name for name in names if name not in known]:
            raise UnknownNameError(f"{kind} among these runs", unknown[0], known)
    return [
        record
        for record in records
        if (not methods or {*methods_of(record)} & {*methods}) and (not data or {*data_of(record)} & {*data})
    ]


def label_of(name: str, records: Sequence[Record]) -> str:
    """The label of the method that a user names by its label, or as on the command line: there it is that of
    the unmodified method, or else the only one. Otherwise the name itself.
    """
    runs = [record for record in records if record["method"] == name]
    unmodified = [record for record in runs if not record.get("variant")]
    labels = distinct(map(method_label, unmodified or runs))
    return labels[0] if len(labels) == 1 and name not in map(method_label, records) else name


def of_weights(records: Sequence[Record], sha: str | None) -> list[Record]:
    """The records of one set of weights: those whose hash begins with ``sha``, or the only set there is.

    Raises:
        DataError: if there are several or none of them.
    """
    by_hash = grouped(readable(records), lambda record: record["weights"]["sha256"])
    matching = [runs for full, runs in by_hash.items() if full.startswith(sha or "")]
    if len(matching) == 1:
        return matching[0]
    weights = [runs[0]["weights"] for runs in by_hash.values()]
    names = ", ".join(f"{w['sha256'][:12]} ({w.get('model')}/{w.get('pretrained')})" for w in weights)
    what = "of different weights, whose results must not be averaged" if matching else f"none of {sha!r}"
    raise DataError(
        f"the records are {what}: {names}. Choose one with --weights and the first digits of its hash."
    )
