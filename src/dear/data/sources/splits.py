"""Split lists in CoOp's format, split_zhou_<name>.json: read, or made for data without one and recorded."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dear.data.settings import DataSettings
from dear.data.sources.listing import (
    FEW,
    NO_SPLIT,
    PARTS,
    Listing,
    Row,
    SplitNote,
    as_fault,
    find_files,
    label_note,
    require_distinct,
    require_inside,
)
from dear.errors import DataError, compose, list_names
from dear.reading.files import is_passed_over
from dear.reading.plain import read_json
from dear.writing import atomic_write

PREFIX = "split_zhou_"
SAMPLE = 100  # images of a split list that are looked for in each folder, spread over the list
LONGEST_NAME = 50
TEST_SHARE = 0.3  # where the settings have none
"""Characters of a data set's name in the name of its list, which has at most 255 bytes."""

SPLITS = {
    name: split
    for split, names in (
        ("train", "train training"),
        ("val", "val valid validate validation dev eval evaluation"),
        ("test", "test testing"),
    )
    for name in names.split()
}
USUAL = frozenset(["train", "training", "val", "valid", "validation", "test"])
SUFFIX = re.compile(r"[ _-]?(?:set|data|images?)$")
"""What is left out of the name of a split: training_set."""


class Split(NamedTuple):
    """The split of a data set: rows by part, where it comes from, notes, and whether it was drawn here."""

    splits: dict[str, tuple[Row, ...]]
    origin: str
    notes: tuple[str, ...]
    is_drawn: bool = False


@lru_cache(1000)  # each row of a table has one
def split_of(name: str) -> str | None:
    """The split that a name means, "train" for "Training" or "training_set"; None for any other name."""
    return SPLITS.get(SUFFIX.sub("", name.strip().lower()))


def names_of_splits(names: Sequence[str], where: object) -> dict[str, str]:
    """The name of each split, in the order of the names. Of several for one split, such as validation and
    dev, the usual one counts; raises DataError for two usual or two others, such as train and Train.
    """
    by_split = dict[str, list[str]]()
    for name in names:
        if split := split_of(name):
            by_split.setdefault(split, []).append(name)
    names_by_split = dict[str, str]()
    for split, candidates in by_split.items():
        usual = [name for name in candidates if name.lower() in USUAL] or candidates
        if len(usual) > 1:
            raise DataError(f"{where}: {usual[0]} and {usual[1]} are both the {split} split: merge them.")
        names_by_split[split] = usual[0]
    return names_by_split


def make_split(
    rows: Sequence[Row],
    settings: DataSettings,
    classnames: Sequence[str],
    name: str,
    groups: Mapping[str, str] = MappingProxyType({}),
    ranked_as: Mapping[str, str] = MappingProxyType({}),
) -> Split:
    """The split of a user's data that has none, recorded in the cache in CoOp's format. By default it has
    `TEST_SHARE` of each class to test on; with a share of 0 none and with 1 all images. A class with a single
    image, or a single one of the ``groups``, has it to train on.
    """
    from dear.data.dataset import fingerprint  # loads torch

    share = settings.with_test_share(TEST_SHARE).test_share or 0.0
    if share in (0, 1):
        empty, verb = ("train", "test") if share else ("test", "train")
        note = SplitNote(f"{NO_SPLIT}: all its images are for {verb}ing")
        return Split({empty: (), verb: tuple(rows)}, f"all to {verb} on", (note,))
    options = {"groups": groups, "ranked_as": ranked_as}
    splits = seeded_split(rows, share, settings.split_seed, len(classnames), settings.least_train, **options)
    listed = {part: [[path, label, classnames[label]] for path, label in splits[part]] for part in splits}
    text = json.dumps(listed, indent=0)
    file = f"split_dear_{name[:LONGEST_NAME]}-{fingerprint(text)}.json"
    path = settings.cache_folder() / "splits" / file
    record = f"list: {path}"
    try:
        if not path.exists():
            with atomic_write(path, shared=True) as sink:
                sink.write(text.encode())
    except OSError:
        record = "its list cannot be written to the cache folder"
    parts = f"{100 * (1 - share):.0f}% for training, {100 * share:.0f}% for testing"
    if settings.least_train > 1:
        parts += f", at least {settings.least_train} images for training"
    notes = [f"{NO_SPLIT}: of each class {parts} (seed {settings.split_seed}; {record})"]
    images = Counter(label for label, _ in {(row.label, groups.get(row.path, row.path)) for row in rows})
    if lone := [name for label, name in enumerate(classnames) if images[label] == 1]:
        what = "group of images" if groups else "image"
        has = f"has one {what}, which is" if len(lone) == 1 else f"have one {what} each, which are"
        notes.append(f"{NO_SPLIT}, and {list_names(lone, FEW)} {has} trained on: no image is left to test on")
    return Split(splits, f"dear, seed {settings.split_seed}", tuple(map(SplitNote, notes)), is_drawn=True)


