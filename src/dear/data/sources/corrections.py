"""Corrections of labels: what people said of photographs, in a table beside the data that is read with it.

A photograph is known by the content of its file, so that its correction follows it if it is moved or renamed.
"""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dear.data.images.forms import file_hash
from dear.data.images.hashes import FileFacts, read_files
from dear.data.settings import DataSettings
from dear.data.sources.class_names import (
    describe_new_class,
    nearest_class,
    plain_label,
    plain_name,
    sort_names,
)
from dear.data.sources.listing import UNLABELED, Listing, Row
from dear.data.sources.shards import is_pattern
from dear.data.sources.table import LABELS, PATHS, column, read_rows
from dear.errors import DataError
from dear.reading.files import CORRECTIONS, expanded
from dear.reading.remote import within
from dear.text import compose, plural
from dear.writing import csv_rows, csv_text, locked, output_file, read_csv_text

REMOVE = "remove"
"""What the table has as the label of an image that is left out."""
OF_NO_CLASS = frozenset([REMOVE, "none", "none of these"])
"""Answers that mean this, unless a class is called so."""


class NewClassError(DataError):
    """A label that is no class, and may be mistyped.

    Attributes:
        label: The label, as a table of corrections would have it.
        nearest: The class that is spelled nearly so, if there is one.
    """

    def __init__(self, label: str, nearest: str | None) -> None:
        self.label, self.nearest = label, nearest
        super().__init__(f"{label!r:.80} is no class" + (f": did you mean {nearest!r}?" if nearest else "."))


class Correction(NamedTuple):
    """A row: where the image was, the folder or label of its class or `REMOVE`, and the hash of its file.
    The hash is empty if the row has none and the file is gone.
    """

    path: str
    label: str
    content: bytes


def corrections_file(data: Any) -> Path | None:
    """The table of the corrections of a data set: in its folder, or beside its table or archive. None for
    data that is no file, such as a benchmark by name.
    """
    if not isinstance(data, str | Path):
        return None
    path = expanded(data)
    if path.is_dir():
        return path / CORRECTIONS
    return path.with_name(CORRECTIONS) if path.is_file() or is_pattern(str(path)) else None


def key_of(
    label: str, keys: Sequence[str], classnames: Sequence[str], new_classes: Collection[str] = ()
) -> str:
    """What the corrections of a data set have for an answer: the folder or label of the class that is called
    so, `REMOVE`, or one of the ``new_classes``. Raises NewClassError for any other name.
    """
    known = dict(zip(map(plain_name, keys), keys, strict=True))
    known |= dict(zip(map(plain_name, classnames), keys, strict=True))
    if key := known.get(plain_name(label)):
        return key
    if plain_name(label) not in OF_NO_CLASS:
        if plain_name(label) not in {*map(plain_name, new_classes)}:
            raise NewClassError(plain_label(label), nearest_class(label, classnames))
        return plain_label(label)
    if REMOVE in known:
        raise DataError(
            f"a class is called {REMOVE!r}, so no image can be left out by that: rename the class."
        )
    return REMOVE


def read_corrections(table: Path) -> list[Correction]:
    """The rows of a table; none if there is none. A row without a hash has that of the file that it names.
    Raises DataError naming the line.
    """
    corrections = list[Correction]()
    for number, row in read_rows(table, DataSettings()) if table.is_file() else ():
        where, names = f"{table}, line {number}", (column(PATHS, row), column(LABELS, row), "hash")
        path, label, digest = (read_csv_text(compose((row.get(name) or "").strip())) for name in names)
        label = plain_label(label)
        if not path or not label:
            raise DataError(f"{where} needs a path and a label: that of a class, or {REMOVE}.")
        try:
            content = bytes.fromhex(digest)
        except ValueError as error:
            raise DataError(f"{where}: {digest!r:.40} is no hash of a file: leave its cell empty.") from error
        if not content:
            with suppress(DataError):
                content = file_hash(table.parent / path)
        corrections.append(Correction(path, label, content))
    return corrections


def answered_contents(data: Any, since: int = 0) -> set[bytes]:
    """The hashes of the files of which somebody said what they show, in the corrections of one data set or
    of several; of tables written ``since`` a time, in nanoseconds.
    """
    tables = [corrections_file(source) for source in (data if isinstance(data, list | tuple) else [data])]
    current = [table for table in tables if table and table.is_file() and table.stat().st_mtime_ns >= since]
    return {correction.content for table in current for correction in read_corrections(table)}


