"""Run records: one JSON object per run, written atomically (docs/reproduce.md). Every part is checked
once, when it is read, so that other code can rely on it. Light to import.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from dear.errors import DataError, OutputError
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.schema import SCHEMA, Record
from dear.reading.files import ReadingError
from dear.reading.plain import parse_json, read_json
from dear.reading.typed import shown, typed
from dear.roles.table import Evidence, HeadRole

RECORD_NAME = re.compile(r"-\d+shot-seed-?\d+-[0-9a-f]{8}\.json\Z")
"""The end of the name that `dear.evaluation.resolve.run_name` gives to a record."""


def is_record_name(name: str) -> bool:
    """True if a file is called as the record of a run."""
    return RECORD_NAME.search(name) is not None


def make_folder(folder: Path) -> None:
    """Create the folder of records before any computation. Raises OutputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error}. Choose another place with --out.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {folder}: no permission. Choose another place with --out.")


def read_record(path: Path, **of: str | None) -> dict[str, Any]:
    """Read a record. Raises DataError for a damaged file, another schema, or a record with another key or
    variant than that ``of`` the run.
    """
    try:
        record = typed(read_json(path, file_names=True), dict[str, Any], path)
        check_record(record)
        for name, value in of.items():
            if record.get(name) != value:
                raise DataError(f"it is that of another run, whose {name} is {shown(record.get(name))}")
    except DataError as error:
        reason = error.reason if isinstance(error, ReadingError) else str(error).rstrip(".")
        raise DataError(f"{path} is not a run record: {reason}. Remove it and run it again.") from error
    return record


def check_facts(facts: Mapping[str, Any]) -> None:
    """Raise DataError, before a run begins, if a record with what is known of it could not be read."""
    try:
        record = parse_json(json.dumps({**facts, "results": {}}), "it")
        _check(typed(record, Record, ""))
    except DataError as error:
        reason = error.reason if isinstance(error, ReadingError) else str(error).rstrip(".")
        run = f"{shown(facts['method'])} on {shown(facts['dataset']['name'])}"
        raise DataError(f"{run} would leave a record that cannot be read: {reason}. Change that.") from error


class Table(TypedDict):
    """The parts of a role table that are plotted."""

    heads: list[HeadRole]
    attributes: NotRequired[list[str]]
    source: NotRequired[str]
    evidence: NotRequired[dict[str, Any]]


def check_record(record: dict[str, Any]) -> None:
    """Raise DataError for another schema version or protocol, and for the first part that is missing or has
    the wrong type; the message names it.
    """
    if record.get("schema") != SCHEMA:
        raise DataError(
            f"it has schema {shown(record.get('schema'))}, this version reads schema {SCHEMA}: "
            "report it with the version of dear that wrote it"
        )
    if "protocol" not in record:
        raise DataError("the run record lacks 'protocol'")
    name = record["protocol"]
    if not isinstance(name, str) or name not in PROTOCOLS:
        raise DataError(f"its protocol {shown(name)} is not one of {', '.join(PROTOCOLS)}")
    try:
        _check(typed(record, Record, ""))
        PROTOCOLS[name]().check_record(record)
    except ReadingError as error:
        raise DataError(error.reason) from None


def _check(record: Record) -> None:
    roles = record.get("roles")
    if roles is not None and "table" in roles:
        table = typed(roles["table"], Table, "", "roles.table")
        if evidence := table.get("evidence"):
            typed(evidence, Evidence, "", "roles.table.evidence")
    for at, epoch in enumerate(record.get("train", {}).get("epochs", [])):
        if "loss" not in epoch:
            raise DataError(f"its train.epochs[{at}] lacks the key 'loss'")
