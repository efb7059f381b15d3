"""Split lists in CoOp's format, split_zhou_<name>.json: read, or made for data without one and recorded."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dear.data.settings import DataSettings
from dear.data.sources.class_names import label_note, require_distinct
from dear.data.sources.listing import NO_SPLIT, PARTS, UNDIVIDED, DetailNote, Listing, Row
from dear.data.sources.paths import find_files, require_inside
from dear.errors import DataError, as_fault
from dear.reading.files import is_file, is_passed_over
from dear.reading.plain import read_json
from dear.text import FEW, compose, fingerprint, list_names, plural
from dear.writing import atomic_write

PREFIX = "split_zhou_"
SAMPLE = 100  # images of a split list that are looked for in each folder, spread over the list
TEST_SHARE = 0.3  # where the settings have none
LONGEST_NAME = 50
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
    """The split of a data set: rows by part, where it comes from, and notes about it."""

    splits: dict[str, tuple[Row, ...]]
    origin: str
    notes: tuple[str, ...]


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


def is_drawn(listing: Listing, settings: DataSettings) -> bool:
    """True if `divide` draws images to test on."""
    return UNDIVIDED in listing.splits and 0 < _test_share(settings) < 1


def _test_share(settings: DataSettings) -> float:
    return settings.with_test_share(TEST_SHARE).test_share or 0.0


def divide(
    listing: Listing,
    settings: DataSettings,
    groups: Mapping[str, str] = MappingProxyType({}),
    contents: Mapping[str, bytes] = MappingProxyType({}),
) -> Listing:
    """The listing of a user's data with a split of the images that have none, recorded in the cache in CoOp's
    format. By default it has `TEST_SHARE` of each class to test on; with a share of 0 none and with 1 all
    images. ``groups`` by path stay whole; a class with a single image or group has it to train on.
    ``contents`` are hashes by path.
    """
    if UNDIVIDED not in listing.splits:
        return listing
    rows, share = listing.splits[UNDIVIDED], _test_share(settings)
    given = {part: rows_of for part, rows_of in listing.splits.items() if part != UNDIVIDED}
    if share in (0, 1):
        verb = "test" if share else "train"
        drawn, origin = {verb: rows}, f"all to {verb} on"
        notes = [f"{NO_SPLIT}: all its images are for {verb}ing"]
    else:
        sides = {
            groups[row.path]: "test" if part == "test" else "train"
            for part, rows_of in given.items() for row in rows_of if row.path in groups
        }  # fmt: skip
        drawn = seeded_split(
            rows, share, settings.split_seed, settings.least_train,
            groups=groups, contents=contents, sides=sides,
            trained={row.label for row in given.get("train", ())},
        )  # fmt: skip
        notes = _describe_drawn(listing, drawn, settings, share, groups)
        origin = f"dear, seed {settings.split_seed}"
    splits = {part: (*given.get(part, ()), *drawn.get(part, ())) for part in PARTS}
    return replace(
        listing,
        splits={part: rows_of for part, rows_of in splits.items() if rows_of or part != "val"},
        origin="; ".join(filter(None, (listing.origin, origin))),
        notes=(*listing.notes, *map(DetailNote, notes)),
    )


def _describe_drawn(
    listing: Listing,
    drawn: Mapping[str, Sequence[Row]],
    settings: DataSettings,
    share: float,
    groups: Mapping[str, str],
) -> list[str]:
    """Record a split that was drawn, and tell of it."""

    keys, rows = listing.keys, [*chain.from_iterable(drawn.values())]
    text = json.dumps({part: [[*row, keys[row.label]] for row in drawn[part]] for part in drawn}, indent=0)
    file = f"split_dear_{listing.name[:LONGEST_NAME]}-{fingerprint(text)}.json"
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
    if groups:
        counts = (plural(len(drawn.get(part, ())), "image") for part in ("train", "test"))
        parts += f", as near as whole groups allow: {' and '.join(counts)}"
    notes = [f"{NO_SPLIT}: of each class {parts} (seed {settings.split_seed}; {record})"]
    if groups:
        described = f"{len(groups)} images are in {plural(len({*groups.values()}), 'group')}"
        notes.append(
            f"{described} of near-duplicates or by --dataset.group, each kept on one side of the split"
        )
    images = Counter(label for label, _ in {(row.label, groups.get(row.path, row.path)) for row in rows})
    if lone := [name for label, name in enumerate(keys) if images[label] == 1]:
        what = "group of images" if groups else "image"
        has = f"has one {what}, which is" if len(lone) == 1 else f"have one {what} each, which are"
        notes.append(f"{NO_SPLIT}, and {list_names(lone, FEW)} {has} trained on: no image is left to test on")
    return notes


def seeded_split(
    rows: Sequence[Row],
    test_share: float,
    seed: int,
    least_train: int = 1,
    *,
    groups: Mapping[str, str] = MappingProxyType({}),
    contents: Mapping[str, bytes] = MappingProxyType({}),
    sides: Mapping[str, str] = MappingProxyType({}),
    trained: Set[int] = frozenset(),
) -> dict[str, tuple[Row, ...]]:
    """Divide each class's images by the share to test on, rounded; ``groups`` by path stay whole, across
    classes too, so that the share is met as nearly as whole groups can. ``sides`` are those of groups that
    have one, ``trained`` the classes that have images to train on elsewhere.

    Images are ordered by a hash of seed and content (of the path, for one without a content), so that an
    image's part does not depend on other classes, the names of files and folders or a random generator. Both
    parts get at least one image of each class, and that to train on ``least_train`` if there are more; a
    class of one image or group has it to train on. Where a class shares all its groups with others that are
    tested on them, the smallest is trained on instead.
    """

    def rank(row: Row) -> tuple[bytes, str]:
        path = compose(row.path)  # so that it is the same on every machine
        content = contents.get(row.path, b"").hex() or path
        return hashlib.sha256(f"{seed}/{content}".encode("utf-8", "surrogatepass")).digest(), path

    def group_of(row: Row) -> str:
        return groups.get(row.path, row.path)

    parts: dict[str, list[Row]] = {"train": [], "test": []}
    side_of, rows_by_class = dict(sides), dict[int, list[Row]]()
    for row in sorted(rows, key=rank):  # classes too are in an order that is not that of their numbers
        rows_by_class.setdefault(row.label, []).append(row)
    for members in rows_by_class.values():
        rows_by_group = dict[str, list[Row]]()
        for row in members:
            rows_by_group.setdefault(group_of(row), []).append(row)
        wanted = max(round((1 - test_share) * len(members)), least_train)
        sizes = Counter({"train": 0, "test": 0})
        for group in rows_by_group.keys() & side_of.keys():
            sizes[side_of[group]] += len(rows_by_group[group])
        free = [group for group in rows_by_group if group not in side_of]
        for group in free:
            size, is_last = len(rows_by_group[group]), group == free[-1]
            is_room = not sizes["train"] or sizes["train"] + size / 2 <= wanted
            part = "train" if is_room and (sizes["test"] or not (is_last and sizes["train"])) else "test"
            side_of[group] = part
            sizes[part] += size
    images = Counter(map(group_of, rows))
    for label, members in rows_by_class.items():
        own = [*dict.fromkeys(map(group_of, members))]
        movable = [group for group in own if group not in sides]
        if label not in trained and movable and all(side_of[group] == "test" for group in own):
            side_of[min(movable, key=lambda group: images[group])] = "train"
    for members in rows_by_class.values():
        for row in members:
            parts[side_of[group_of(row)]].append(row)
    return {part: tuple(sorted(listed, key=lambda row: row.label)) for part, listed in parts.items()}


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
        top for top in (folder, *beside) if any(is_file(top / path) for path in map(find_files(top), sample))
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
