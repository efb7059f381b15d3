"""Class names: from a file of the user (JSON, CSV, CoOp's classnames.txt), or ImageNet's for WordNet ids."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from dear.data.sources.listing import Listing, first_few, plain_name, require_distinct
from dear.errors import DataError, compose
from dear.limits import at_most, limit
from dear.reading.files import ReadingError, first_line, read_text, split_lines
from dear.reading.plain import QUOTES, csv_rows, parse_json
from dear.reading.typed import shown

HEADERS = {*product(("folder", "label", "class", "id", "key"), ("name", "classname", "class_name"))}
"""Rows of a CSV file that name its columns."""
WORDNET_ID = re.compile(r"n\d{8}")
WHOLE = re.compile(r"\d{1,15}", re.ASCII)
MOST_NAMED = 20  # classes that a note names


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
    """The listing with class names from a file, and a note that says which class has which name. Raises
    DataError for a missing or duplicate name.
    """
    names = match_names(listing.keys, read_names(path, links=True), str(path), numbered=listing.numbered)
    require_distinct(str(path), listing.keys, names)
    note = f"its classes are named by {path}: {name_map(zip(listing.keys, names, strict=True))}"
    return replace(listing, classnames=tuple(names), notes=(*listing.notes, note))


def name_map(pairs: Iterable[tuple[str, str]]) -> str:
    """Which folder or label has which name, for a note."""
    return first_few((f"{key} is {name}" for key, name in pairs), MOST_NAMED)


def _without_zeros(key: str) -> str:
    """A whole number without leading zeros; any other key as it is."""
    return str(int(key)) if WHOLE.fullmatch(key) else key


def match_names(
    keys: Sequence[str], names: Mapping[str, str] | Sequence[str], source: str, *, numbered: bool = False
) -> list[str]:
    """The names of classes in the order of their keys, which are folders or labels.

    A list has the names of keys that are whole numbers: that of key 3 at place 3 or, if the numbers go beyond
    the list, in their order. Beside other keys it must name each of them, or the data set numbers its classes
    itself (``numbered``). Raises DataError for a missing name, and for a list that does not fit.
    """
    if isinstance(names, Mapping):
        spelled = {compose(key): name for key, name in names.items()}
        by_key = {_without_zeros(key): name for key, name in spelled.items()} | spelled
        if missing := [key for key in keys if key not in spelled and _without_zeros(key) not in by_key]:
            raise DataError(f"{source} has no name for {len(missing)} classes; the first is {missing[0]!r}.")
        return [compose(by_key[key if key in spelled else _without_zeros(key)]) for key in keys]
    names = [*map(compose, names)]
    whole = not numbered and all(map(WHOLE.fullmatch, keys))
    if whole and max(map(int, keys), default=0) < len(names):
        return [names[int(key)] for key in keys]
    if len(names) != len(keys):
        raise DataError(f"{source} has {len(names)} names for {len(keys)} classes.")
    if whole or numbered:
        return names
    by_name = {plain_name(name): name for name in names}
    if other := [key for key in keys if plain_name(key) not in by_name]:
        raise DataError(
            f"{source} is a list of names, which says nothing of the class {other[0]!r}: give an object that "
            f'names each class, {{"{other[0]}": "name", ...}}.'
        )
    return [by_name[plain_name(key)] for key in keys]


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
    pairs = [(key, name) for key, name in zip(listing.keys, names, strict=True) if name != key]
    if pairs:
        notes.append(
            f"{len(pairs)} of its {len(names)} classes are WordNet ids and take the names that CoOp has "
            f"for ImageNet: {name_map(pairs)}; --dataset.classnames FILE gives others"
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
