"""A CSV or JSONL file that names images with their labels and, if it likes, their splits."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dear.data.folder import SPLITS
from dear.data.listing import Listing, Row, require_distinct, require_inside
from dear.data.naming import QUOTES, in_order, read_names
from dear.data.settings import DataSettings
from dear.data.splits import record_split, seeded_split, spoken_split
from dear.errors import DataError

SUFFIXES = (".csv", ".tsv", ".jsonl")
COLUMNS = "path, label and, optionally, split"


class Entry(NamedTuple):
    """One line: the image, its label as it stands there, its split or none."""

    where: str
    path: str
    label: str
    split: str


def read_table(table: Path, settings: DataSettings, *, confined: bool = False) -> Listing:
    """Read a table of images. Paths are relative to the table's folder; absolute ones too unless `confined`.

    Labels are names, or whole numbers from 0 (in steps of 1) whose names come from `settings.classnames`.
    Errors: DataError that names the line.
    """
    entries = [*_entries(table)]
    if not entries:
        raise DataError(f"{table} names no image. It needs lines with {COLUMNS}.")
    for entry in entries:
        if confined or not Path(entry.path).is_absolute():
            require_inside(entry.where, entry.path)
    keys, names = _classes(table, entries, settings)
    labels = {key: label for label, key in enumerate(keys)}
    rows = [Row(entry.path, labels[entry.label]) for entry in entries]
    _require_once(entries)
    parted = [entry for entry in entries if entry.split]
    notes: tuple[str, ...] = ()
    if not parted:
        shares = {"train": 1 - settings.test_share, "test": settings.test_share}
        splits = seeded_split(rows, shares, settings.split_seed, names)
        recorded = record_split(splits, names, settings.cache_folder() / "splits", table.stem)
        notes = (spoken_split(shares, settings.split_seed, recorded),)
        origin = f"dear, seed {settings.split_seed}"
    else:
        splits = _by_split(table, entries, rows)
        origin = f"the column split of {table.name}"
    return Listing(
        name=table.stem,
        folder=table.parent,
        keys=tuple(keys),
        classnames=tuple(names),
        splits=splits,
        origin=origin,
        notes=notes,
    )


def _classes(table: Path, entries: list[Entry], settings: DataSettings) -> tuple[list[str], list[str]]:
    found = {entry.label for entry in entries}
    given = read_names(settings.classnames) if settings.classnames else None
    if not all(label.isascii() and label.isdigit() for label in found):
        if wrong := next((e for e in entries if e.label.lstrip("-").isdigit() and "-" in e.label), None):
            raise DataError(f"{wrong.where}: label {wrong.label} is out of range; labels count from 0.")
        keys = sorted(found)
    else:
        count = len(given) if given is not None else max(int(label) for label in found) + 1
        if wrong := next((entry for entry in entries if int(entry.label) >= count), None):
            raise DataError(
                f"{wrong.where}: label {wrong.label} is out of range: "
                f"{settings.classnames} has {count} names."
            )
        keys = [str(label) for label in range(count)]
        if gap := next((key for key in keys if key not in found), None):
            raise DataError(f"{table}: labels run from 0 to {count - 1}, but no image has label {gap}.")
    names = keys if given is None else in_order(keys, given, str(settings.classnames))
    require_distinct(str(settings.classnames or table), keys, names)
    return keys, names


def _by_split(table: Path, entries: list[Entry], rows: list[Row]) -> dict[str, tuple[Row, ...]]:
    splits: dict[str, list[Row]] = {}
    for entry, row in zip(entries, rows, strict=True):
        part = SPLITS.get(entry.split.lower())
        if part is None:
            raise DataError(f"{entry.where}: the split {entry.split!r} is none of train, val, test.")
        splits.setdefault(part, []).append(row)
    if missing := [part for part in ("train", "test") if part not in splits]:
        raise DataError(f"{table} has no image with split {missing[0]}.")
    return {part: tuple(listed) for part, listed in splits.items()}


def _require_once(entries: list[Entry]) -> None:
    seen: dict[str, Entry] = {}
    for entry in entries:
        if entry.path in seen:
            raise DataError(
                f"{entry.where}: the image {entry.path} stands in {seen[entry.path].where} already."
            )
        seen[entry.path] = entry


def _entries(table: Path) -> Iterator[Entry]:
    try:
        text = table.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {table}: {error}.") from error
    read = _json_lines if table.suffix.lower() == ".jsonl" else _csv_lines
    for number, row in read(table, text):
        where = f"{table}, line {number}"
        row = row if isinstance(row, dict) else {}
        path, label, split = row.get("path"), row.get("label"), row.get("split")
        if isinstance(label, int) and not isinstance(label, bool):  # a number of JSON
            label = str(label)
        if not (isinstance(path, str) and path and isinstance(label, str) and label.strip()):
            raise DataError(f"{where} needs {COLUMNS}.")
        if not isinstance(split, str | None):
            raise DataError(f"{where}: the split {split!r} is none of train, val, test.")
        yield Entry(where, path, label.strip(), (split or "").strip())


def _csv_lines(table: Path, text: str) -> Iterator[tuple[int, Any]]:
    reader = csv.DictReader(text.splitlines(), delimiter="\t" if table.suffix.lower() == ".tsv" else ",")
    done = 0
    try:
        if missing := [name for name in ("path", "label") if name not in (reader.fieldnames or [])]:
            raise DataError(f"{table} has no column {missing[0]!r}. Its first line must name {COLUMNS}.")
        done = reader.line_num
        for row in reader:
            done = reader.line_num
            yield done, row
    except csv.Error as error:
        raise DataError(f"{table}, line {done + 1}: {error}. {QUOTES}") from error


def _json_lines(table: Path, text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise DataError(f"{table}, line {number} is not readable JSON: {error}") from error
