"""A CSV or JSONL file of images with their labels and, optionally, their splits."""

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from dear.data.settings import DataSettings
from dear.data.sources.class_names import label_note, plain_label, sort_names, spelling_note
from dear.data.sources.listing import PURPOSE, UNDIVIDED, Listing, Row
from dear.data.sources.paths import find_files, require_inside
from dear.data.sources.splits import Split, split_of
from dear.errors import DataError, DearError, as_fault, fault
from dear.reading.files import is_file, read_lines
from dear.reading.plain import parse_json, read_csv
from dear.reading.remote import Address, as_path, is_address, within
from dear.text import FEW, list_names
from dear.writing import read_csv_text

SUFFIXES = (".csv", ".tsv", ".jsonl")
COLUMNS = "path, label and, optionally, split"
OTHER_NAMES = ", or name others with --dataset.columns path=Image,label=Species"
PATHS = ("path", "image", "file", "filename", "file_name", "filepath", "image_path", "image_id", "image_name")
LABELS = ("label", "labels", "class", "choice", "class_name", "category", "target")
"""Names of the two columns, the first that is there: `dear predict` writes file and class, the library
datasets file_name, Label Studio choice, and Kaggle's tables image_id.
"""
BOXES = frozenset(["xmin", "x_min", "xmax", "x_max", "bbox", "bboxes", "box"])
"""Columns of tables for detection."""
SEVERAL = re.compile(r"\s*[,;|]\s*")
ONE_LABEL = "an image has one label here"
PROBABILITY, PREDICTED, CHECKED = "probability", "predicted", "checked"
"""Columns that `dear predict` writes beside class."""
NONE = "none_of_these"
"""A column of both."""
DECISION = ("decision", "decided_class")
"""Columns of `dear predict` with an operating point."""
SUGGESTED = "suggested"
"""The column that `dear suggest` writes beside an empty label."""
WRITTEN_HERE = frozenset([PROBABILITY, PREDICTED, SUGGESTED])
KEEP = "keep"
"""The answer that a label is right."""
COLUMNS_READ = {*PATHS, *LABELS, "split", PROBABILITY, PREDICTED, CHECKED, NONE, *DECISION, SUGGESTED}
SUBMISSION = "submission"
"""What a competition calls a table of answers, whose labels mean nothing."""
SAMPLE = 100  # rows of a table whose files are looked for
WHOLE = re.compile(r"(\d{1,15})(?:\.0+)?", re.ASCII)
NEGATIVE = re.compile(r"-+\d+", re.ASCII)


class Entry(NamedTuple):
    """One line of a source: where it is, the image, its label, its split and group or "", and the label as
    it was written.
    """

    where: str
    path: str
    label: str
    split: str
    group: str = ""
    written: str = ""


def read_table(table: Path, settings: DataSettings, *, is_named: bool = False) -> Listing:
    """Read a table of images. Paths are absolute, or relative to the table's folder, or addresses if the user
    has named this very table (``is_named``). Labels are names or whole numbers. Raises DataError naming the
    line.
    """
    entries, notes = _read_entries(table, settings, is_named=is_named)
    splits = [split_of(entry.path.partition("/")[0]) for entry in entries]
    by_folder = not any(entry.split for entry in entries) and {"train", "test"} <= {*splits} and all(splits)
    if by_folder:
        entries = [entry._replace(split=split or "") for entry, split in zip(entries, splits, strict=True)]
    listing = listing_of(table, table.parent, entries)
    origin = f"the folders in {table.name}" if by_folder else listing.origin
    return replace(listing, origin=origin, notes=(*listing.notes, *notes))


def read_tables(folder: Path, tables: Mapping[str, Path], settings: DataSettings) -> Listing:
    """Read a table for each split, in a folder or in folders of it. Raises DataError naming the line."""
    names = ", ".join(table.relative_to(folder).as_posix() for table in tables.values())
    entries, notes, tables = list[Entry](), [f"its classes are those of {names}"], dict(tables)
    if tables.keys() == {"train", "val"}:
        tables["test"] = tables.pop("val")
        notes.append(f"it has no labeled test images: those of {tables['test'].name} are used for testing")
    for split, table in tables.items():
        rows, remarks = _read_entries(table, settings)
        parent = table.parent.relative_to(folder)
        for row in rows:  # a split that is not given is made
            is_whole = os.path.isabs(row.path) or is_address(row.path)
            path = row.path if is_whole else (parent / row.path).as_posix()
            entries.append(row._replace(path=path, split="" if tables.keys() == {"train"} else split))
        notes += remarks
    listing = listing_of(folder, folder, entries)
    origin = names if tables.keys() != {"train"} else listing.origin
    return replace(listing, name=folder.resolve().name, origin=origin, notes=(*notes, *listing.notes))


