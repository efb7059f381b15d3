"""Split lists in CoOp's format, split_zhou_<name>.json: read, or made for data without one and recorded."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from dear.data.settings import DataSettings
from dear.data.sources.listing import (
    PARTS,
    Listing,
    Report,
    Row,
    first_few,
    refuse,
    reporting,
    require_apart,
    require_distinct,
    require_inside,
)
from dear.errors import DataError, compose
from dear.reading.plain import read_json
from dear.writing import atomic_write

PREFIX = "split_zhou_"
SAMPLE = 100  # images of a split list that are looked for in each folder, spread over the list
LONGEST_NAME = 50
"""Characters of a data set's name in the name of its list, which has at most 255 bytes."""

ClassRow = tuple[Row, str]
"""A row with its class name."""


class Split(NamedTuple):
    """The split of a data set: rows by part, where it comes from, and notes about it."""

    splits: dict[str, tuple[Row, ...]]
    origin: str
    notes: tuple[str, ...]


def make_split(rows: Sequence[Row], settings: DataSettings, classnames: Sequence[str], name: str) -> Split:
    """The split of a user's data that has none: `settings.test_share` of each class to test on, recorded in
    the cache; with 0 none and with 1 all images. A class with a single image has it to train on.
    """
    if settings.test_share in (0, 1):
        empty, verb = ("train", "test") if settings.test_share else ("test", "train")
        note = f"the data has no split: all its images are for {verb}ing"
        return Split({empty: (), verb: tuple(rows)}, f"all to {verb} on", (note,))
    shares = {"train": 1 - settings.test_share, "test": settings.test_share}
    splits = seeded_split(rows, shares, settings.split_seed, classnames, lone=True)
    path = _record(splits, classnames, settings.cache_folder() / "splits", name)
    parts = ", ".join(f"{100 * share:.0f}% for {part}ing" for part, share in shares.items())
    record = f"list: {path}" if path else "its list cannot be written to the cache folder"
    note = f"the data has no split: of each class {parts} (seed {settings.split_seed}; {record})"
    return Split(splits, f"dear, seed {settings.split_seed}", (note, *_lone_note(splits, classnames)))


def seeded_split(
    rows: Sequence[Row],
    shares: Mapping[str, float],
    seed: int,
    classnames: Sequence[str],
    *,
    lone: bool = False,
) -> dict[str, tuple[Row, ...]]:
    """Distribute each class's images over parts by their shares, rounded; the last part takes what remains.

    Images are ordered by a hash of seed and path, so that an image's part does not depend on other classes,
    the order of the file system or a random generator. Every part gets at least one image of each class.
    With ``lone`` a class of one image has it in the first part alone. Raises DataError naming any other class
    with fewer images than parts.
    """
    parts: dict[str, list[Row]] = {part: [] for part in shares}
    rows_by_class: list[list[Row]] = [[] for _ in classnames]
    for row in rows:
        rows_by_class[row.label].append(row)
    for label, name in enumerate(classnames):
        items = sorted(rows_by_class[label], key=lambda row: _draw(seed, row.path))
        if lone and len(items) == 1:
            parts[next(iter(shares))] += items
            continue
        if len(items) < len(shares):
            raise DataError(
                f"class {label} ({name}) has {len(items)} images: a split into {', '.join(shares)} "
                f"needs at least {len(shares)}."
            )
        start = 0
        for number, (part, share) in enumerate(shares.items(), start=1):
            later_parts = len(shares) - number
            size = max(1, round(share * len(items))) if later_parts else len(items)
            end = min(start + size, len(items) - later_parts)
            parts[part] += items[start:end]
            start = end
    return {part: tuple(items) for part, items in parts.items()}


def split_file(folder: Path) -> Path | None:
    """The split list in a folder, or None if there is none. Raises DataError if there are several."""
    files = sorted(folder.glob(f"{PREFIX}*.json"))
    if len(files) > 1:
        raise DataError(f"{folder} has {len(files)} split lists ({first_few(_names(files))}). Keep one.")
    return files[0] if files else None


def read_coop(folder: Path, report: Report = refuse) -> Listing:
    """Read the split list of a folder and find the folder of its images. No image is opened.

    Raises DataError naming the file for malformed or ambiguous data.
    """
    file = split_file(folder)
    if file is None:
        raise DataError(f"{folder} has no {PREFIX}*.json, the split list of CoOp's layout.")
    parts = _class_rows(file, report)
    class_rows = [*chain.from_iterable(parts.values())]
    if not class_rows:
        raise DataError(f"{file} has no valid row.")
    images = _image_folder(folder, file, [row for row, _ in class_rows])
    find = find_files(images)
    splits = {
        part: tuple(row._replace(path=find(row.path)) for row, _ in rows) for part, rows in parts.items()
    }
    require_apart(file.name, splits, report)
    names = _classnames(file, class_rows)
    with reporting(report):
        require_distinct(str(file), [str(label) for label in range(len(names))], names)
    return Listing(
        name=file.stem.removeprefix(PREFIX),
        folder=images,
        keys=tuple(names),
        classnames=tuple(names),
        splits=splits,
        origin=file.name,
        numbered=True,
    )


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


