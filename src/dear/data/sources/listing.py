"""The result of reading a data set (image files by split, their labels, the class names), and class names
from a file of the user or, for WordNet ids, from ImageNet.
"""

import csv
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple, NoReturn

from dear.errors import DataError, compose, without_surrogates
from dear.limits import at_most
from dear.reading.files import ReadingError, read_text
from dear.reading.plain import QUOTES, parse_json

PARTS = ("train", "val", "test")
FEW, MOST_NAMED = 3, 20  # files or classes that a note names, and classes with their names
NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?", re.ASCII)
WHOLE = re.compile(r"\d{1,15}", re.ASCII)
WORDNET_ID = re.compile(r"n\d{8}")
HEADERS = {*product(("folder", "label", "class", "id", "key"), ("name", "classname", "class_name"))}
"""Rows of a CSV file of class names that name its columns."""

Report = Callable[[DataError], None]
"""Called with an error in a data set's lists; if it returns, reading continues without the faulty entry."""


def refuse(fault: DataError) -> NoReturn:
    """Raise the error: the default, except when a data set is only checked."""
    raise fault


@contextmanager
def reporting(report: Report) -> Iterator[None]:
    """Pass a DataError raised within to ``report``."""
    try:
        yield
    except DataError as fault:
        report(fault)


class Row(NamedTuple):
    """One image: its path in the image folder and its class, counted from 0."""

    path: str
    label: int


@dataclass(frozen=True)
class Listing:
    """A data set whose image files have not been checked.

    Attributes:
        name: short name, for commands and records.
        folder: the folder that paths are relative to.
        keys: the classes' identifiers in the data set (folders, labels), in label order.
        classnames: their names for prompts, underscores unchanged.
        splits: rows of train, test and, if there are any, val; train is empty for test-only sets.
        origin: where the split comes from, for display.
        benchmark: whether it is one of the package's benchmarks, called by `name`.
        standard: whether the split is the one used for published results.
        notes: remarks for the user, such as files left out or a split made here.
        templates: the data set's own prompts.
        numbered: whether the data set numbers its classes itself, so that a list of names in that order fits.
    """

    name: str
    folder: Path
    keys: tuple[str, ...]
    classnames: tuple[str, ...]
    splits: Mapping[str, tuple[Row, ...]]
    origin: str
    benchmark: bool = False
    standard: bool = False
    notes: tuple[str, ...] = ()
    templates: tuple[str, ...] = ("a photo of a {}.",)
    numbered: bool = False

    @property
    def files(self) -> int:
        return sum(map(len, self.splits.values()))


def single_class(listing: Listing) -> str:
    """A warning of data with one class."""
    return f"there is a single class, {listing.classnames[0]!r}: every image would be predicted as it"


def with_spaces(name: str) -> str:
    """A class name as written in a sentence: underscores become spaces, as in CoOp."""
    return name.replace("_", " ").strip()


def plain_name(name: str) -> str:
    """A key for comparing class names, ignoring case, underscores and the form of accents (NFC or NFD)."""
    return compose(with_spaces(name).casefold())


def sort_names(names: Iterable[str]) -> list[str]:
    """Names of folders or labels in their order: by value if all are numbers, else by their letters, in
    whatever form of Unicode.
    """
    in_order = sorted(names, key=lambda name: (compose(name), name))
    return sorted(in_order, key=float) if all(map(NUMBER.fullmatch, in_order)) else in_order


def first_few(names: Iterable[str], most: int = FEW) -> str:
    """A few names for a note: "a, b, c ... and 4 more"."""
    items = [*names]
    more = f" ... and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def label_note(numbers: Sequence[int]) -> tuple[str, ...]:
    """A note on labels, in their order, if they are other numbers than those from 0 without a gap."""
    gaps = ", with gaps" if numbers[-1] - numbers[0] >= len(numbers) else ""
    run = f"its {len(numbers)} labels are numbers from {numbers[0]} to {numbers[-1]}{gaps}"
    return () if [*numbers] == [*range(len(numbers))] else (f"{run}: they are taken in their order",)


def require_keys(source: str, keys: Sequence[str], names: Sequence[str] | None = None) -> None:
    """Raise DataError for a class that is listed twice, and for a name, by default its key, that is empty or
    not in UTF-8; LimitError for too many or too long ones.
    """
    names = keys if names is None else names
    at_most("prompts", len(names), source)
    at_most("class_name", max(map(len, names), default=0), source)
    for key, name in zip(keys, names, strict=True):
        if name != without_surrogates(name):  # an undecodable byte of a file name
            raise DataError(f"{source}: the class name {name!r} is not in UTF-8. Rename it.")
        if not plain_name(name):
            raise DataError(f"{source}: the class {key!r} has an empty name.")
    if len({*keys}) < len(keys):
        raise DataError(f"{source}: {with_spaces(Counter(keys).most_common(1)[0][0])!r} is listed twice.")