def is_table(path: str | os.PathLike[str]) -> bool:
    """True for the name of a table."""
    return os.fspath(path).lower().endswith(SUFFIXES)


def list_images(table: Path, settings: DataSettings) -> list[Path]:
    """The images that a table which the user has named lists, in its order, each once, whatever else it says
    of them. Raises DataError as `read_table`, but labels and splits are not read.
    """
    find, paths = find_files(table.parent, in_folders=True), dict[Path, None]()
    for number, row in read_rows(table, settings, has_labels=False):
        where = f"{table}, line {number}"
        row = parse_json(row, where, file_names=True) if isinstance(row, str) else row
        path = row.get(column(PATHS, row)) if isinstance(row, dict) else None
        if not (isinstance(path, str) and path):
            raise DataError(f"{where} needs the path of an image.")
        if is_address(path):
            _require_place(where, path, table, is_named=True)
        elif isinstance(table, Address) or not os.path.isabs(path):
            require_inside(where, path)
        paths[within(table.parent, find(path))] = None
    if not paths:
        raise DataError(f"{table} lists no images.")
    return [*paths]


def listing_of(
    table: Path,
    folder: Path,
    entries: list[Entry],
    *,
    keys: Sequence[str] | None = None,
) -> Listing:
    """The lists of a table's entries, whose paths are relative to ``folder``. With ``keys``, the labels in
    label order, labels are names even if they are digits. Raises DataError as `read_table`.
    """
    notes: tuple[str, ...] = ()
    _require_single(entries)
    if keys is None:
        entries, keys, notes = _order_labels(table, entries)
    labels, name = {key: label for label, key in enumerate(keys)}, table.stem
    rows = [Row(entry.path, labels[entry.label]) for entry in entries]
    if any(entry.split for entry in entries):
        split = _by_split(table, entries, rows)
    else:
        split = Split({UNDIVIDED: tuple(rows)}, "", ())
    notes = (*split.notes, *notes)
    groups = {entry.path: entry.group for entry in entries if entry.group}
    return Listing(
        name, folder, tuple(keys), tuple(keys), split.splits, split.origin, notes=notes, groups=groups
    )


def _order_labels(table: Path, entries: list[Entry]) -> tuple[list[Entry], list[str], tuple[str, ...]]:
    """The entries with valid labels, their labels in order, and a note on numbers that do not run from 0."""
    whole = {entry.label: match[1] for entry in entries if (match := WHOLE.fullmatch(entry.label))}
    if all(entry.label in whole for entry in entries):
        in_order = sort_names({*whole.values()})
        entries = [entry._replace(label=whole[entry.label]) for entry in entries]
        return entries, in_order, label_note([*map(int, in_order)])
    for entry in entries:
        if NEGATIVE.fullmatch(entry.label):
            fault(DataError(f"{entry.where}: label {entry.label} is out of range; labels count from 0."))
    entries = [entry for entry in entries if not NEGATIVE.fullmatch(entry.label)]
    if not entries:
        raise DataError(f"{table} has no valid line.")
    return entries, sort_names({entry.label for entry in entries}), ()


def _require_single(entries: Sequence[Entry]) -> None:
    """A fault for each label that looks like several: a list, or names that others have too, with commas."""
    parts = {entry.label: SEVERAL.split(entry.label.strip("[]{}")) for entry in entries}
    uses = Counter(chain.from_iterable({*names} for names in parts.values()))
    for entry in entries:
        names, is_list = parts[entry.label], entry.label[:1] + entry.label[-1:] in ("[]", "{}")
        if len(names) > 1 and (is_list or all(uses[name] > 1 for name in names)):
            fault(
                DataError(
                    f"{entry.where}: the label {entry.label!r:.80} looks like several, and {ONE_LABEL}: keep "
                    "one, or leave the image out."
                )
            )


def _by_split(table: Path, entries: list[Entry], rows: list[Row]) -> Split:
    """The split that a table states; it may list images to train on or to test on alone."""
    splits: dict[str, list[Row]] = {"train": [], "test": []}
    for entry, row in zip(entries, rows, strict=True):
        if (part := split_of(entry.split)) is None:
            raise DataError(f"{entry.where}: the split {entry.split!r:.80} is not train, val or test.")
        splits.setdefault(part, []).append(row)
    if not splits["train"] and "val" in splits:
        raise DataError(f"{table} has no image with split train, but some with split val.")
    notes = [] if splits["train"] else ["it lists no image to train on: it can only be tested on"]
    notes += [] if splits["test"] else ["it lists no image to test on: it can only be trained on"]
    rows_by_part = {part: tuple(rows) for part, rows in splits.items()}
    return Split(rows_by_part, f"the column split of {table.name}", tuple(notes))


