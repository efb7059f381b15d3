"""A CSV or JSONL file of images with their labels and, optionally, their splits."""

import os
import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from dear.data.settings import DataSettings
from dear.data.sources.listing import (
    Listing,
    Report,
    Row,
    normal_path,
    refuse,
    reporting,
    require_distinct,
    require_inside,
    require_path,
)
from dear.data.sources.naming import in_order, read_names
from dear.data.sources.path_forms import rewriting
from dear.data.sources.split_names import split_of
from dear.data.sources.splits import Split, make_split
from dear.data.sources.table_rows import COLUMNS, LABELS, PATHS, SPLIT, column, table_rows
from dear.errors import DataError
from dear.limits import at_most, limit
from dear.reading.files import require_few_marks, text_bytes
from dear.reading.plain import QUOTES, parse_json
from dear.reading.typed import shown

Names = dict[str, str] | list[str]
ESCAPED = re.compile(r"^'(?=[=+\-@])")
"""The apostrophe before a name that a spreadsheet would take for a formula: `dear predict` writes it."""


class Entry(NamedTuple):
    """One line of a source: the image, its label as written, and its split or ""."""

    source: str
    line: int
    path: str
    label: str
    split: str

    @property
    def where(self) -> str:
        """Made when a message needs it: a table has a million lines, and its path up to 4,096 letters."""
        return f"{self.source}{self.line}"


def read_table(
    table: Path, settings: DataSettings, *, confined: bool = False, report: Report = refuse
) -> Listing:
    """Read a table of images. Paths are relative to the table's folder, or absolute unless `confined`.

    Labels are names, or consecutive integers from 0 whose names come from `settings.classnames`. Raises
    DataError naming the line.
    """
    return listing_of(
        table, table.stem, table.parent, _entries(table, confined, report), settings, report=report
    )


def listing_of(
    table: Path,
    name: str,
    folder: Path,
    entries: list[Entry],
    settings: DataSettings,
    *,
    keys: Sequence[str] | None = None,
    report: Report = refuse,
) -> Listing:
    """The lists of a table's entries, whose paths are relative to ``folder``. With ``keys``, the labels in
    label order, labels are names even if they are digits. Raises DataError as `read_table`.
    """
    names_file = settings.classnames
    names = read_names(names_file, links=True) if names_file else None
    if keys is None:
        entries = _labelled(entries, names, str(names_file), report)
        keys = _keys(table, entries, None if names is None else len(names))
    classnames = [*keys] if names is None else in_order(keys, names, str(names_file))
    with reporting(report):
        require_distinct(str(names_file or table), keys, classnames)
    labels = {key: label for label, key in enumerate(keys)}
    rows = [Row(entry.path, labels[entry.label]) for entry in entries]
    if any(entry.split for entry in entries):
        split = _by_split(table, entries, rows)
    else:
        del entries  # of a table of a million lines: the split takes memory of its own
        split = make_split(rows, settings, classnames, name)
    notes = split.notes
    if names is None and all(key.isascii() and key.isdigit() for key in keys):
        notes = (*notes, "its classes are numbers: name them with --dataset.classnames FILE")
    return Listing(name, folder, tuple(keys), tuple(classnames), split.splits, split.origin, notes=notes)


def _labelled(entries: list[Entry], names: Names | None, names_file: str, report: Report) -> list[Entry]:
    """The entries with valid labels; the others are reported."""
    valid = []
    numbered = _are_numbers(entries)
    for entry in entries:
        with reporting(report):
            if numbered and (len(entry.label) > 9 or entry.label != str(int(entry.label))):
                raise DataError(
                    f"{entry.where}: label {shown(entry.label)} is not a plain whole number: write 0, 1, 2 "
                    "and so on, or the names of the classes."
                )
            if numbered and names is not None and int(entry.label) >= len(names):
                raise DataError(
                    f"{entry.where}: label {entry.label} is out of range: "
                    f"{names_file} has {len(names)} names."
                )
            if not numbered and "-" in entry.label and entry.label.lstrip("-").isdigit():
                raise DataError(f"{entry.where}: label {entry.label} is out of range; labels count from 0.")
            valid.append(entry)
    return valid


def _are_numbers(entries: list[Entry]) -> bool:
    return all(entry.label.isascii() and entry.label.isdigit() for entry in entries)


