"""A CSV or JSONL file that names images with their labels and, if it likes, their splits."""

import csv
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from dear.data.folder import SPLITS
from dear.data.listing import Listing, Row, require_distinct, require_inside
from dear.data.naming import QUOTES, in_order, read_names
from dear.data.settings import DataSettings
from dear.data.splits import record_split, seeded_split, spoken_split
from dear.errors import DataError
from dear.limits import at_most, limit
from dear.reading.files import read_text
from dear.reading.plain import parse_json
from dear.reading.typed import shown

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
        if confined or not os.path.isabs(entry.path):
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
        for entry in entries:
            if len(entry.label) > 9 or entry.label != str(int(entry.label)):
                raise DataError(
                    f"{entry.where}: label {shown(entry.label)} is no plain whole number: write 0, 1, 2 and "
                    "so on, or the names of the classes."
                )
        if given is not None and (wrong := next((e for e in entries if int(e.label) >= len(given)), None)):
            raise DataError(
                f"{wrong.where}: label {wrong.label} is out of range: "
                f"{settings.classnames} has {len(given)} names."
            )
        last = max(int(label) for label in found) if given is None else len(given) - 1
        if last >= len(found):  # before a list of that length is made
            gap = next(label for label in count() if str(label) not in found)
            raise DataError(f"{table}: labels run from 0 to {last}, but no image has label {gap}.")
        keys = [str(label) for label in range(last + 1)]
    names = keys if given is None else in_order(keys, given, str(settings.classnames))
    require_distinct(str(settings.classnames or table), keys, names)
    return keys, names


def _by_split(table: Path, entries: list[Entry], rows: list[Row]) -> dict[str, tuple[Row, ...]]:
    splits: dict[str, list[Row]] = {}
    for entry, row in zip(entries, rows, strict=True):
        part = SPLITS.get(entry.split.lower())
        if part is None:
            raise DataError(f"{entry.where}: the split {shown(entry.split)} is none of train, val, test.")
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
    text = read_text(table)
    read = _json_lines if table.suffix.lower() == ".jsonl" else _csv_lines
    most = limit("table_rows")
    for rows, (number, row) in enumerate(read(table, text), start=1):
        if rows > most:
            at_most("table_rows", rows, table)
        where = f"{table}, line {number}"
        row = row if isinstance(row, dict) else {}
        path, label, split = row.get("path"), row.get("label"), row.get("split")
        if isinstance(label, int) and not isinstance(label, bool):  # a number of JSON
            label = str(label)
        if not (isinstance(path, str) and path and isinstance(label, str) and label.strip()):
            raise DataError(f"{where} needs {COLUMNS}.")
        if not isinstance(split, str | None):
            raise DataError(f"{where}: the split {shown(split)} is none of train, val, test.")
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
            yield number, parse_json(line, f"{table}, line {number}")
