"""The result of reading a data set: image files by split, labels and class names; the paths in lists."""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple
from urllib.parse import unquote

from dear.data.images.decode import SUFFIXES
from dear.errors import DataError
from dear.limits import at_most
from dear.text import compose, list_names, plural, without_surrogates

PARTS = ("train", "val", "test")
NO_SPLIT = "the data has no split"
UNDIVIDED = "undivided"
"""The part of images without a split, until `divide` makes one."""
SEVERAL = re.compile(r"[^\s;|][;|]\s*[^\s;|]")
PURPOSE = "docs/purpose.md says what to use instead"
FEW = 3  # files or classes that a note names
NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?", re.ASCII)
UPLOAD = re.compile(r"/data/(?:upload/(?:\d+/)?|local-files/\?d=)([^/].*)")
UPLOAD_ID = re.compile(r"^[0-9a-f]{8}-")
"""What Label Studio calls an image, and what it puts before the name of its file."""
WHOLE = re.compile(r"\d{1,15}", re.ASCII)

_faults: ContextVar[dict[str, None] | None] = ContextVar("faults", default=None)


@contextmanager
def collected_faults() -> Iterator[dict[str, None]]:
    """Context in which each `fault` in the lists of a data set is collected, once by its text, instead of
    ending the reading.
    """
    faults = dict[str, None]()  # an ordered set of texts: an error keeps a traceback
    token = _faults.set(faults)
    try:
        yield faults
    finally:
        _faults.reset(token)


def fault(error: DataError) -> None:
    """Raise an error in the lists of a data set. Where faults are collected it returns, and reading continues
    without the faulty entry.
    """
    if (faults := _faults.get()) is None:
        raise error
    faults[str(error)] = None


@contextmanager
def as_fault() -> Iterator[None]:
    """Context in which a DataError is a `fault`."""
    try:
        yield
    except DataError as error:
        fault(error)


class DetailNote(str):
    """A note that asks for nothing, which is told as a `Detail`."""

    __slots__ = ()


UNLABELED = -1
"""The class of an image that nobody has labeled."""


class Row(NamedTuple):
    """One image: its path in the image folder and its class, counted from 0, or `UNLABELED`."""

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
        splits: rows of train, test and, if there are any, val; train is empty for test-only sets. Images
            without a split are `UNDIVIDED`.
        origin: where the split comes from, for display; "" without one.
        benchmark: whether it is one of the package's benchmarks, called by `name`.
        standard: whether the split is the one used for published results.
        notes: remarks for the user, such as files left out or a split made here.
        templates: the data set's own prompts.
        numbered: whether the data set numbers its classes itself, so that a list of names in that order fits.
        groups: the groups of images by a column of the table, by path.
        unnamed: why the user's names of the classes could not be given to them; "" if they were.
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
    groups: Mapping[str, str] = field(default_factory=dict)
    unnamed: str = ""

    @property
    def paths(self) -> list[str]:
        """The distinct images, in order."""
        return [*dict.fromkeys(row.path for rows in self.splits.values() for row in rows)]