def _read_entries(
    table: Path, settings: DataSettings, *, is_named: bool = False
) -> tuple[list[Entry], list[str]]:
    """The valid lines of a table, in order, and notes on what is not read. An image is listed once."""
    entries, boxes, find = dict[str, Entry](), list[str](), find_files(table.parent, in_folders=True)
    folder, real = (os.path.join(form(table.parent), "") for form in (os.path.abspath, os.path.realpath))
    for number, row in read_rows(table, settings):
        if isinstance(row, dict) and not WRITTEN_HERE.isdisjoint(row):
            raise DataError(
                f"{table} is a table that dear wrote: correct it, then put its labels beside the images, "
                f"where every command reads them: dear labels apply {quote(str(table))} FOLDER."
            )
        with as_fault():
            boxes = boxes or [name for name in row if name.lower() in BOXES and isinstance(row, dict)]
            entry = _entry(f"{table}, line {number}", row, find, settings)
            if is_address(entry.path):
                _require_place(entry.where, entry.path, table, is_named=is_named)
            elif isinstance(table, Address):
                require_inside(entry.where, entry.path)  # an absolute path is one of this machine
            path = os.path.abspath(os.path.join(folder, entry.path)).replace("//", "/")  # at the start
            if path.startswith(folder):  # an absolute path may name the same image without links
                path = real + path.removeprefix(folder)
            if path in entries:
                hint = f" Its columns are of boxes ({boxes[0]}): {PURPOSE}." if boxes else ""
                raise DataError(
                    f"{entry.where}: the image {entry.path} is already in {entries[path].where}.{hint}"
                )
            entries[path] = entry
    if not entries:
        raise DataError(f"{table} lists no images. It needs lines with {COLUMNS}.")
    notes = [f"its column {boxes[0]} is of boxes, and is not read: {PURPOSE}"] if boxes else []
    labels = {entry.label for entry in entries.values()}
    if isinstance(row, dict) and labels <= row.keys():
        columns = list_names(sort_names(labels), FEW)
        notes.append(f"its columns of 0 and 1 are its classes, by the one that has a 1: {columns}")
    notes += spelling_note(entry.written for entry in entries.values())
    return [*entries.values()], notes


def _require_place(where: str, path: str, table: Path, *, is_named: bool) -> None:
    """Raise DataError for an address that a table of others could have us fetch: of another place than the
    table's own, unless it is a table of this machine that the user has named.
    """
    address = as_path(path)
    assert isinstance(address, Address)
    if isinstance(table, Address) and address.place != table.place:
        raise DataError(
            f"{where}: {path:.200} is at another place than the table: copy the table to this "
            "machine, look through it, and give that."
        )
    if not (is_named or isinstance(table, Address)):
        raise DataError(
            f"{where}: {path:.200} is an address, which is read only of a table that you name: "
            f"give {table.name} itself."
        )


def _entry(where: str, row: Any, find: Callable[[str], str], settings: DataSettings) -> Entry:
    if isinstance(row, str):
        row = parse_json(row, where, file_names=True)
    row, group = row if isinstance(row, dict) else {}, settings.group
    row |= {kind: row[name] for kind, name in settings.named_columns.items() if name in row}
    path, label, split = row.get(column(PATHS, row)), row.get(column(LABELS, row)), row.get("split") or ""
    if isinstance(label, int | float) and not isinstance(label, bool):  # a JSON number
        label = str(label)
    if isinstance(label, list | dict | bool):
        raise DataError(f"{where}: the label {label!r:.80} is not a text or a number: {ONE_LABEL}.")
    if isinstance(path, str) and path and column(LABELS, row) in row and not str(label or "").strip():
        raise DataError(f"{where}: {path} has no label: write its class, or remove the line.")
    if not (isinstance(path, str) and path and isinstance(label, str)):
        raise DataError(f"{where} needs {COLUMNS}{OTHER_NAMES}.")
    if not os.path.isabs(path):
        require_inside(where, path)
    if not isinstance(split, str) or (split.strip() and not split_of(split)):
        raise DataError(f"{where}: the split {split!r:.80} is not train, val or test.")
    of = None if group is None else row.get(group, row.get(group.lower()))
    of = "" if of is None else str(of).strip()
    return Entry(where, find(path), read_csv_text(plain_label(label)), split.strip(), of, label)


def column(names: Sequence[str], columns: Collection[str]) -> str:
    """The first of these names that is a column, else the first."""
    return next((name for name in names if name in columns), names[0])


