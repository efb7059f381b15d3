"""The result of reading a data set (image files by split, their labels, the class names), the paths in lists,
and class names from a file of the user or, for WordNet ids, from ImageNet.
"""

import csv
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple, NoReturn

from dear.errors import DataError, compose, plural, without_surrogates
from dear.limits import at_most
from dear.reading.files import ReadingError, read_text
from dear.reading.plain import QUOTES, parse_json

PARTS = ("train", "val", "test")
NO_SPLIT = "the data has no split"
"""What notes on a split that was made here begin with."""
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
    def paths(self) -> list[str]:
        """The distinct images, in order."""
        return [*dict.fromkeys(row.path for rows in self.splits.values() for row in rows)]


def join_listings(listings: Sequence[Listing]) -> Listing:
    """Several sources as one data set, named and prompted as the first. Classes are the same by their names;
    an image that is listed again has the class and the split that its last source gives it.
    """
    first = listings[0]
    folder = Path(os.path.commonpath([os.path.abspath(listing.folder) for listing in listings]))
    labels = dict[str, int]()
    for name in (name for listing in listings for name in listing.classnames):
        labels.setdefault(plain_name(name), len(labels))
    named = {
        plain_name(name): (key, name)
        for listing in reversed(listings)
        for key, name in zip(listing.keys, listing.classnames, strict=True)
    }
    placed, notes = dict[str, tuple[str, int]](), [*first.notes]
    for listing in listings:
        before, added, changed = {**placed}, 0, 0
        for part, rows in listing.splits.items():
            for row in rows:
                path = os.path.relpath(listing.folder / row.path, folder)
                label = labels[plain_name(listing.classnames[row.label])]
                added += path not in before
                changed += path in before and before[path][1] != label
                placed[path] = part, label
        if listing is not first:
            notes.append(f"{listing.name} adds {plural(added, 'image')} and changes the class of {changed}")
            # How a correction of labels was split is of no interest.
            told = (note for note in listing.notes if added or not note.startswith(NO_SPLIT))
            notes += [f"{listing.name}: {note}" for note in told]
            notes += _tell_new_classes(listing, first)
    splits = dict[str, tuple[Row, ...]]()
    for wanted in PARTS:
        rows = tuple(Row(path, label) for path, (part, label) in placed.items() if part == wanted)
        if rows or wanted != "val":
            splits[wanted] = rows
    keys, names = zip(*(named[name] for name in labels), strict=True)
    return replace(
        first, folder=folder, keys=keys, classnames=names, splits=splits, notes=tuple(notes),
        origin="; ".join(dict.fromkeys(listing.origin for listing in listings)),
        benchmark=False, standard=False, numbered=False,
    )  # fmt: skip


def _tell_new_classes(listing: Listing, first: Listing) -> Iterator[str]:
    """A note for each class that only a later source has: it may be mistyped."""
    known = {plain_name(name): name for name in first.classnames}
    for name in listing.classnames:
        if plain_name(name) not in known:
            nearest = get_close_matches(plain_name(name), known, n=1, cutoff=0.75)
            meant = f": is {known[nearest[0]]!r} meant?" if nearest else ""
            yield f"{listing.name} has a class that {first.name} does not have, {name!r}{meant}"


def named_only(listing: Listing) -> Iterator[str]:
    """A note on classes without an image, if there are any."""
    with_images = {row.label for rows in listing.splits.values() for row in rows}
    if names := [key for label, key in enumerate(listing.keys) if label not in with_images]:
        yield f"classes by name alone, without an image: {first_few(names)}"


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


def require_distinct(source: str, keys: Sequence[str], names: Sequence[str]) -> None:
    """Raise DataError for a class that is listed twice, two of the same `plain_name`, and a name that is
    empty or not in UTF-8; LimitError for too many or too long ones.
    """
    at_most("prompts", len(names), source)
    at_most("class_name", max(map(len, names), default=0), source)
    if len({*keys}) < len(keys):
        raise DataError(f"{source}: {with_spaces(Counter(keys).most_common(1)[0][0])!r} is listed twice.")
    seen: dict[str, str] = {}
    for key, name in zip(keys, names, strict=True):
        if name != without_surrogates(name):  # an undecodable byte of a file name
            raise DataError(f"{source}: the class name {name!r} is not in UTF-8. Rename it.")
        if not plain_name(name):
            raise DataError(f"{source}: the class {key!r} has an empty name.")
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
        for path in dict.fromkeys(posixpath.normpath(row.path) for row in rows):
            if (first := part_of.setdefault(path, part)) != part:
                report(DataError(f"{where}: the image {path} is in both {first} and {part}. Keep one."))


