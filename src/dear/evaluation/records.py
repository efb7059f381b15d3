"""Run records: one JSON object per run, written atomically (docs/reproduce.md). Every part is checked
once, when it is read, so that other code can rely on it. Light to import.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from dear.errors import DataError, OutputError, printable
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.schema import SCHEMA, MistakesEntry, Record, check_scores
from dear.limits import LimitError, at_most
from dear.reading.files import ReadingError, text_bytes
from dear.reading.plain import parse_json, read_json, require_whole, walked
from dear.reading.typed import shown, typed
from dear.roles.table import Evidence, HeadRole, check_size

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
    except (DataError, LimitError) as error:
        reason = error.reason if isinstance(error, ReadingError) else str(error).rstrip(".")
        raise DataError(f"{path} is not a run record: {reason}. Remove it and run it again.") from error
    return record


def check_facts(facts: Mapping[str, Any]) -> None:
    """Raise DataError, before a run begins, if a record with what is known of it could not be read."""
    try:
        record = parse_json(json.dumps({**facts, "results": {}}), "it")
        _require_small(record)
        _check(typed(record, Record, ""))
    except (DataError, LimitError) as error:
        reason = error.reason if isinstance(error, ReadingError) else str(error).rstrip(".")
        run = f"{shown(facts['method'])} on {shown(facts['dataset']['name'])}"
        raise DataError(f"{run} would leave a record that cannot be read: {reason}. Change that.") from error


class Table(TypedDict):
    """The parts of a role table that are plotted."""

    heads: list[HeadRole]
    attributes: NotRequired[list[str]]
    source: NotRequired[str]
    evidence: NotRequired[Evidence | dict[str, None]]


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
        _require_small(record)
        _check(typed(record, Record, ""))
        PROTOCOLS[name]().check_record(record)
    except ReadingError as error:
        raise DataError(error.reason) from None


def _require_small(record: dict[str, Any]) -> None:
    """Raise LimitError for a record of too many values or too long texts, ReadingError for a text that is not
    in UTF-8; under keys that no code reads, such as the files of the few-shot images, anything is allowed.
    """
    typed_keys = {key: record[key] for key in Record.__annotations__ if key in record}
    entries = [*walked(typed_keys)]
    at_most("record_values", len(entries), "it")
    at_most("record_text", max(len(entry) for entry in entries if isinstance(entry, str)), "it")
    require_whole(typed_keys, "it")


def _check(record: Record) -> None:
    datasets = [record["dataset"], *record.get("targets", [])]
    names = [record["method"], record.get("variant") or "", *(record.get("fusion_weights") or ())]
    names += [name for dataset in datasets for name in (dataset["name"], dataset.get("title", ""))]
    at_most("record_name", max(map(len, names)), "it")
    settings = [record.get(key) for key in ("settings", "environment", "tuned_on_targets", "published")]
    if teacher := record.get("teacher"):
        settings.append(teacher.get("settings"))
    at_most("record_settings", len(json.dumps(settings)), "it")
    at_most("role_names", len(record.get("fusion_weights") or ()), "its fusion_weights")
    weights = record["weights"]
    texts = [weights["sha256"], weights.get("model", ""), weights.get("pretrained", "")]
    at_most("model_name", max(map(len, texts)), "it")
    for dataset in datasets:
        _check_classes(dataset.get("classes", []), "its data set")
    roles = record.get("roles")
    if roles is not None and "table" in roles:
        table = typed(roles["table"], Table, "", "roles.table")
        check_size(table["heads"], table.get("attributes", ()), "its role table")
    at_most("record_parts", max(len(record.get("mistakes", [])), len(datasets)), "it")
    for training in (record.get("train", {}), teacher.get("train", {}) if teacher else {}):
        at_most("epochs", len(training.get("epochs", [])), "it")
    title = max((dataset.get("title", "") for dataset in datasets), key=len)
    before = _size(title) + _size(record["method"]) + _size(record.get("variant") or "")
    parts, tables = set[tuple[str | int, ...]](), 0
    for at, entry in enumerate(record.get("mistakes", [])):
        part = tuple(entry["part"])
        if not part or part in parts:
            raise DataError(f"its mistakes[{at}].part is {shown(entry['part'])}: each names a part, once")
        parts.add(part)
        check_scores(record, *part)
        _check_mistakes(entry, f"its mistakes[{at}]")
        tables += _size_of_tables(entry, before + sum(_size(str(name)) for name in part))
        at_most("record_tables", tables, "it")
    for at, epoch in enumerate(record.get("train", {}).get("epochs", [])):
        if "loss" not in epoch:
            raise DataError(f"its train.epochs[{at}] lacks the key 'loss'")


def _size_of_tables(entry: MistakesEntry, before: int) -> int:
    """Bytes of the rows that a report makes of a part's mistakes, each with so many ``before`` its own: of
    classes, their correct images, confusions and examples. Few names may stand in many rows.
    """
    sizes = [*map(_size, entry["classes"])]
    pairs = [(label, label) for label in range(len(sizes))]
    pairs += [(label, prediction) for label, prediction, _ in entry["confusions"]]
    pairs += [(example.label, example.prediction) for example in entry["examples"]]
    names = sum(sizes) + sum(sizes[label] + sizes[prediction] for label, prediction in pairs)
    files = sum(_size(example.file or "") for example in entry["examples"])
    return names + files + (len(sizes) + len(pairs)) * before


def _size(text: str) -> int:
    """Bytes of a text in a table, where control characters are escaped."""
    return text_bytes([printable(text)])


def _check_classes(names: list[str], what: str) -> None:
    at_most("classes", len(names), what)
    at_most("class_name", max(map(len, names), default=0), what)


def _check_mistakes(entry: MistakesEntry, what: str) -> None:
    count = len(entry["classes"])
    _check_classes(entry["classes"], what)
    at_most("record_confusions", len(entry["confusions"]), what)
    at_most("record_examples", len(entry["examples"]), what)
    images, correct, predicted = entry["images"], entry["correct"], entry["predicted"]
    if any(len(counts) != count for counts in (images, correct, predicted)):
        raise DataError(f"{what} has counts of another number of classes than {count}")
    if not any(images):
        raise DataError(f"{what} counts no images")
    if any(hits > min(both) for hits, *both in zip(correct, images, predicted, strict=True)):
        raise DataError(f"{what}.correct counts more images than there are")
    pairs = [(label, prediction) for label, prediction, _ in entry["confusions"]]
    if len({*pairs}) < len(pairs):
        raise DataError(f"{what}.confusions has a pair of classes twice")
    labels = [label for pair in pairs for label in pair]
    labels += [label for example in entry["examples"] for label in (example.label, example.prediction)]
    if any(label >= count for label in labels):
        raise DataError(f"{what} names class {max(labels)} of {count}, counted from 0")
