"""Find the images of a data set that are missing, cannot be read, or have the same content."""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import file_digest
from itertools import chain
from pathlib import Path

import torch

from dear.data.dataset import Dataset, Images, fingerprint
from dear.data.fewshot import Subset
from dear.data.images.decode import decode
from dear.data.images.hashes import image_hashes
from dear.data.images.photos import LoadedImages, PhotoImages, in_parallel
from dear.data.settings import DataSettings
from dear.data.sources.listing import FEW, Listing
from dear.errors import DataError, warn
from dear.limits import limit
from dear.reading.files import file_size
from dear.writing import atomic_write

LIMITS_OF_IMAGES = ("image_bytes", "image_pixels", "image_scans")
CHUNK = 256  # images between two calls of `progress`


def broken_images(
    listing: Listing, settings: DataSettings, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> dict[str, str]:
    """The images that are missing, empty or cannot be decoded: path and reason, in the listing's order. A
    reason names the path, not the folder, whose name may be long: all images may be broken.

    That the others can be read is cached under the sizes and times of all files, and the limits of images.
    The broken ones are tried again each time: the cause may have been a permission, a disk or a version.
    """
    paths = _paths(listing)
    limits = [str(limit(name)) for name in LIMITS_OF_IMAGES]
    stamps = chain.from_iterable((path, _stamp(listing.folder / path)) for path in paths)
    key = fingerprint(str(listing.folder.resolve()), *limits, *stamps)
    record = settings.cache_folder() / "checked" / f"{key}.json"
    recorded, reasons = _read(record, len(paths)), dict[int, str]()
    unread = [*range(len(paths))] if recorded is None else recorded
    for start in range(0, len(unread), CHUNK):
        chunk = unread[start : start + CHUNK]
        results = in_parallel(lambda number: _reason(listing.folder, paths[number]), chunk, settings.threads)
        reasons |= {number: reason for number, reason in zip(chunk, results, strict=True) if reason}
        progress(min(start + CHUNK, len(unread)), len(unread))
    if [*reasons] != recorded:
        _write(record, [*reasons])
    return {paths[number]: reason for number, reason in reasons.items()}


def missing_images(listing: Listing) -> list[str]:
    """Paths in the listing that are not files."""
    paths = _paths(listing)
    sizes = [file_size(listing.folder / path) for path in paths]
    return [path for path, size in zip(paths, sizes, strict=True) if size is None]


def same_images(listing: Listing, threads: int = 1) -> list[list[str]]:
    """Groups of files with the same bytes, in the listing's order; only files of equal size are read. A
    picture that was saved again counts as another. [ours]
    """
    paths = _paths(listing)
    sizes = [file_size(listing.folder / path) for path in paths]
    alike = [path for group in _groups(zip(sizes, paths, strict=True)) for path in group]
    digests = in_parallel(lambda path: _digest(listing.folder / path), alike, threads)
    position = {path: index for index, path in enumerate(paths)}
    return sorted(_groups(zip(digests, alike, strict=True)), key=lambda group: position[group[0]])


def leave_out_copies(dataset: Dataset, trained_on: Dataset) -> Dataset:
    """A data set without the test images that are copies, by content, of training or validation images of the
    one that is trained on, with a warning: all methods, seeds and shots are then tested on the same images.

    A benchmark keeps its published split, with a note. Raises DataError if no test image is left.
    """
    if dataset.benchmark:
        warn(
            f"{dataset.name}: its published split is kept, even where test images are copies of training ones"
        )
        return dataset
    parts = [dataset.test, *(part for part in (trained_on.train, trained_on.val) if part is not None)]
    sizes = [*map(_sizes, parts)]
    shared = {*sizes[0]} & {size for part_sizes in sizes[1:] for size in part_sizes}
    suspects = [[i for i, size in enumerate(part_sizes) if size in shared] for part_sizes in sizes]
    tested, *known = (image_hashes(part, indices) for part, indices in zip(parts, suspects, strict=True))
    trained = {*chain.from_iterable(known)}
    copies = {i for i, digest in zip(suspects[0], tested, strict=True) if digest in trained}
    if not copies:
        return dataset
    count = len(dataset.test)
    if len(copies) == count:
        raise DataError(
            f"all {count} test images of {dataset.name} are copies of training images: test on other images."
        )
    warn(
        f"{dataset.name}: {len(copies)} of {count} test images are left out: they are copies of training "
        "images"
    )
    kept = torch.tensor([index for index in range(count) if index not in copies])
    return replace(dataset, test=Subset(dataset.test, kept), left_out=len(copies))


def _sizes(images: Images) -> list[int | None]:
    """The bytes of each image's file, None for images in memory; empty for the Attribute World."""
    if isinstance(images, Subset):
        sizes = _sizes(images.images)
        return [sizes[index] for index in images.indices.tolist()] if sizes else []
    if isinstance(images, PhotoImages):
        return [file_size(images.folder / path) for path in images.paths]
    return [None] * len(images) if isinstance(images, LoadedImages) else []


def duplicate_warnings(listing: Listing, groups: list[list[str]]) -> list[str]:
    """A warning for each kind of repetition, with the first group of files."""
    part_of: dict[str, int | str] = {row.path: part for part, rows in listing.splits.items() for row in rows}
    class_of: dict[str, int | str] = {row.path: row.label for rows in listing.splits.values() for row in rows}
    in_splits, in_classes, in_one = list[list[str]](), list[list[str]](), list[list[str]]()
    for group in groups:
        parts, classes = ({of[path] for path in group} for of in (part_of, class_of))
        if len(parts) > 1:
            in_splits.append(group)
        if len(classes) > 1:
            in_classes.append(group)
        elif len(parts) == 1:
            in_one.append(group)
    kinds = {
        "in several splits, so that images that are tested on are trained on": in_splits,
        "in several classes": in_classes,
        "in one class": in_one,
    }
    return [
        f"{len(repeated)} images are there more than once {where}: {' = '.join(repeated[0][:FEW])}"
        + (f" = {len(repeated[0]) - FEW} others" if len(repeated[0]) > FEW else "")
        + (f" ... and {len(repeated) - 1} more" if len(repeated) > 1 else "")
        for where, repeated in kinds.items()
        if repeated
    ]


def _paths(listing: Listing) -> list[str]:
    """The distinct images, in the listing's order."""
    return [*dict.fromkeys(row.path for rows in listing.splits.values() for row in rows)]


def _reason(folder: Path, path: str) -> str | None:
    file = folder / path
    if not os.path.isfile(file):  # unlike Path.is_file, also false for a name that no file can have
        return f"the image {path} does not exist"
    try:
        decode(file)
    except DataError as error:
        return str(error).replace(str(file), path)
    return None


def _stamp(path: Path) -> str:
    """The size and times of a file, of which the system sets one that a replaced file cannot keep."""
    with suppress(OSError):
        facts = path.stat()
        return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_mode} {facts.st_ctime_ns} {facts.st_ino}"
    return "missing"


def _read(record: Path, count: int) -> list[int] | None:
    """Which of ``count`` images could not be read, None without a valid record."""
    with suppress(OSError, ValueError, TypeError):  # a damaged record is computed again
        return [number for number in map(int, json.loads(record.read_bytes())) if number < count]
    return None


def _write(record: Path, unreadable: list[int]) -> None:
    with suppress(OSError), atomic_write(record, shared=True) as file:  # the cache is optional
        file.write(json.dumps(unreadable).encode())


def _groups(keyed: Iterable[tuple[object, str]]) -> list[list[str]]:
    """The paths that share a key, by key; paths without a key are ignored."""
    groups = defaultdict[object, list[str]](list)
    for key, path in keyed:
        if key is not None:
            groups[key].append(path)
    return [group for group in groups.values() if len(group) > 1]


def _digest(path: Path) -> str | None:
    """The SHA-256 of a file, None if it cannot be read, which `broken_images` reports."""
    with suppress(OSError), path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
    return None