def correct(listing: Listing, table: Path, settings: DataSettings) -> Listing:
    """A data set with its corrections. Images stay on the side of a split; a class that loses its last image
    is none. A benchmark stays as it was published.

    Of several rows with the content of a file, the first of these counts:

    1. the row of the file itself;
    2. a row with a class, because copies have one class;
    3. a row that leaves out another file that is gone.
    """
    corrections = read_corrections(table)
    if not corrections or listing.benchmark:
        unread = (f"{CORRECTIONS} is not read: a benchmark stays as published",) if corrections else ()
        return replace(listing, notes=(*listing.notes, *unread))
    new, counts = list[str](), Counter[tuple[str, str]]()
    known = {plain_name(key): key for key in listing.keys}
    labels = {key: label for label, key in enumerate(listing.keys)}
    paths = listing.paths
    files = [within(listing.folder, path) for path in paths]
    facts = read_files(files, settings.threads, settings.cache_folder(), decoded=True)  # as `scan` does
    seen = dict(zip(paths, facts, strict=True))
    chosen, splits = _rows_by_path(listing, table, corrections, seen), dict[str, list[Row]]()
    for part, rows in listing.splits.items():
        splits[part] = []
        for row in rows:
            label = chosen[row.path].label if row.path in chosen else ""
            key, is_unlabeled = known.get(plain_name(label)), row.label == UNLABELED
            if key is None and label and plain_name(label) in OF_NO_CLASS:
                counts["image", "left out"] += 1
                continue
            if key is None and label and not seen[row.path].fault:
                key = known[plain_name(label)] = label
                labels[key] = len(labels)
                if listing.keys:
                    new.append(describe_new_class(CORRECTIONS, listing.name, label, listing.keys))
            if key is None and is_unlabeled:
                counts["image", "without a label left out"] += 1
                continue
            corrected = row if key is None else Row(row.path, labels[key])
            if key is not None:
                verb = "confirmed" if corrected == row else "given" if is_unlabeled else "changed"
                counts["label", verb] += 1
            splits[part].append(corrected)
    used = len({*chosen.values()})
    counted = [f"{plural(count, noun)} {verb}" for (noun, verb), count in counts.items()]
    if elsewhere := len(corrections) - used:
        counted.append(f"{elsewhere} of files that are not here")
    copies = "; a row counts for all copies of its image" if counts.total() > used else ""
    notes = [
        *listing.notes,
        f"{CORRECTIONS}: {used} of {plural(len(corrections), 'row')} used: {', '.join(counted)}{copies}",
    ]
    return _with_classes(replace(listing, notes=(*notes, *new)), labels, splits)


def _rows_by_path(
    listing: Listing, table: Path, corrections: Sequence[Correction], seen: Mapping[str, FileFacts]
) -> dict[str, Correction]:
    """The row that counts for each image that has one."""
    by_content = dict[bytes, list[Correction]]()
    for correction in corrections:
        if correction.content:
            by_content.setdefault(correction.content, []).append(correction)
    names = {
        (path, facts.content): {
            path,
            str(file := within(listing.folder, path)),
            os.path.relpath(file, table.parent),
        }
        for path, facts in seen.items()
        if facts.content in by_content
    }
    here = {(name, content) for (_, content), spellings in names.items() for name in spellings}
    chosen = dict[str, Correction]()
    for (path, content), spellings in names.items():
        rows = by_content[content]
        itself = [row for row in rows if row.path in spellings]
        of_class = [row for row in rows if row.label != REMOVE]
        moved = [row for row in rows if (row.path, content) not in here]
        if counting := [*itself[-1:], *of_class[-1:], *moved[-1:]]:
            chosen[path] = counting[0]
    return chosen


def _with_classes(listing: Listing, labels: dict[str, int], splits: dict[str, list[Row]]) -> Listing:
    """A listing with other rows, whose labels are those of these keys: without classes that have lost their
    images, and with new ones in their place by name if all are in that order.
    """
    before, after = (
        {row.label for rows in part.values() for row in rows} for part in (listing.splits, splits)
    )
    keys = [key for key, label in labels.items() if label in after or label not in before]
    keys = sort_names(keys) if [*listing.keys] == sort_names(listing.keys) else keys
    lost = [key for key in listing.keys if key not in keys]
    names = dict(zip(listing.keys, listing.classnames, strict=True))
    numbers = {labels[key]: number for number, key in enumerate(keys)}
    rows = {
        part: tuple(Row(row.path, numbers[row.label]) for row in within) for part, within in splits.items()
    }
    lines = [f"{CORRECTIONS} leaves {key!r} no image: it is no class" for key in lost]
    return replace(
        listing,
        keys=tuple(keys),
        classnames=tuple(names.get(key, key) for key in keys),
        splits=rows,
        notes=(*listing.notes, *lines),
    )


def merge_corrections(
    table: Path,
    corrections: Sequence[Correction],
    settings: DataSettings,
    instead_of: Collection[Correction] = (),
) -> None:
    """Write corrections into a table, atomically, ``instead_of`` some rows: a new row replaces one of the
    same file, and one with a class all with another class for the same content. Raises OutputError.
    """
    with locked(table, settings.cache_folder(), seconds=60):
        merged = {(row.path, row.content): row for row in read_corrections(table) if row not in instead_of}
        for new in corrections:
            if new.label != REMOVE:
                merged = {
                    key: row
                    for key, row in merged.items()
                    if row.content != new.content or row.label == REMOVE
                }
            merged[new.path, new.content] = new
        with output_file(table, "the corrections", "for the data") as file, csv_rows(file) as rows:
            rows.writerow(["path", "label", "hash"])
            for row in sorted(merged.values()):
                rows.writerow([csv_text(row.path), csv_text(row.label), row.content.hex()])
