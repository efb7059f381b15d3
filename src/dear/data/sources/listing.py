"""The result of reading a data set: image files by split, their labels, and the class names."""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple, NoReturn

from dear.errors import DataError, compose
from dear.limits import at_most, limit
from dear.reading.files import require_few_marks
from dear.reading.typed import in_utf8, shown

PARTS = ("train", "val", "test")
FEW = 3  # files or classes that a note names
LONGEST_PATH = 4096  # characters, as on Linux
NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?", re.ASCII)

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


def sort_names(names: Iterable[str]) -> list[str]:
    """Names of folders or labels in their order: by value if all are numbers, else by their letters, in
    whatever form of Unicode.
    """
    in_order = sorted(names, key=lambda name: (compose(name), name))
    return sorted(in_order, key=float) if all(map(NUMBER.fullmatch, in_order)) else in_order


def plain_name(name: str) -> str:
    """A key for comparing class names, ignoring case, underscores and the form of accents (NFC or NFD)."""
    return compose(with_spaces(name).casefold())


def require_keys(source: str, keys: Sequence[str]) -> None:
    """Raise DataError for a folder or label of classes that is empty, not in UTF-8 or listed twice;
    LimitError for too many or too long ones. Names for them may still come from a file of the user.
    """
    _require_names(source, keys, keys)
    if len({*keys}) < len(keys):
        ((key, _),) = Counter(keys).most_common(1)
        raise DataError(f"{source}: {with_spaces(key)!r} is listed twice.")


def require_distinct(source: str, keys: Sequence[str], names: Sequence[str]) -> None:
    """Raise DataError for an empty name, a name that is not in UTF-8, or two of the same `plain_name`;
    LimitError for too many or too long names.
    """
    _require_names(source, keys, names)
    seen: dict[str, str] = {}
    for key, name in zip(keys, names, strict=True):
        plain = plain_name(name)
        if plain in seen and seen[plain] == key:
            raise DataError(f"{source}: {with_spaces(name)!r} is listed twice.")
        if plain in seen:
            raise DataError(
                f"{source}: the classes {seen[plain]!r} and {key!r} have the same name, "
                f"{with_spaces(name)!r}. Give each class a name of its own, by its folder or label or with "
                "--dataset.classnames."
            )
        seen[plain] = key


def _require_names(source: str, keys: Sequence[str], names: Sequence[str]) -> None:
    at_most("classes", len(names), source)
    at_most("class_name", max(map(len, names), default=0), source)
    for key, name in zip(keys, names, strict=True):
        require_few_marks(name, f"{source}, the class name {name[:40]!r}")
        if not in_utf8(name):  # an undecodable byte of a file name
            raise DataError(f"{source}: the class name {name!r} is not in UTF-8. Rename it.")
        if not plain_name(name):
            raise DataError(f"{source}: the class {key!r} has an empty name.")


def require_path(where: str, path: str) -> None:
    """Raise DataError for a path that no file can have, or of more levels than the limit of folders."""
    if len(path) > LONGEST_PATH:
        raise DataError(f"{where}: the path has {len(path):,} characters, at most {LONGEST_PATH:,} are read.")
    if (levels := path.count("/")) > limit("folder_depth"):  # each takes time at each look
        raise DataError(
            f"{where}: the path has {levels:,} levels of folders, at most {limit('folder_depth')} are read."
        )
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the path {shown(path)} has a character that no file name has.") from error


def require_inside(where: str, path: str) -> None:
    """Raise DataError for a path that leads out of the folder that it is relative to."""
    if not any(sign in path for sign in ("..", "\\", ":", "\0")) and not path.startswith("/"):
        return  # a fast path, for tables of a million rows
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
    if "//" not in path and "./" not in path and not path.endswith(("/", "/.")):
        return path
    return posixpath.normpath(path).replace("//", "/")  # normpath keeps two slashes at the start


def first_few(names: Iterable[str], most: int = FEW) -> str:
    """A few names for a note: "a, b, c ... and 4 more"."""
    items = [*names]
    more = f" ... and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