def _keys(table: Path, entries: list[Entry], named_classes: int | None) -> list[str]:
    """The labels as written, in label order: numbers from 0 without a gap, or sorted names."""
    labels = {entry.label for entry in entries}
    if not labels:
        raise DataError(f"{table} has no valid line.")
    if not _are_numbers(entries):
        return sorted(labels)
    last = max(map(int, labels)) if named_classes is None else named_classes - 1
    if last >= len(labels):  # checked before a list of that length is built
        gap = next(label for label in count() if str(label) not in labels)
        raise DataError(f"{table}: labels run from 0 to {last}, but no image has label {gap}.")
    return [str(label) for label in range(last + 1)]


def _by_split(table: Path, entries: list[Entry], rows: list[Row]) -> Split:
    """The split that a table states; it may list images to train on or to test on alone."""
    splits: dict[str, list[Row]] = {"train": [], "test": []}
    for entry, row in zip(entries, rows, strict=True):
        part = split_of(entry.split)
        if part is None:
            raise DataError(f"{entry.where}: the split {shown(entry.split)} is not train, val or test.")
        splits.setdefault(part, []).append(row)
    if not splits["train"] and "val" in splits:
        raise DataError(f"{table} has no image with split train, but some with split val.")
    notes = [] if splits["train"] else ["it lists no image to train on: it can only be tested on"]
    notes += [] if splits["test"] else ["it lists no image to test on: it can only be trained on"]
    return Split(
        {part: tuple(rows) for part, rows in splits.items()},
        f"the column split of {table.name}",
        tuple(notes),
    )


def _entries(table: Path, confined: bool, report: Report) -> list[Entry]:
    """The valid lines of a table, in order. An image is listed once."""
    entries = dict[str, Entry]()
    texts: dict[str, str] = {}  # each label and split once: a row's own takes more than its letters
    max_rows = limit("table_rows")
    spellings = os.path.abspath(table.parent), os.path.realpath(table.parent)
    folders = [os.path.join(normal_path(folder), "") for folder in spellings]
    source = f"{table}, line "

    def put(entry: Entry, listed: dict[str, Entry]) -> None:
        path = normal_path(entry.path)
        for folder in folders:  # an absolute path may name the same image as a relative one
            path = path.removeprefix(folder)
        if path in listed:
            raise DataError(f"{entry.where}: the image {entry.path} is already in {listed[path].where}.")
        listed[path] = entry

    for rows, (number, row) in enumerate(table_rows(table, links=not confined), start=1):
        if rows > max_rows:
            at_most("table_rows", rows, table)
        with reporting(report):
            put(_entry(source, number, row, confined, texts), entries)
    if rewrite := rewriting(table.parent, [entry.path for entry in entries.values()]):
        rewritten, rewritten_bytes, most_bytes = dict[str, Entry](), 0, limit("text_bytes")
        for entry in entries.values():
            path = rewrite(entry.path)
            rewritten_bytes += text_bytes([path])  # accents apart from their letters take three times as many
            if rewritten_bytes > most_bytes:
                at_most("text_bytes", rewritten_bytes, table)
            with reporting(report):
                _require_possible(entry.where, path, confined)
                put(entry._replace(path=path), rewritten)
        entries = rewritten
    if not entries:
        raise DataError(f"{table} lists no images. It needs lines with {COLUMNS}.")
    return [*entries.values()]


def _entry(source: str, line: int, row: Any, confined: bool, texts: dict[str, str]) -> Entry:
    where = f"{source}{line}"
    if isinstance(row, str):
        row = parse_json(row, where, file_names=True)
    elif any("\n" in cell for cell in row.values()):
        raise DataError(f"{where} has a cell of several lines. {QUOTES}")
    row = row if isinstance(row, dict) else {}
    path, label, split = (row.get(column(names, row)) for names in (PATHS, LABELS, SPLIT))
    if isinstance(label, int) and not isinstance(label, bool):  # a JSON number
        label = str(label)
    if not (isinstance(path, str) and path and isinstance(label, str) and label.strip()):
        raise DataError(f"{where} needs {COLUMNS}.")
    _require_possible(where, path, confined)
    if not path.isascii():
        require_few_marks(path, f"{where}, the path {path[:40]!r}")  # it may be brought into another form
    if not (split is None or (isinstance(split, str) and (not split.strip() or split_of(split)))):
        raise DataError(f"{where}: the split {shown(split)} is not train, val or test.")
    label, split = ESCAPED.sub("", label.strip()), (split or "").strip()
    return Entry(source, line, path, texts.setdefault(label, label), texts.setdefault(split, split))


def _require_possible(where: str, path: str, confined: bool) -> None:
    """Raise as `require_path`, and DataError for a relative path that leads out of its folder; if
    ``confined``, for an absolute one too.
    """
    require_path(where, path)
    if confined or not os.path.isabs(path):
        require_inside(where, path)
