"""The rows of a CSV or JSONL file of images, and the names that people give to its columns."""

import csv
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dear.errors import DataError, DearError
from dear.limits import limit
from dear.reading.files import LINE_ENDS, first_line, opened, read_text, split_lines
from dear.reading.plain import csv_rows, parse_json

SUFFIXES = (".csv", ".tsv", ".jsonl")
COLUMNS = "path, label and, optionally, split"
PATHS = ("path", "image", "file", "filename", "filepath", "image_path")
LABELS = ("label", "labels", "class")
"""Names of the two columns, the first that is there: `dear predict` writes file and class."""
SPLIT = ("split",)
DELIMITERS = (",", ";", "\t")
MOST_TABLES = 100  # of a zip, of which one may list its images
LONGEST_HEADER = 2**16  # bytes in which the columns are looked for
DELIMITER_LINE = re.compile(rf'"?sep=([,;\t|])"?[,;\t ]*[{LINE_ENDS}]+')
"""The line with which Excel says what separates the cells."""


def lists_images(table: Path) -> bool:
    """True for a table, which is no link, whose first line names the two columns: others lie in the zips of
    competitions too.
    """
    with opened(table) as file:
        start = file.read(LONGEST_HEADER).decode("utf-8-sig", "replace")
    if table.suffix.lower() == ".jsonl":
        with suppress(DearError):
            first = parse_json(start.lstrip().partition("\n")[0], table)
            return isinstance(first, dict) and _has_columns([*first])
        return False
    _, header = _delimiter_and_header(table, start)
    return _has_columns(header)


def table_rows(table: Path, *, links: bool) -> Iterator[tuple[int, Any]]:
    """Each row with the number of its first line: of a CSV file a mapping by column, of a JSONL file the
    line. The table is no link unless ``links``. Raises DataError for a table without the two columns.
    """
    text = read_text(table, links=links)
    return _json_lines(table, text) if table.suffix.lower() == ".jsonl" else _csv_lines(table, text)


def column(names: Sequence[str], columns: Collection[str]) -> str:
    """The first of these names that is a column, else the first."""
    return next((name for name in names if name in columns), names[0])


def _csv_lines(table: Path, text: str) -> Iterator[tuple[int, Any]]:
    delimiter, _ = _delimiter_and_header(table, text[:LONGEST_HEADER])
    rows = csv_rows(text, table, delimiter)
    # Not csv.DictReader, which gives each row every column: their product has no bound.
    _, first_row = next(rows, (1, []))
    if DELIMITER_LINE.match(text):
        _, first_row = next(rows, (2, []))
    header = [_plain(cell) for cell in first_row]
    names = [column(alternatives, header) for alternatives in (PATHS, LABELS, SPLIT)]
    columns = {name: at for at, name in enumerate(header) if name in names}
    if missing := [name for name in names if name not in columns and name not in SPLIT]:
        raise DataError(f"{table} has no column {missing[0]!r}. Its first line must name {COLUMNS}.")
    if repeated := [name for name in names if header.count(name) > 1]:
        raise DataError(f"{table} has more than one column {repeated[0]!r}. Keep one.")
    for line, row in rows:
        if any(map(str.strip, row)):  # a spreadsheet saves rows that were emptied
            yield line, {name: row[at] for name, at in columns.items() if at < len(row)}


def _json_lines(table: Path, text: str) -> Iterator[tuple[int, Any]]:
    lines = split_lines(text, table)
    yield from ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _delimiter_and_header(table: Path, start: str) -> tuple[str, list[str]]:
    """What separates the cells of a CSV file, by its beginning, and the names in its first line."""
    stated = DELIMITER_LINE.match(start)
    line = first_line(start[stated.end() :] if stated else start)
    delimiters = ("\t",) if table.suffix.lower() == ".tsv" else (stated[1],) if stated else DELIMITERS
    header = list[str]()
    for delimiter in delimiters:
        if line.count(delimiter) < limit("columns"):
            with suppress(csv.Error):
                header = [_plain(cell) for row in csv.reader([line], delimiter=delimiter) for cell in row]
        if _has_columns(header):
            return delimiter, header
    return delimiters[0], header


def _plain(cell: str) -> str:
    return cell.strip().lower()


def _has_columns(header: Collection[str]) -> bool:
    return column(PATHS, header) in header and column(LABELS, header) in header
