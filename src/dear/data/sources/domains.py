"""Folders of domains: one folder per domain, with the same folders of classes in each. Light to import."""

import os
from collections.abc import Iterator
from pathlib import Path

from dear.data.images.raster import SUFFIXES
from dear.errors import DataError

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
"""Folder names that are splits."""
SHARED = 0.5  # a domain holds more than this share of all classes


def subfolders(folder: Path) -> list[str]:
    """Sorted names of the folders in a folder, without hidden ones. Raises DataError if it cannot be read."""
    return sorted(
        one.name for one in _entries(folder) if os.path.isdir(one) and not one.name.startswith("__")
    )


def domains_of(folder: Path) -> tuple[str, ...]:
    """The domains in a folder, sorted; empty if its folders look like classes. [ours]

    They are domains if there are at least two, all with at least two folders, most of which they share, and
    without images beside them. Folders called train, val or test are splits, never domains or classes. Raises
    DataError for a folder that cannot be read.
    """
    found = dict[str, set[str]]()
    for name in subfolders(folder):
        found[name] = {*subfolders(folder / name)}
        splits = any(one.lower() in SPLITS for one in (name, *found[name]))
        if splits or len(found[name]) < 2 or _has_images(folder / name):  # the first class ends the search
            return ()
    classes = set[str]().union(*found.values())
    alike = all(len(held) > SHARED * len(classes) for held in found.values())
    return tuple(found) if len(found) > 1 and alike else ()


def _has_images(folder: Path) -> bool:
    return any(Path(one.name).suffix.lower() in SUFFIXES and one.is_file() for one in _entries(folder))


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, without hidden entries."""
    try:
        with os.scandir(folder) as entries:
            yield from (one for one in entries if not one.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}.") from error