def names_images(table: Path, settings: DataSettings) -> bool:
    """True for a table with the two columns, whatever images it names."""
    return any(True for _ in _sample(table, settings))


def lists_files(table: Path, settings: DataSettings = DataSettings()) -> bool:
    """True for a table of images, one of which is there, that `dear` did not write. Predictions beside the
    folders that they are of say nothing of these, and competitions have other tables, such as
    `sample_submission.csv`.
    """
    find = find_files(table.parent, in_folders=True)
    return SUBMISSION not in table.stem.lower() and any(
        is_file(table.parent / find(str(row[column(PATHS, row)])))
        for row in _sample(table, settings)
        if WRITTEN_HERE.isdisjoint(row)
    )


def _sample(table: Path, settings: DataSettings) -> Iterator[Mapping[str, Any]]:
    """The first rows of a table that have the two columns; none of a file that is not such a table."""
    with suppress(DearError):
        for _, row in islice(read_rows(table, settings), SAMPLE):
            row = parse_json(row, table, file_names=True) if isinstance(row, str) else row
            if isinstance(row, dict):
                row |= {kind: row[name] for kind, name in settings.named_columns.items() if name in row}
                if row.get(column(PATHS, row)) and column(LABELS, row) in row:
                    yield row


def read_rows(table: Path, settings: DataSettings, *, has_labels: bool = True) -> Iterator[tuple[int, Any]]:
    """Each row with the number of its line: of a CSV file a mapping by column, of a JSONL file the line.
    Raises DataError for a table without the two columns, or without that of images.
    """
    if table.suffix.lower() == ".jsonl":
        yield from ((number, line) for number, line in enumerate(read_lines(table), start=1) if line.strip())
        return
    lines = read_csv(table)
    header = _named_columns(next(lines, (0, []))[1], settings)
    rows = (
        (number, dict(zip_longest(header, cells[: len(header)], fillvalue=""))) for number, cells in lines
    )
    names = [column(PATHS, header), column(LABELS, header)][: 1 + has_labels]
    classes, first = list[str](), list[tuple[int, dict[str, str]]]()
    if missing := [name for name in names if name not in header]:
        first = [*islice(rows, SAMPLE)]
        sample = [row for _, row in first]
        classes = _columns_of_flags(sample, names[0])
        flags = f", but a column for each of {list_names(classes, FEW)}: {ONE_LABEL}" if classes else ""
        if missing != names[1:] or not _is_one_hot(sample, classes):
            has = f"; it has {list_names(header, 9)}" if header else ""
            needed = f"{COLUMNS}{OTHER_NAMES}" if has_labels else f"it, or {list_names(PATHS[1:], FEW)}"
            raise DataError(
                f"{table} has no column {missing[0]!r}{flags}{has}. Its first line must name {needed}."
            )
    if repeated := [name for name in (*names, "split") if header.count(name) > 1]:
        raise DataError(f"{table} has more than one column {repeated[0]!r}. Keep one.")
    for number, row in chain(first, rows):
        labels = _flagged(row, classes)
        label = labels[0] if len(labels) == 1 else labels and f"[{', '.join(labels)}]"
        yield number, row | {names[1]: label or ""} if classes else row


def _columns_of_flags(rows: Sequence[Mapping[str, str]], path: str) -> list[str]:
    """The columns that have nothing but 0 and 1, as Roboflow has for classes."""
    cells = {name: {row[name].strip() for row in rows} for name in (rows[0] if rows else ())}
    columns = [name for name, values in cells.items() if name != path and values <= {"0", "1"}]
    return columns if len(columns) > 1 else []


def _flagged(row: Mapping[str, str], columns: Sequence[str]) -> list[str]:
    return [name for name in columns if row[name].strip() == "1"]


def _is_one_hot(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> bool:
    """True if each row has a 1 in the columns, half of them in a single one: then their names are labels."""
    counts = [len(_flagged(row, columns)) for row in rows]
    return bool(columns) and min(counts) > 0 and 2 * counts.count(1) >= len(counts)


def _named_columns(header: Sequence[str], settings: DataSettings) -> list[str]:
    """The columns of a table by the names that are read here; another one of a name that the user gives to a
    column is "other NAME".
    """
    header = [name.strip() for name in header]
    kinds = {name.lower(): kind for kind, name in settings.named_columns.items()}
    taken = {kinds[name.lower()] for name in header if name.lower() in kinds}
    plain = [name.lower() if name.lower() in COLUMNS_READ else name for name in header]
    others = [f"other {name}" if name in taken else name for name in plain]
    return [kinds.get(name.lower(), other) for name, other in zip(header, others, strict=True)]
