"""A CSV or JSONL file of images with their labels and, optionally, their splits."""

import csv
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from dear.data.settings import DataSettings
from dear.data.sources.domains import SPLITS
from dear.data.sources.listing import (
    Listing,
    Report,
    Row,
    one_path,
    refuse,
    reporting,
    require_distinct,
    require_inside,
)
from dear.data.sources.naming import QUOTES, in_order, read_names
from dear.data.sources.splits import own_split
from dear.errors import DataError
from dear.limits import at_most, limit
from dear.reading.files import read_text
from dear.reading.plain import parse_json
from dear.reading.typed import shown

SUFFIXES = (".csv", ".tsv", ".jsonl")
Names = dict[str, str] | list[str]
COLUMNS = "path, label and, optionally, split"


class Entry(NamedTuple):
    """One line: the image, its label as written, and its split or ""."""

    where: str
    path: str
    label: str
    split: str


def read_table(
    table: Path, settings: DataSettings, *, confined: bool = False, report: Report = refuse
) -> Listing:
    """Read a table of images. Paths are relative to the table's folder, or absolute unless `confined`.

    Labels are names, or consecutive integers from 0 whose names come from `settings.classnames`. Raises
    DataError naming the line.
    """
    entries = _entries(table, confined, report)
    if not entries:
        raise DataError(f"{table} lists no images. It needs lines with {COLUMNS}.")
    given = read_names(settings.classnames) if settings.classnames else None
    entries = _sound(entries, given, settings, report)
    keys, names = _classes(table, entries, given, settings)
    with reporting(report):
        require_distinct(str(settings.classnames or table), keys, names)
    labels = {key: label for label, key in enumerate(keys)}
    rows = [Row(entry.path, labels[entry.label]) for entry in entries]
    notes: tuple[str, ...] = ()
    if any(entry.split for entry in entries):
        splits, notes = _by_split(table, entries, rows)
        origin = f"the column split of {table.name}"
    else:
        splits, origin, notes = own_split(rows, settings, names, table.stem)
    return Listing(
        name=table.stem,
        folder=table.parent,
        keys=tuple(keys),
        classnames=tuple(names),
        splits=splits,
        origin=origin,
        notes=notes,
    )


def _sound(entries: list[Entry], given: Names | None, settings: DataSettings, report: Report) -> list[Entry]:
    """The entries with valid labels; the others are reported."""
    found = []
    numbered = _are_numbers(entries)
    for entry in entries:
        with reporting(report):
            if numbered and (len(entry.label) > 9 or entry.label != str(int(entry.label))):
                raise DataError(
                    f"{entry.where}: label {shown(entry.label)} is not a plain whole number: write 0, 1, 2 "
                    "and so on, or the names of the classes."
                )
            if numbered and given is not None and int(entry.label) >= len(given):
                raise DataError(
                    f"{entry.where}: label {entry.label} is out of range: "
                    f"{settings.classnames} has {len(given)} names."
                )
            if not numbered and "-" in entry.label and entry.label.lstrip("-").isdigit():
                raise DataError(f"{entry.where}: label {entry.label} is out of range; labels count from 0.")
            found.append(entry)
    return found


def _are_numbers(entries: list[Entry]) -> bool:
    return all(entry.label.isascii() and entry.label.isdigit() for entry in entries)


def _classes(
    table: Path, entries: list[Entry], given: Names | None, settings: DataSettings
) -> tuple[list[str], list[str]]:
    found = {entry.label for entry in entries}
    if not found:
        raise DataError(f"{table} has no valid line.")
    if not _are_numbers(entries):
        keys = sorted(found)
    else:
        last = max(int(label) for label in found) if given is None else len(given) - 1
        if last >= len(found):  # checked before a list of that length is built
            gap = next(label for label in count() if str(label) not in found)
            raise DataError(f"{table}: labels run from 0 to {last}, but no image has label {gap}.")
        keys = [str(label) for label in range(last + 1)]
    return keys, keys if given is None else in_order(keys, given, str(settings.classnames))


def _by_split(
    table: Path, entries: list[Entry], rows: list[Row]
) -> tuple[dict[str, tuple[Row, ...]], tuple[str, ...]]:
    """Rows by split, and notes; a table may list images to test on alone."""
    splits: dict[str, list[Row]] = {"train": []}
    for entry, row in zip(entries, rows, strict=True):
        part = SPLITS.get(entry.split.lower())
        if part is None:
            raise DataError(f"{entry.where}: the split {shown(entry.split)} is not train, val or test.")
        splits.setdefault(part, []).append(row)
    if "test" not in splits:
        raise DataError(f"{table} has no image with split test.")
    if not splits["train"] and "val" in splits:
        raise DataError(f"{table} has no image with split train, but some with split val.")
    notes = () if splits["train"] else ("it lists no image to train on: it can only be tested on",)
    return {part: tuple(listed) for part, listed in splits.items()}, notes


def _entries(table: Path, confined: bool, report: Report) -> list[Entry]:
    text, found = read_text(table), dict[str, Entry]()
    read = _json_lines if table.suffix.lower() == ".jsonl" else _csv_lines
    most = limit("table_rows")
    for rows, (number, row) in enumerate(read(table, text), start=1):
        if rows > most:
            at_most("table_rows", rows, table)
        with reporting(report):
            entry = _entry(f"{table}, line {number}", row, confined)
            if other := found.get(one_path(entry.path)):
                raise DataError(f"{entry.where}: the image {entry.path} is already in {other.where}.")
            found[one_path(entry.path)] = entry
    return [*found.values()]


def _entry(where: str, row: Any, confined: bool) -> Entry:
    row = parse_json(row, where) if isinstance(row, str) else row
    row = row if isinstance(row, dict) else {}
    path, label, split = row.get("path"), row.get("label"), row.get("split")
    if isinstance(label, int) and not isinstance(label, bool):  # a JSON number
        label = str(label)
    if not (isinstance(path, str) and path and isinstance(label, str) and label.strip()):
        raise DataError(f"{where} needs {COLUMNS}.")
    if not (isinstance(split, str | None) and ((split or "").strip().lower() in ("", *SPLITS))):
        raise DataError(f"{where}: the split {shown(split)} is not train, val or test.")
    if confined or not os.path.isabs(path):
        require_inside(where, path)
    return Entry(where, path, label.strip(), (split or "").strip())


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


def _json_lines(_table: Path, text: str) -> Iterator[tuple[int, Any]]:
    yield from ((number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip())
