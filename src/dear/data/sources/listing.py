"""What a reader of a data set finds: image files by split, their labels, and the names of the classes."""

import posixpath
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple, NoReturn

from dear.errors import DataError
from dear.limits import at_most

PARTS = ("train", "val", "test")
SHOWN = 3  # files that a note names


Report = Callable[[DataError], None]
"""What is told a fault of a data set's lists; if it returns, the rest is read without what is wrong."""


def refuse(fault: DataError) -> NoReturn:
    """Go no further: how data sets are read, unless they are only checked."""
    raise fault


@contextmanager
def told(report: Report) -> Iterator[None]:
    """Report the DataError that is raised within."""
    try:
        yield
    except DataError as fault:
        report(fault)


class Row(NamedTuple):
    """One image: its path in the folder of the images and its class, counted from 0."""

    path: str
    label: int


@dataclass(frozen=True)
class Listing:
    """A data set before its images are looked at.

    Attributes:
        name: short, for commands and records.
        folder: what the paths are relative to.
        keys: what the classes are called in the data set (folders, labels), in label order.
        classnames: what they are called in prompts, with underscores as they were found.
        splits: rows of train, test and, where there are any, val; train is empty for sets to test on only.
        origin: where the split comes from, for people.
        standard: whether the split is the one that published results use.
        notes: what people should know: files left out, a split that is ours.
        templates: the data set's own prompts.
    """

    name: str
    folder: Path
    keys: tuple[str, ...]
    classnames: tuple[str, ...]
    splits: Mapping[str, tuple[Row, ...]]
    origin: str
    standard: bool = False
    notes: tuple[str, ...] = ()
    templates: tuple[str, ...] = ("a photo of a {}.",)

    @property
    def files(self) -> int:
        return sum(map(len, self.splits.values()))


def spoken(name: str) -> str:
    """A class name as it stands in a sentence; underscores become spaces, as in CoOp."""
    return name.replace("_", " ")


def plain_name(name: str) -> str:
    """What two names of one class share: case, underscores and the form of accents (NFC or NFD) are free."""
    return unicodedata.normalize("NFC", spoken(name).strip().casefold())


def require_distinct(source: str, keys: Sequence[str], names: Sequence[str]) -> None:
    """Raise DataError if two classes have the same name, by `plain_name`, or one has none that can be written
    down; LimitError for more names, or longer ones, than is usual.
    """
    at_most("classes", len(names), source)
    at_most("class_name", max(map(len, names), default=0), source)
    seen: dict[str, str] = {}
    for key, name in zip(keys, names, strict=True):
        plain = plain_name(name)
        if any(unicodedata.category(letter) == "Cs" for letter in name):  # a byte of a name of a file
            raise DataError(f"{source}: the class name {name!r} is not in UTF-8. Rename it.")
        if not plain:
            raise DataError(f"{source}: the class {key!r} has an empty name.")
        if plain in seen:
            raise DataError(
                f"{source}: the classes {seen[plain]!r} and {key!r} have the same name, {spoken(name)!r}. "
                "Give each class a name of its own."
            )
        seen[plain] = key


def require_inside(where: str, path: str) -> None:
    """Raise DataError for a path that leads out of the folder that it is relative to."""
    if not any(sign in path for sign in ("..", "\\", ":", "\0")) and not path.startswith("/"):
        return  # nothing that could lead out: quick, for tables of a million
    forms = PurePosixPath(path), PureWindowsPath(path)
    if any(form.anchor or ".." in form.parts for form in forms) or "\0" in path:
        raise DataError(f"{where}: the path {path!r} leads out of the image folder.")


def require_apart(where: object, splits: Mapping[str, Sequence[Row]], report: Report = refuse) -> None:
    """Report images that are in two splits: they would be tested on what was trained on."""
    part_of: dict[str, str] = {}
    for part, rows in splits.items():
        for path in dict.fromkeys(one_path(row.path) for row in rows):
            if (other := part_of.setdefault(path, part)) != part:
                report(DataError(f"{where}: the image {path} is in {other} and in {part}. Leave one."))


def one_path(path: str) -> str:
    """The one way to write a relative path: "a/b" for "./a//b" too."""
    return posixpath.normpath(path) if "//" in path or "./" in path else path


def some(names: Iterable[str]) -> str:
    """A few names for a note: "a, b, c ... and 4 more"."""
    listed = [*names]
    rest = f" ... and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + rest
