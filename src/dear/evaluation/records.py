"""Run records: one JSON object per run, written atomically (docs/reproduce.md). Light to import, because the
report uses them too.
"""

import re
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from dear.errors import DataError
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.protocols.base import Protocol
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import Number, shown, typed

RECORD_NAME = re.compile(r"-\d+shot-seed-?\d+-[0-9a-f]{8}\.json\Z")
"""The end of the name that `run_name` gives to a record."""
LONGEST_PART = 100
"""Most letters of a data set's name in a file name, which has at most 255 bytes."""
PREDICTIONS, WEIGHTS = ".npz", ".safetensors"
"""The endings of the files beside a record, which otherwise have its name."""
SCHEMA = 2
"""The number of the structure of records; no other is read."""


class DatasetSummary(TypedDict):
    """A data set, as a record names it."""

    name: str
    title: NotRequired[str]
    classes: NotRequired[list[str]]


class Weights(TypedDict):
    """Identity of the backbone."""

    sha256: str


class Record(TypedDict):
    """A run record (docs/reproduce.md says what each field holds). The results depend on the protocol."""

    schema: int
    protocol: str
    key: NotRequired[str]
    method: str
    title: NotRequired[str | None]
    variant: NotRequired[str | None]
    source: NotRequired[str]
    settings: NotRequired[dict[str, Any]]
    overrides: NotRequired[dict[str, dict[str, Any]]]
    published: NotRequired[list[str]]
    dataset: DatasetSummary
    targets: NotRequired[list[DatasetSummary]]
    weights: Weights
    transductive: NotRequired[bool]
    teacher: NotRequired[dict[str, Any] | None]
    roles: NotRequired[dict[str, Any] | None]
    seed: int
    shots: NotRequired[int]
    train: NotRequired[dict[str, Any]]
    selection: NotRequired[dict[str, Any]]
    results: dict[str, Any]
    adapter: NotRequired[dict[str, Any] | None]
    fusion_weights: NotRequired[dict[str, Number] | None]
    trainable_parameters: NotRequired[int]
    seconds: NotRequired[dict[str, Number]]
    peak_memory: NotRequired[dict[str, Number | None]]
    environment: NotRequired[dict[str, str | int]]


def run_name(
    protocol: Protocol, dataset: str, method: str, variant: str | None, seed: int, shots: int, key: str
) -> str:
    """The name of a run's files, for example "mixed-paints-dear-all-mixed-16shot-seed1-0123abcd"; reports
    know a record by its end (`is_record_name`).
    """
    method = method.replace("++", "pp").replace("+", "-plus")  # as its folder
    parts = [dataset, method, variant or "", f"{shots}shot", f"seed{seed}", key[:8]]
    if protocol.trained_on is not None:
        parts.insert(0, protocol.name)
    return "-".join(map(file_part, filter(None, parts)))


def file_part(text: str) -> str:
    """A text as a part of a file's name, with "-" for what is no letter or digit of English and no dot. If it
    is long, it is cut after a word.
    """
    part = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
    if len(part) <= LONGEST_PART:
        return part
    return part[: LONGEST_PART + 1].rpartition("-")[0] or part[:LONGEST_PART]


def is_record_name(name: str) -> bool:
    """True if a file is called as the record of a run."""
    return RECORD_NAME.search(name) is not None


def may_be_record(path: Path) -> bool:
    """True for a path that names a record where a bundle, which is a folder, could stand too."""
    return path.suffix == ".json" and not path.is_dir()


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
        is_damaged = path.exists() and is_record_name(path.name)
        advice = "Remove it and run it again" if is_damaged else "Check the path"
        raise DataError(f"{path} is not a run record: {reason}. {advice}.") from error
    return record


def find_record(path: Path, *, with_weights: bool, **expected: str | None) -> dict[str, Any] | None:
    """The record of a run if there is one; ``with_weights`` only if the trained tensors are beside it. Raises
    as `read_record`.
    """
    record = read_record(path, **expected) if path.exists() else None
    lacks_weights = record is not None and not (record.get("adapter") and path.with_suffix(WEIGHTS).exists())
    return None if with_weights and lacks_weights else record


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


def part_of(record: Any, *path: str | int) -> Any:
    """The value in a record at a path of keys and indices. Raises DataError naming the first missing key."""
    value = record
    for depth, key in enumerate(path, start=1):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise DataError(f"the run record lacks {'.'.join(map(str, path[:depth]))!r}") from None
    return value