def join_listings(listings: Sequence[Listing]) -> Listing:
    """Several sources as one data set, named and prompted as the first. Classes are the same by their names;
    an image that is listed again has the class that its last source gives it, and the split of the last one
    that has a split.
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
    groups = dict[str, str]()
    for listing in listings:
        before, added, changed = {**placed}, 0, 0
        for part, rows in listing.splits.items():
            for row in rows:
                path = os.path.relpath(listing.folder / row.path, folder)
                label = labels[plain_name(listing.classnames[row.label])]
                added += path not in before
                changed += path in before and before[path][1] != label
                placed[path] = before[path][0] if part == UNDIVIDED and path in before else part, label
                groups[path] = listing.groups.get(row.path) or groups.get(path, "")
        if listing is not first:
            notes.append(f"{listing.name} adds {plural(added, 'image')} and changes the class of {changed}")
            notes += [type(note)(f"{listing.name}: {note}") for note in listing.notes]
            known = {*map(plain_name, first.classnames)}
            notes += [
                describe_new_class(listing.name, first.name, name, first.classnames)
                for name in listing.classnames
                if plain_name(name) not in known
            ]
    splits = dict[str, tuple[Row, ...]]()
    for wanted in (*PARTS, UNDIVIDED):
        rows = tuple(Row(path, label) for path, (part, label) in placed.items() if part == wanted)
        if rows or wanted in ("train", "test"):
            splits[wanted] = rows
    keys, names = zip(*(named[name] for name in labels), strict=True)
    return replace(
        first, folder=folder, keys=keys, classnames=names, splits=splits, notes=tuple(notes),
        origin="; ".join(filter(None, dict.fromkeys(listing.origin for listing in listings))),
        benchmark=False, standard=False, numbered=False, groups=groups,
    )  # fmt: skip


def describe_new_class(source: str, data: str, name: str, classes: Sequence[str]) -> str:
    """A note on a class that only a later source has, or corrections: it may be mistyped."""
    known = {plain_name(other): other for other in classes}
    nearest = get_close_matches(plain_name(name), known, n=1, cutoff=0.75)
    meant = f": is {known[nearest[0]]!r} meant?" if nearest else ""
    return f"{source} has a class that {data} does not have, {name!r}{meant}"


def named_only(listing: Listing) -> Iterator[str]:
    """A note on classes without an image, if there are any."""
    with_images = {row.label for rows in listing.splits.values() for row in rows}
    if names := [key for label, key in enumerate(listing.keys) if label not in with_images]:
        yield f"classes by name alone, without an image: {list_names(names, FEW)}"


def describe_misuse(listing: Listing) -> Iterator[str]:
    """A line on labels that look like several labels or like measured numbers: each is a class here."""
    numbers = [key for key in listing.keys if "." in key and NUMBER.fullmatch(key)]
    several = [key for key in listing.keys if SEVERAL.search(key)]
    for labels, what in ((numbers, "numbers"), (several, "several labels each")):
        if len(labels) > (2 if what == "numbers" else 0):
            told = f"labels look like {what} ({list_names(labels, FEW)}), and each is a class of its own"
            yield f"{told}: {PURPOSE}"


def single_class(listing: Listing) -> str:
    """A warning of data with one class."""
    return f"there is a single class, {listing.classnames[0]!r}: every image would be predicted as it"


def with_spaces(name: str) -> str:
    """A class name as written in a sentence: underscores become spaces, as in CoOp."""
    return name.replace("_", " ").strip()


def plain_name(name: str) -> str:
    """A key for comparing class names, ignoring case, underscores, the form of accents (NFC or NFD), and
    zeros before a whole number.
    """
    return without_zeros(compose(with_spaces(name).casefold()))


def plain_label(label: str) -> str:
    """A label without spaces around it, its accents in one form."""
    return compose(label.strip())


def without_zeros(key: str) -> str:
    """A whole number without leading zeros; any other key as it is."""
    return str(int(key)) if WHOLE.fullmatch(key) else key


def sort_names(names: Iterable[str]) -> list[str]:
    """Names of folders or labels in their order: by value if all are numbers, else by their letters, in
    whatever form of Unicode.
    """
    in_order = sorted(names, key=lambda name: (compose(name), name))
    return sorted(in_order, key=float) if all(map(NUMBER.fullmatch, in_order)) else in_order


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
                "Merge them, or give each a name of its own, by its folder or label or with "
                "--dataset.classnames."
            )


def require_inside(where: str, path: str) -> None:
    """Raise DataError for a path that leads out of the folder that it is relative to."""
    forms = PurePosixPath(path), PureWindowsPath(path)
    if any(form.anchor or ".." in form.parts for form in forms) or "\0" in path:
        raise DataError(
            f"{where}: the path {path[:200]!r} leads out of the image folder: name a file below it; a "
            "table lies in or above the folder of its images."
        )


def require_apart(listing: Listing) -> None:
    """A fault for each image that is in two splits, where training and test data would overlap, or in two
    classes.
    """
    places: dict[str, tuple[str, int]] = {}
    for part, rows in listing.splits.items():
        for path, label in dict.fromkeys((posixpath.normpath(row.path), row.label) for row in rows):
            first, other = places.setdefault(path, (part, label))
            image = f"{listing.origin}: the image {path}"
            if other != label:
                keys = f"{listing.keys[other]!r} and {listing.keys[label]!r}"
                fault(DataError(f"{image} has two labels, {keys}. Keep one."))
            elif first != part:
                fault(DataError(f"{image} is in both {first} and {part}. Keep one."))


def find_files(folder: Path) -> Callable[[str], str]:
    """A function that gives the path of the file, relative to ``folder``, that a listed path means. A path of
    no file stays as it is.

    Windows separates folders by backslashes, macOS may store accents apart from their letters, cells may have
    spaces around their text, an id stands for the only image of that name, and Label Studio lists uploads.
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

    def with_suffix(path: str) -> list[str]:
        parent, name = os.path.split(path)
        stems = [(*os.path.splitext(file), file) for file in stored_names(parent).values()]
        images = [file for stem, suffix, file in stems if stem == name and suffix.lower() in SUFFIXES]
        return [os.path.join(parent, image) for image in images] if len(images) == 1 else []

    def find(path: str) -> str:
        is_plain = path.isascii() and "\\" not in path and path == path.strip()
        if is_plain and not path.startswith("/data/") and os.path.splitext(path)[1].lower() in SUFFIXES:
            return path
        spellings = [path, path.strip(), path.replace("\\", "/"), path.strip().replace("\\", "/")]
        if (upload := UPLOAD.fullmatch(path)) and ".." not in (name := unquote(upload[1])):
            spellings += [name, f"images/{name}", UPLOAD_ID.sub("", name)]
        by_id = chain.from_iterable(map(with_suffix, spellings))
        candidates = chain(spellings, map(as_stored, spellings), by_id)
        return next((candidate for candidate in candidates if os.path.isfile(folder / candidate)), path)

    return find