def find_files(folder: Path) -> Callable[[str], str]:
    """A function that gives the path of the file, relative to ``folder``, that a listed path means. A path of
    no file stays as it is.

    Windows separates folders by backslashes, macOS may store accents apart from their letters, and cells may
    have spaces around their text.
    """

    @cache
    def stored_names(parent: str) -> Mapping[str, str]:
        try:
            return {compose(name): name for name in os.listdir(folder / parent)}
        except (OSError, ValueError):
            return {}

    def as_stored(path: str) -> str:
        stored = "/" if path.startswith("/") else ""
        for part in filter(None, path.split("/")):
            stored = os.path.join(stored, stored_names(stored).get(compose(part), part))
        return stored

    def find(path: str) -> str:
        if path.isascii() and "\\" not in path and path == path.strip():
            return path
        spellings = [path, path.strip(), path.replace("\\", "/"), path.strip().replace("\\", "/")]
        candidates = [*spellings, *map(as_stored, spellings)]
        return next((candidate for candidate in candidates if os.path.isfile(folder / candidate)), path)

    return find


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
        rows = csv.reader(lines, delimiter=signs[0] if signs else ",", strict=True)
    names = dict[str, str]()
    try:
        for number, row in enumerate(rows):
            pair = [cell.strip() for cell in row]
            if not any(pair) or (number == 0 and tuple(map(str.lower, pair)) in HEADERS):
                continue
            if len(pair) != 2 or not all(pair):
                raise DataError(f"{path}: {' '.join(pair)!r:.80} is not a folder and a class name.")
            if names.setdefault(*pair) != pair[1]:
                raise DataError(f"{path} names a folder twice: {pair[0]!r:.80}.")
    except csv.Error as error:
        raise DataError(f"{path}: {error}. {QUOTES}") from error
    return names


def rename(listing: Listing, path: Path) -> Listing:
    """The listing with class names from a file, and a note that says which class has which name. Raises
    DataError for a missing or duplicate name.
    """
    names = match_names(listing.keys, read_names(path), str(path), numbered=listing.numbered)
    require_distinct(str(path), listing.keys, names)
    note = f"its classes are named by {path}: {_describe_names(listing.keys, names)}"
    return replace(listing, classnames=tuple(names), notes=(*listing.notes, note))


def _describe_names(keys: Sequence[str], names: Sequence[str]) -> str:
    """Which folder or label has which name, for a note."""
    pairs = zip(keys, names, strict=True)
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
            raise DataError(
                f"{source} has no name for {plural(len(missing), 'class')}; the first is {missing[0]!r}."
            )
        return [compose(by_key[key if key in spelled else _without_zeros(key)]) for key in keys]
    names = [*map(compose, names)]
    whole = not numbered and all(map(WHOLE.fullmatch, keys))
    if whole and max(map(int, keys), default=0) < len(names):
        return [names[int(key)] for key in keys]
    if len(names) != len(keys):
        raise DataError(f"{source} has {plural(len(names), 'name')} for {plural(len(keys), 'class')}.")
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
    named = {key: imagenet.get(key, key) for key in listing.keys}
    uses = Counter(map(plain_name, named.values()))
    for key, name in named.items():
        named[key] = f"{name} ({key})" if name != key and uses[plain_name(name)] > 1 else name
    renamed = [key for key, name in named.items() if name != key]
    notes = [*listing.notes]
    if renamed:
        notes.append(
            f"{len(renamed)} of its {len(named)} classes are WordNet ids and take the names that CoOp has "
            f"for ImageNet: {_describe_names(renamed, [named[key] for key in renamed])}; "
            "--dataset.classnames FILE gives others"
        )
    if unknown := [key for key in ids if key not in imagenet]:
        notes.append(
            "WordNet ids that are not among ImageNet's 1000 stay as they are: "
            f"{first_few(unknown)}; name them with --dataset.classnames FILE"
        )
    return replace(listing, classnames=tuple(named.values()), notes=tuple(notes))


@cache
def packaged_names(file: str) -> tuple[str, ...]:
    """The lines of a file of class names in this package."""
    text = files(__package__).joinpath("classnames", file).read_text(encoding="utf-8")
    return tuple(text.splitlines())
