"""Whether what a file holds is a run record, so that nobody need ask again: the shape of its parts."""

from typing import Any, NotRequired, TypedDict

from dear.errors import DataError
from dear.evaluation.schema import SCHEMA, Record, Retrieval, Scores
from dear.limits import at_most
from dear.reading.files import ReadingError
from dear.reading.typed import shown, typed
from dear.roles.table import Evidence, HeadRole

PARTS = {"base-to-novel": ("base", "novel"), "few-shot": ("all",), "retrieval": ()} | dict.fromkeys(
    ("cross-dataset", "domain-generalization"), ("source",)
)
"""The parts of the results of each protocol."""


class Table(TypedDict):
    """What is drawn of a role table."""

    heads: list[HeadRole]
    attributes: NotRequired[list[str]]
    source: NotRequired[str]
    evidence: NotRequired[Evidence | dict[str, None]]


def check_record(record: dict[str, Any]) -> None:
    """Raise DataError for another schema version or protocol, and for the first part that is missing or of
    another type than in a record; the message names it.
    """
    if record.get("schema") != SCHEMA:
        raise DataError(
            f"it has schema {shown(record.get('schema'))}, this version reads schema {SCHEMA}: "
            "report it with the version of dear that wrote it"
        )
    if "protocol" not in record:
        raise DataError("the run record lacks 'protocol'")
    told = record["protocol"]
    if not isinstance(told, str) or told not in PARTS:
        raise DataError(f"its protocol {shown(told)} is none of {', '.join(PARTS)}")
    try:
        _check(typed(record, Record, ""), told)
    except ReadingError as error:
        raise DataError(error.reason) from None


def _check(record: Record, told: str) -> None:
    roles = record.get("roles")
    if roles is not None and "table" in roles:
        heads = typed(roles["table"], Table, "", "roles.table")["heads"]
        at_most("layers", max((head.layer for head in heads), default=0), "its role table")
        at_most("heads", max((head.head + 1 for head in heads), default=0), "its role table")
    for at, epoch in enumerate(record.get("train", {}).get("epochs", [])):
        if "loss" not in epoch:
            raise DataError(f"its train.epochs[{at}] lacks the key 'loss'")
    if told == "retrieval":
        typed(record["results"], Retrieval, "", "results")
        return
    if told == "few-shot":
        _at(record, "shots")
    for part in PARTS[told]:
        _scores(record, part)
    if "source" in PARTS[told]:
        _at(record, "targets")
        for one in record["targets"]:
            _scores(record, "targets", one["name"])


def _scores(record: Record, *part: str) -> None:
    typed(_at(record, "results", *part), Scores, "", ".".join(("results", *part)))


def _at(record: Any, *path: str) -> Any:
    for depth, key in enumerate(path, start=1):
        if not isinstance(record, dict) or key not in record:
            raise DataError(f"the run record lacks {'.'.join(path[:depth])!r}")
        record = record[key]
    return record