def require_distinct(source: str, keys: Sequence[str], names: Sequence[str]) -> None:
    """Raise as `require_keys`, and DataError for two classes of the same `plain_name`."""
    require_keys(source, keys, names)
    seen: dict[str, str] = {}
    for key, name in zip(keys, names, strict=True):
        if (other := seen.setdefault(plain_name(name), key)) != key:
            raise DataError(
                f"{source}: the classes {other!r} and {key!r} have the same name, {with_spaces(name)!r}. "
                "Give each class a name of its own, by its folder or label or with --dataset.classnames."
            )


def require_inside(where: str, path: str) -> None:
    """Raise DataError for a path that leads out of the folder that it is relative to."""
    forms = PurePosixPath(path), PureWindowsPath(path)
    if any(form.anchor or ".." in form.parts for form in forms) or "\0" in path:
        raise DataError(
            f"{where}: the path {path[:200]!r} leads out of the image folder: name a file below it; a "
            "table lies in or above the folder of its images."
        )


def require_apart(where: object, splits: Mapping[str, Sequence[Row]], report: Report = refuse) -> None:
    """Report images that are in two splits, where training and test data would overlap."""
    part_of: dict[str, str] = {}
    for part, rows in splits.items():
        for path in dict.fromkeys(normal_path(row.path) for row in rows):
            if (first := part_of.setdefault(path, part)) != part:
                report(DataError(f"{where}: the image {path} is in both {first} and {part}. Keep one."))


def normal_path(path: str) -> str:
    """The normal form of a path: "a/b" for "./a//b" and "a/b/.", "/a" for "//a"."""
    return posixpath.normpath(path).replace("//", "/")  # normpath keeps two slashes at the start


def read_names(path: Path) -> dict[str, str] | list[str]:
    """Read a mapping of folders or labels to names, or names in label order. Raises DataError.

    The suffix .json or .csv determines the format; any other file has lines of a folder, a space and a name.
    """
    try:
        text = read_text(path)
    except ReadingError as error:
        raise DataError(f"cannot read the class names {path}: {error.reason}.") from error
    if path.suffix.lower() == ".json":
        content = parse_json(text, path)
        values = content.values() if isinstance(content, dict) else content
        if not isinstance(content, dict | list) or not all(isinstance(v, str) and v.strip() for v in values):
            raise DataError(f"{path} needs a list of class names, or an object of folder and class name.")
        return content
    lines = text.splitlines(keepends=True)
    rows: Iterable[list[str]] = (line.strip().split(maxsplit=1) for line in lines)
    if path.suffix.lower() == ".csv":
        signs = [sign for sign in re.sub(r'"[^"]*"', "", lines[0] if lines else "") if sign in ",;"]
        rows = csv.reader(lines, delimiter=signs[0] if signs else ",")  # a name may have the other sign
    names = dict[str, str]()
    try:
        for number, row in enumerate(rows):
            pair = [cell.strip() for cell in row]
            if not any(pair) or (number == 0 and tuple(map(str.lower, pair)) in HEADERS):
                continue
            if odd := next((cell for cell in pair if "\n" in cell), None):
                raise DataError(f"{path} has a cell of several lines: {odd!r:.80}. {QUOTES}")
            if len(pair) != 2 or not all(pair):
                raise DataError(f"{path}: {' '.join(pair)!r:.80} is not a folder and a class name.")
            if pair[0] in names:
                raise DataError(f"{path} names a folder twice: {pair[0]!r:.80}.")
            names[pair[0]] = pair[1]
    except csv.Error as error:
        raise DataError(f"{path}: {error}. {QUOTES}") from error
    return names


def rename(listing: Listing, path: Path) -> Listing:
    """The listing with class names from a file, and a note that says which class has which name. Raises
    DataError for a missing or duplicate name.
    """
    names = match_names(listing.keys, read_names(path), str(path), numbered=listing.numbered)
    require_distinct(str(path), listing.keys, names)
    note = f"its classes are named by {path}: {name_map(zip(listing.keys, names, strict=True))}"
    return replace(listing, classnames=tuple(names), notes=(*listing.notes, note))


def name_map(pairs: Iterable[tuple[str, str]]) -> str:
    """Which folder or label has which name, for a note."""
    return first_few((f"{key} is {name}" for key, name in pairs), MOST_NAMED)


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


def _without_zeros(key: str) -> str:
    """A whole number without leading zeros; any other key as it is."""
    return str(int(key)) if WHOLE.fullmatch(key) else key


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