def seeded_split(
    rows: Sequence[Row],
    test_share: float,
    seed: int,
    classes: int,
    least_train: int = 1,
    *,
    groups: Mapping[str, str] = MappingProxyType({}),
    ranked_as: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, tuple[Row, ...]]:
    """Divide each class's images by the share to test on, rounded; ``groups`` by path stay whole, across
    classes too, so that the share is met as nearly as whole groups can.

    Images are ordered by a hash of seed and path (or what it is ``ranked_as``), so that an image's part does
    not depend on other classes, the order of the file system or a random generator. Both parts get at least
    one image of each class, and that to train on ``least_train`` if there are more; a class of one image or
    group has it to train on.
    """

    def rank(row: Row) -> tuple[bytes, str]:
        path = compose(ranked_as.get(row.path, row.path))  # so that it is the same on every machine
        return hashlib.sha256(f"{seed}/{path}".encode("utf-8", "surrogatepass")).digest(), path

    parts: dict[str, list[Row]] = {"train": [], "test": []}
    placed = dict[str, str]()
    rows_by_class: list[list[Row]] = [[] for _ in range(classes)]
    for row in rows:
        rows_by_class[row.label].append(row)
    for members in rows_by_class:
        members.sort(key=rank)
        rows_by_group = dict[str, list[Row]]()
        for row in members:
            rows_by_group.setdefault(groups.get(row.path, row.path), []).append(row)
        wanted = max(round((1 - test_share) * len(members)), least_train)
        sizes = Counter({"train": 0, "test": 0})
        for group in rows_by_group.keys() & placed.keys():
            sizes[placed[group]] += len(rows_by_group[group])
        free = [group for group in rows_by_group if group not in placed]
        for group in free:
            size, is_last = len(rows_by_group[group]), group == free[-1]
            is_room = not sizes["train"] or sizes["train"] + size / 2 <= wanted
            part = "train" if is_room and (sizes["test"] or not (is_last and sizes["train"])) else "test"
            placed[group] = part
            sizes[part] += size
        for group, inside in rows_by_group.items():
            parts[placed[group]] += inside
    return {part: tuple(listed) for part, listed in parts.items()}


def split_file(folder: Path) -> Path | None:
    """The split list in a folder, or None if there is none. Raises DataError if there are several."""
    files = sorted(folder.glob(f"{PREFIX}*.json"))
    if len(files) > 1:
        names = list_names((file.name for file in files), FEW)
        raise DataError(f"{folder} has {len(files)} split lists ({names}). Keep one.")
    return files[0] if files else None


def read_coop(folder: Path) -> Listing:
    """Read the split list of a folder and find the folder of its images. No image is opened.

    Raises DataError naming the file for malformed or ambiguous data.
    """
    file = split_file(folder)
    if file is None:
        raise DataError(f"{folder} has no {PREFIX}*.json, the split list of CoOp's layout.")
    content: Any = read_json(file, file_names=True)
    rows_by_part, names = dict[str, list[Row]](), dict[int, str]()
    for part in PARTS:
        rows = content.get(part, []) if isinstance(content, dict) else None
        if not isinstance(rows, list) or (part != "val" and not rows):
            raise DataError(f'{file} needs a list "{part}" of [path, label, class name].')
        for index, row in enumerate(rows):
            with as_fault():
                image, name = _class_row(f"{file}, {part}[{index}]", row)
                if (other := names.setdefault(image.label, name)) != name:
                    raise DataError(f"{file}: label {image.label} has two names, {other!r} and {name!r}.")
                rows_by_part.setdefault(part, []).append(image)
    if not names:
        raise DataError(f"{file} has no valid row.")
    images = _image_folder(folder, file, [row.path for row in chain.from_iterable(rows_by_part.values())])
    find, numbers = find_files(images), {label: number for number, label in enumerate(sorted(names))}
    splits = {
        part: tuple(Row(find(row.path), numbers[row.label]) for row in rows)
        for part, rows in rows_by_part.items()
    }
    classes, name = tuple(names[label] for label in numbers), file.stem.removeprefix(PREFIX)
    with as_fault():
        require_distinct(str(file), [*map(str, numbers)], classes)
    return Listing(
        name, images, classes, classes, splits, file.name, notes=label_note([*numbers]), numbered=True
    )


def _class_row(where: str, row: Any) -> tuple[Row, str]:
    match row:
        case [str(path), int(label), str(name)] if path and name and not isinstance(label, bool):
            require_inside(where, path)
            if label < 0:
                raise DataError(f"{where}: label {label} of {path} is out of range; labels count from 0.")
            return Row(path, label), compose(name)
    raise DataError(f"{where} is {row!r:.100}, not [path, label, class name].")


def _image_folder(folder: Path, file: Path, listed: Sequence[str]) -> Path:
    """The folder that contains the listed paths, of which a sample is looked for: that of the split list, or
    one next to the list.
    """
    paths = [*dict.fromkeys(listed)]
    sample = paths[:: -(-len(paths) // SAMPLE)]
    beside = sorted(path for path in folder.iterdir() if path.is_dir() and not is_passed_over(path.name))
    found = [
        top
        for top in (folder, *beside)
        if any(os.path.isfile(top / path) for path in map(find_files(top), sample))
    ]
    names = list_names((path.name for path in found or beside), FEW)
    if not found:
        raise DataError(
            f"none of the {len(paths)} images of {file} exists; the first is {paths[0]}. "
            f"Looked in {folder}, and for {len(sample)} in its folders ({names or 'none'})."
        )
    if len(found) > 1:
        raise DataError(f"the images of {file} are in more than one folder: {names}. Keep one.")
    return found[0]
