"""Data sets in CoOp's layout: a folder of images and a split list, split_zhou_<name>.json."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from dear.data.sources.listing import (
    PARTS,
    Listing,
    Report,
    Row,
    refuse,
    reporting,
    require_apart,
    require_distinct,
    require_inside,
)
from dear.errors import DataError
from dear.reading.plain import read_json
from dear.reading.typed import shown

PREFIX = "split_zhou_"
Named = tuple[Row, str]


def split_file(folder: Path) -> Path | None:
    """The split list in a folder, or None if there is none. Raises DataError if there are several."""
    found = sorted(folder.glob(f"{PREFIX}*.json"))
    if len(found) > 1:
        raise DataError(f"{folder} has {len(found)} split lists ({_listed(found)}). Keep one.")
    return found[0] if found else None


def read_coop(folder: Path, images: Path | None = None, report: Report = refuse) -> Listing:
    """Read the split list of a folder and find the folder of its images. No image is opened.

    `images` is the image folder, if known. Raises DataError naming the file for malformed or ambiguous data.
    """
    split = split_file(folder)
    if split is None:
        raise DataError(f"{folder} has no {PREFIX}*.json, the split list of CoOp's layout.")
    lists = _lists(split, report)
    named = [*chain.from_iterable(lists.values())]
    apart = {part: [row for row, _ in listed] for part, listed in lists.items()}
    require_apart(split.name, apart, report)
    names = _names(split, named)
    with reporting(report):
        require_distinct(str(split), [str(label) for label in range(len(names))], names)
    return Listing(
        name=split.stem.removeprefix(PREFIX),
        folder=images or _image_folder(folder, split, [row for row, _ in named]),
        keys=tuple(names),
        classnames=tuple(names),
        splits={part: tuple(row for row, _ in listed) for part, listed in lists.items()},
        origin=split.name,
    )


def _lists(split: Path, report: Report) -> dict[str, list[Named]]:
    """The rows of train, test and, if there are any, val, with their class names."""
    content: Any = read_json(split)
    lists: dict[str, list[Named]] = {}
    for part in PARTS:
        rows = content.get(part, []) if isinstance(content, dict) else None
        if not isinstance(rows, list) or (part != "val" and not rows):
            raise DataError(f'{split} needs a list "{part}" of [path, label, class name].')
        for index, row in enumerate(rows):
            with reporting(report):
                lists.setdefault(part, []).append(_row(f"{split}, {part}[{index}]", row))
    return lists


def _row(where: str, row: Any) -> Named:
    match row:
        case [str(path), int(label), str(name)] if path and name and not isinstance(label, bool):
            require_inside(where, path)
            if label < 0:
                raise DataError(f"{where}: label {label} of {path} is out of range; labels count from 0.")
            return Row(path, label), name
    raise DataError(f"{where} is {shown(row)}, not [path, label, class name].")


def _names(split: Path, rows: Sequence[Named]) -> list[str]:
    names: dict[int, str] = {}
    for row, name in rows:
        if names.setdefault(row.label, name) != name:
            raise DataError(f"{split}: label {row.label} has two names, {names[row.label]!r} and {name!r}.")
    gap = next((label for label in range(len(names)) if label not in names), None)
    if gap is not None:
        raise DataError(f"{split}: labels run from 0 to {max(names)}, but no image has label {gap}.")
    return [names[label] for label in range(len(names))]


def _image_folder(folder: Path, split: Path, rows: Sequence[Row]) -> Path:
    """The folder that contains the listed paths: that of the split list, or one next to the list."""
    beside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [place for place in (folder, *beside) if any((place / row.path).is_file() for row in rows)]
    if not found:
        raise DataError(
            f"none of the {len(rows)} images of {split} exists; the first is {rows[0].path}. "
            f"Looked in {folder} and its folders ({_listed(beside)})."
        )
    if len(found) > 1:
        raise DataError(f"the images of {split} are in more than one folder: {_listed(found)}. Keep one.")
    return found[0]


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths) or "none"