def _lone_note(splits: Mapping[str, Sequence[Row]], classnames: Sequence[str]) -> tuple[str, ...]:
    """A note on the classes that have a single image, if there are any."""
    images = Counter(row.label for rows in splits.values() for row in rows)
    lone = [name for label, name in enumerate(classnames) if images[label] == 1]
    if not lone:
        return ()
    has = "has one image, which is" if len(lone) == 1 else "have one image each, which are"
    return (f"{first_few(lone)} {has} trained on: no image is left to test on",)


def _draw(seed: int, path: str) -> tuple[bytes, str]:
    path = compose(path)  # so that it is the same on every machine
    return hashlib.sha256(f"{seed}/{path}".encode("utf-8", "surrogatepass")).digest(), path


def _record(
    splits: Mapping[str, Sequence[Row]], classnames: Sequence[str], folder: Path, name: str
) -> Path | None:
    """Save a split in CoOp's format. Returns its path, or None if the folder cannot be written."""
    from dear.data.dataset import fingerprint  # loads torch

    rows = {part: [[row.path, row.label, classnames[row.label]] for row in splits[part]] for part in splits}
    text = json.dumps(rows, indent=0)
    path = folder / f"split_dear_{name[:LONGEST_NAME]}-{fingerprint(text)}.json"
    try:
        if not path.exists():
            with atomic_write(path, shared=True) as file:
                file.write(text.encode())
    except OSError:
        return None
    return path


def _class_rows(file: Path, report: Report) -> dict[str, list[ClassRow]]:
    """The rows of train, test and, if there are any, val, with their class names."""
    content: Any = read_json(file, file_names=True)
    parts: dict[str, list[ClassRow]] = {}
    for part in PARTS:
        rows = content.get(part, []) if isinstance(content, dict) else None
        if not isinstance(rows, list) or (part != "val" and not rows):
            raise DataError(f'{file} needs a list "{part}" of [path, label, class name].')
        for index, row in enumerate(rows):
            with reporting(report):
                parts.setdefault(part, []).append(_class_row(f"{file}, {part}[{index}]", row))
    return parts


def _class_row(where: str, row: Any) -> ClassRow:
    match row:
        case [str(path), int(label), str(name)] if path and name and not isinstance(label, bool):
            require_inside(where, path)
            if label < 0:
                raise DataError(f"{where}: label {label} of {path} is out of range; labels count from 0.")
            return Row(path, label), compose(name)
    raise DataError(f"{where} is {row!r:.100}, not [path, label, class name].")


def _classnames(file: Path, rows: Sequence[ClassRow]) -> list[str]:
    names: dict[int, str] = {}
    for row, name in rows:
        if names.setdefault(row.label, name) != name:
            raise DataError(f"{file}: label {row.label} has two names, {names[row.label]!r} and {name!r}.")
    gap = next((label for label in range(len(names)) if label not in names), None)
    if gap is not None:
        raise DataError(f"{file}: labels run from 0 to {max(names)}, but no image has label {gap}.")
    return [names[label] for label in range(len(names))]


def _image_folder(folder: Path, file: Path, rows: Sequence[Row]) -> Path:
    """The folder that contains the listed paths, of which a sample is looked for: that of the split list, or
    one next to the list.
    """
    neighbours = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    paths = [*dict.fromkeys(row.path for row in rows)]
    sample = paths[:: -(-len(paths) // SAMPLE)]
    folders = [
        top
        for top in (folder, *neighbours)
        if any(os.path.isfile(top / path) for path in map(find_files(top), sample))
    ]
    if not folders:
        raise DataError(
            f"none of the {len(paths)} images of {file} exists; the first is {paths[0]}. "
            f"Looked in {folder}, and for {len(sample)} in its folders ({first_few(_names(neighbours))})."
        )
    if len(folders) > 1:
        raise DataError(
            f"the images of {file} are in more than one folder: {first_few(_names(folders))}. Keep one."
        )
    return folders[0]


def _names(paths: Sequence[Path]) -> list[str]:
    return [path.name for path in paths] or ["none"]
