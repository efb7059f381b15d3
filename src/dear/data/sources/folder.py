"""An image folder: one folder per class, in train/ and test/ or without a split."""

import os
from collections.abc import Sequence
from pathlib import Path

from dear.data.images.raster import SUFFIXES
from dear.data.settings import DataSettings
from dear.data.sources.listing import Listing, Report, Row, first_few, refuse, reporting, require_distinct
from dear.data.sources.splits import lone_note, record_split, seeded_split, split_note
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


def read_folder(folder: Path, settings: DataSettings, report: Report = refuse) -> Listing:
    """Read a folder of images. Raises DataError if there is no class, or a class without images."""
    parts = {SPLITS[name.lower()]: folder / name for name in subfolders(folder) if name.lower() in SPLITS}
    if "train" in parts and len(parts) > 1:
        return _with_splits(folder, parts, report)
    keys = subfolders(folder)
    if not keys:
        raise DataError(
            f"{folder} has no folders of classes. Give a folder with one folder of images per class, "
            "with train/ and test/, a folder in CoOp's layout, a CSV or JSONL file, or a zip."
        )
    with reporting(report):
        require_distinct(str(folder), keys, keys)
    rows, other = class_rows(folder, "", keys, report)
    share = settings.test_share
    shares = {"train": 1 - share, "test": share}
    splits = seeded_split(rows, shares, settings.split_seed, keys, lone=True)
    recorded = record_split(splits, keys, settings.cache_folder() / "splits", folder.resolve().name)
    return Listing(
        name=folder.resolve().name,
        folder=folder,
        keys=tuple(keys),
        classnames=tuple(keys),
        splits=splits,
        origin=f"dear, seed {settings.split_seed}",
        notes=(
            split_note(shares, settings.split_seed, recorded),
            *lone_note(splits, keys),
            *left_out(other),
        ),
    )


def _with_splits(folder: Path, parts: dict[str, Path], report: Report) -> Listing:
    notes: tuple[str, ...] = ()
    if "test" not in parts:  # as ImageNet is distributed
        parts = {"train": parts["train"], "test": parts["val"]}
        notes = (f"{folder} has no test folder: {parts['test'].name} is used for testing",)
    keys = subfolders(parts["train"])
    if not keys:
        raise DataError(f"{parts['train']} has no folders of classes.")
    with reporting(report):
        require_distinct(str(parts["train"]), keys, keys)
    splits: dict[str, tuple[Row, ...]] = {}
    other: list[str] = []
    for part, place in parts.items():
        for foreign in sorted({*subfolders(place)} - {*keys}):
            report(DataError(f"{place / foreign} is a class that is not in {parts['train']}."))
        rows, found = class_rows(folder, place.name, keys, report)
        splits[part], other = tuple(rows), [*other, *found]
    return Listing(
        name=folder.resolve().name,
        folder=folder,
        keys=tuple(keys),
        classnames=tuple(keys),
        splits=splits,
        origin=", ".join(f"{place.name}/" for place in parts.values()),
        notes=(*notes, *left_out(other)),
    )


def subfolders(folder: Path) -> list[str]:
    """Sorted names of the folders in a folder, without hidden ones. Raises DataError if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith((".", "__")))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}.") from error


def class_rows(
    folder: Path, within: str, keys: Sequence[str], report: Report = refuse
) -> tuple[list[Row], list[str]]:
    """Images of `folder/within/key/...` in the order of classes and paths, and the other files found there.

    A class without images is reported.
    """
    rows: list[Row] = []
    other: list[str] = []
    for label, key in enumerate(keys):
        place = folder / within / key
        found = [path.relative_to(folder).as_posix() for path in _files(place)] if place.is_dir() else []
        images = [path for path in found if Path(path).suffix.lower() in SUFFIXES]
        if not images:
            report(DataError(f"the class {key!r} has no images in {place}."))
        rows += [Row(path, label) for path in images]
        other += [path for path in found if Path(path).suffix.lower() not in SUFFIXES]
    return rows, other


def image_files(place: Path) -> list[Path]:
    """The file itself, or all images below a folder, sorted by path.

    Raises DataError for a folder without images.
    """
    if not place.is_dir():
        return [place]
    found = [path for path in _files(place) if path.suffix.lower() in SUFFIXES]
    if not found:
        raise DataError(f"the folder {place} has no files with an image suffix: choose another one.")
    return found


def left_out(other: Sequence[str]) -> tuple[str, ...]:
    """A note on files without an image suffix, if there are any."""
    return (f"{len(other)} files have no image suffix and are left out: {first_few(other)}",) if other else ()


def _files(folder: Path) -> list[Path]:
    """All files below a folder, sorted by path, without hidden files and the targets of links to folders."""

    def refuse(error: OSError) -> None:
        raise DataError(f"cannot read the folder {error.filename}: {error.strerror}.") from error

    found: list[Path] = []
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=False):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in files if not name.startswith(".")]
    return sorted(found)
