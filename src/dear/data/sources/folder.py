"""An image folder: one folder per class, in train/ and test/, by domain, or without either."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dear.data.images.raster import SUFFIXES
from dear.data.settings import DataSettings
from dear.data.sources.domains import SPLITS, domains_of, subfolders
from dear.data.sources.listing import Listing, Report, Row, first_few, refuse, reporting, require_distinct
from dear.data.sources.splits import own_split
from dear.errors import DataError


def read_folder(folder: Path, settings: DataSettings, report: Report = refuse) -> Listing:
    """Read a folder of images: of classes, of splits, or of domains, whose images are then taken together.

    Raises DataError if there is no class, or a class without images.
    """
    found = subfolders(folder)
    parts = {SPLITS[name.lower()]: folder / name for name in found if name.lower() in SPLITS}
    if "train" in parts and len(parts) > 1:
        return _with_splits(folder, parts, report)
    if len(parts) == len(found) == 1 and subfolders(alone := folder / found[0]):
        return _only_part(folder, alone, settings, report)
    domains = {"auto": domains_of(folder), "classes": (), "domains": tuple(found)}
    return _unsplit(folder, domains[settings.layout], settings, report)


def _unsplit(folder: Path, domains: Sequence[str], settings: DataSettings, report: Report) -> Listing:
    """A folder without a split, of classes or of domains."""
    inside = [subfolders(folder / domain) for domain in domains] or [subfolders(folder)]
    keys = sorted({key for names in inside for key in names})
    if not keys:
        raise DataError(
            f"{folder} has no folders of classes. Give a folder with one folder of images per class, "
            "with train/ and test/, a folder in CoOp's layout, a CSV or JSONL file, or a zip."
        )
    with reporting(report):
        require_distinct(str(folder), keys, keys)
    rows: list[Row] = []
    other: list[str] = []
    labels = {key: label for label, key in enumerate(keys)}
    for within, held in zip(domains or [""], inside, strict=True):
        found, left = class_rows(folder, within, held, report)
        rows += [Row(row.path, labels[held[row.label]]) for row in found]
        other += left
    made = own_split(rows, settings, keys, folder.resolve().name)
    return Listing(
        name=folder.resolve().name,
        folder=folder,
        keys=tuple(keys),
        classnames=tuple(keys),
        splits=made.splits,
        origin=made.origin,
        notes=(*_about(domains, rows, folder), *made.notes, *left_out(other)),
    )


def _about(domains: Sequence[str], rows: Sequence[Row], folder: Path) -> tuple[str, ...]:
    """A note on folders that are read as domains."""
    if not domains:
        return ()
    held = Counter(row.path.partition("/")[0] for row in rows)
    counts = ", ".join(f"{domain} ({held[domain]} images)" for domain in domains)
    return (
        f"its folders are read as domains of the same classes: {counts}; if they are classes, give "
        "--dataset.layout classes; to train on one domain and test on the others: dear run "
        f"domain-generalization --data {folder} --source {domains[0]}",
    )


def _only_part(folder: Path, place: Path, settings: DataSettings, report: Report) -> Listing:
    """A folder with nothing but train/, which is split, or with nothing but test/ or val/."""
    tested = SPLITS[place.name.lower()] != "train"
    listing = _unsplit(place, (), replace(settings, test_share=1.0) if tested else settings, report)
    note = f"{folder} has only {place.name}/" + (": all its images are for testing" if tested else "")
    notes = (note, *listing.notes[tested:])  # that there is no split is said already
    return replace(listing, name=folder.resolve().name, notes=notes)


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
