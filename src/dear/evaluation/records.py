"""Run records: one JSON object per run, written atomically (docs/reproduce.md). Light to import."""

import os
import re
from pathlib import Path
from typing import Any

from dear.errors import DataError, OutputError
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.schema import SCHEMA, Record, part_of
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import shown, typed

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


def read_record(path: Path, **expected: str | None) -> dict[str, Any]:
    """Read a record. Raises DataError for a damaged file, another schema, or a record with another key or
    variant than ``expected``.
    """
    try:
        record = typed(read_json(path, file_names=True), dict[str, Any], path)
        check_record(record)
        for name, value in expected.items():
            if record.get(name) != value:
                raise DataError(f"it is that of another run, whose {name} is {shown(record.get(name))}")
    except DataError as error:
        reason = error.reason if isinstance(error, ReadingError) else str(error).rstrip(".")
        raise DataError(f"{path} is not a run record: {reason}. Remove it and run it again.") from error
    return record


def check_record(record: dict[str, Any]) -> None:
    """Raise DataError for another schema version or protocol, and for the first part that is missing or has
    the wrong type; the message names it.
    """
    if record.get("schema") != SCHEMA:
        raise DataError(
            f"it has schema {shown(record.get('schema'))}, this version reads schema {SCHEMA}: "
            "report it with the version of dear that wrote it"
        )
    name = part_of(record, "protocol")
    if name not in [*PROTOCOLS]:
        raise DataError(f"its protocol {shown(name)} is not one of {', '.join(PROTOCOLS)}")
    try:
        typed(record, Record, "")
    except ReadingError as error:
        raise DataError(error.reason) from None
    for part in PROTOCOLS[name].scored:
        part_of(record, "results", part, "accuracy")
