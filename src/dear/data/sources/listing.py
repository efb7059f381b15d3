"""The record of a data set as its lists have it (image files by split, labels, class names), and of several
as one.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from dear.data.sources.class_names import (
    NUMBER,
    describe_names,
    describe_new_class,
    match_names,
    plain_name,
    read_names,
    require_distinct,
    usual_names,
    without_zeros,
)
from dear.errors import DataError, as_fault, fault
from dear.reading.remote import Address, within
from dear.text import FEW, list_names, plural

PARTS = ("train", "val", "test")
NO_SPLIT = "the data has no split"
UNDIVIDED = "undivided"
"""The part of images without a split, until `divide` makes one."""
SEVERAL = re.compile(r"[^\s;|][;|]\s*[^\s;|]")
PURPOSE = "docs/purpose.md says what to use instead"


class DetailNote(str):
    """A note that asks for nothing, which is issued as a `Detail`."""

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

    @property
    def paths(self) -> list[str]:
        """The distinct images, in order."""
        return [*dict.fromkeys(row.path for rows in self.splits.values() for row in rows)]


def name_classes(
    listings: Sequence[Listing], file: Path | None, names_of_bundle: Mapping[str, str] | None = None
) -> tuple[Listing, ...]:
    """The sources of a data set with the names of their classes, decided once over the classes of all, with
    notes at the first.

    A label has the name that the file, CoOp's list of ImageNet or its own spelling gives it; a label that is
    itself such a name is that class. Without a file, the names of an earlier bundle count before spellings.
    Raises DataError for a class that the file does not name.
    """
    first, *others = listings
    keys = [*dict.fromkeys(key for part in listings for key in part.keys)]
    notes, names = [*first.notes], dict[str, str]()
    if file is None:
        unnamed_parts = [part for part in listings if part.keys == part.classnames and not part.benchmark]
        unnamed_keys = {key for part in unnamed_parts for key in part.keys}
        names = {**(names_of_bundle or {})}
        usual, remarks = usual_names([key for key in keys if key in unnamed_keys and key not in names])
        if pairs := [(key, names[key]) for key in keys if key in names]:
            notes.append(f"its classes are named as in the earlier bundle: {describe_names(pairs)}")
        notes, names = [*notes, *remarks], usual | names
    else:
        with as_fault():
            numbered = [part.keys for part in listings if part.numbered]
            names = match_names(keys, read_names(file), str(file), numbered)
            pairs = [(key, names[key]) for key in keys if key in names]
            notes.append(f"its classes are named by {file}: {describe_names(pairs)}")
    renamed = tuple(_rename(part, names) for part in (replace(first, notes=tuple(notes)), *others))
    for part in renamed:
        if file is not None or not part.benchmark:  # ImageNet has two classes "missile"
            with as_fault():
                require_distinct(str(file or part.folder), part.keys, part.classnames)
    return renamed


def _rename(listing: Listing, names: Mapping[str, str]) -> Listing:
    """A source with the names of its keys; a key may be a name."""
    by_value = {without_zeros(key): (key, name) for key, name in names.items()}
    by_name = {plain_name(name): (key, name) for key, name in names.items()}
    pairs = list[tuple[str, str]]()
    for key, spelling in zip(listing.keys, listing.classnames, strict=True):
        of_key = (key, names[key]) if key in names else by_value.get(without_zeros(key))
        of_name = by_name.get(plain_name(key))
        match = of_key or of_name
        pairs.append((key, match[1] if match else spelling))
    keys, classnames = zip(*pairs, strict=True) if pairs else ((), ())
    return replace(listing, keys=keys, classnames=classnames)


def join_listings(listings: Sequence[Listing]) -> Listing:
    """Several sources as one data set, named and prompted as the first. Classes are the same by their names;
    an image that is listed again has the class that its last source gives it, and the split of the last one
    that has a split.
    """
    first = listings[0]
    folders = [os.path.abspath(part.folder) for part in listings if not isinstance(part.folder, Address)]
    folder = Path(os.path.commonpath(folders)) if folders else Path()
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
                file = within(listing.folder, row.path)
                path = str(file) if isinstance(file, Address) else os.path.relpath(file, folder)
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
            finding = f"labels look like {what} ({list_names(labels, FEW)}), and each is a class of its own"
            yield f"{finding}: {PURPOSE}"


def single_class(listing: Listing) -> str:
    """A warning of data with one class."""
    told = f"there is a single class, {listing.classnames[0]!r}"
    return f"{told}: what is fitted to it predicts it for every image"


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
