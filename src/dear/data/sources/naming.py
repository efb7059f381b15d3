"""Class names: from a file of the user (JSON, CSV, CoOp's classnames.txt), or ImageNet's for WordNet ids."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from dear.data.sources.listing import Listing, first_few, plain_name, require_distinct
from dear.errors import DataError
from dear.limits import at_most, limit
from dear.reading.files import ReadingError, first_line, read_text, split_lines
from dear.reading.plain import QUOTES, csv_rows, parse_json
from dear.reading.typed import shown

HEADERS = {*product(("folder", "label", "class", "id", "key"), ("name", "classname", "class_name"))}
"""Rows of a CSV file that name its columns."""
WORDNET_ID = re.compile(r"n\d{8}")


def read_names(path: Path, *, links: bool = False) -> dict[str, str] | list[str]:
    """Read a mapping of folders or labels to names, or names in label order, from a file that is no link
    unless ``links``. Raises DataError, LimitError for more names than there may be classes.

    The suffix .json or .csv determines the format; any other file has lines of a folder, a space and a name.
    """
    try:
        text = read_text(path, links=links)
    except ReadingError as error:
        raise DataError(f"cannot read the class names {path}: {error.reason}.") from error
    if path.suffix.lower() == ".json":
        return _from_json(path, text)
    if path.suffix.lower() == ".csv":
        lines = (row for row in _csv_lines(path, text) if any(cell.strip() for cell in row))
    else:
        lines = (line.strip().split(maxsplit=1) for line in split_lines(text, path) if line.strip())
    names, most = dict[str, str](), limit("classes")
    for line in lines:
        if odd := next((cell for cell in line if "\n" in cell), None):
            raise DataError(f"{path} has a cell of several lines: {shown(odd)}. {QUOTES}")
        pair = [cell.strip() for cell in line]
        if len(pair) != 2 or not all(pair):
            raise DataError(f"{path}: {shown(' '.join(pair))} is not a folder and a class name.")
        folder, name = pair
        if folder in names:
            raise DataError(f"{path} names a folder twice: {shown(folder)}.")
        names[folder] = name
        if len(names) > most:
            at_most("classes", len(names), path)
    return names


def rename(listing: Listing, path: Path) -> Listing:
    """The listing with class names from a file. Raises DataError for a missing or duplicate name."""
    names = in_order(listing.keys, read_names(path, links=True), str(path))
    require_distinct(str(path), listing.keys, names)
    return replace(listing, classnames=tuple(names))


def in_order(keys: Sequence[str], names: Mapping[str, str] | Sequence[str], source: str) -> list[str]:
    """The names of classes in the order of their keys. Raises DataError if their numbers differ."""
    if isinstance(names, Mapping):
        if missing := [key for key in keys if key not in names]:
            raise DataError(f"{source} has no name for {len(missing)} classes; the first is {missing[0]!r}.")
        return [names[key] for key in keys]
    if len(names) != len(keys):
        raise DataError(f"{source} has {len(names)} names for {len(keys)} classes.")
    return [*names]


def name_wordnet_ids(listing: Listing) -> Listing:
    """The listing with CoOp's names of ImageNet's classes in place of WordNet ids, and a note about them.

    Ids of one name (sunglasses, missile), or of that of another class, keep the id in brackets. Ids that are
    not ImageNet's stay. Source: CoOp's classnames.txt.
    """
    ids = [key for key in listing.keys if WORDNET_ID.fullmatch(key)]
    if not ids or listing.keys != listing.classnames:
        return listing
    imagenet = dict(zip(packaged_names("ImageNet.wnids.txt"), packaged_names("ImageNet.txt"), strict=True))
    named = [imagenet.get(key, key) for key in listing.keys]
    uses = Counter(map(plain_name, named))
    names = [
        f"{name} ({key})" if name != key and uses[plain_name(name)] > 1 else name
        for key, name in zip(listing.keys, named, strict=True)
    ]
    require_distinct(listing.name, listing.keys, names)
    notes = list(listing.notes)
    if replaced := [f"{key} is {name}" for key, name in zip(listing.keys, names, strict=True) if name != key]:
        notes.append(
            f"{len(replaced)} of its {len(names)} classes are WordNet ids and take the names that CoOp has "
            f"for ImageNet: {first_few(replaced)}; --dataset.classnames FILE gives others"
        )
    if unknown := [key for key in ids if key not in imagenet]:
        notes.append(
            f"{len(unknown)} classes are WordNet ids that are not ImageNet's 1000 and stay as they are: "
            f"{first_few(unknown)}; name them with --dataset.classnames FILE"
        )
    return replace(listing, classnames=tuple(names), notes=tuple(notes))


@cache
def packaged_names(file: str) -> tuple[str, ...]:
    """The lines of a file of class names in this package."""
    text = files(__package__).joinpath("classnames", file).read_text(encoding="utf-8")
    return tuple(text.splitlines())


def _csv_lines(path: Path, text: str) -> Iterator[list[str]]:
    """The rows of a CSV file, separated by commas or semicolons, without a header."""
    unquoted = re.sub(r'"[^"]*"', "", first_line(text))
    signs = [sign for sign in unquoted if sign in ",;"]  # a name may have the other
    delimiter = signs[0] if signs else ","
    rows = (row for _, row in csv_rows(text, path, delimiter))
    first = next(rows, [])
    if tuple(cell.strip().lower() for cell in first) not in HEADERS:
        yield first
    yield from rows


def _from_json(path: Path, text: str) -> dict[str, str] | list[str]:
    content: Any = parse_json(text, path)
    values = content.values() if isinstance(content, dict) else content
    if not isinstance(content, dict | list) or not all(isinstance(v, str) and v.strip() for v in values):
        raise DataError(f"{path} needs a list of class names, or an object of folder and class name.")
    return content
