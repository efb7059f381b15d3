"""The package's own split for data sets without one: the same on every machine, saved in CoOp's format."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dear.data.settings import DataSettings
from dear.data.sources.listing import Row, first_few
from dear.errors import DataError
from dear.writing.files import atomic_write


class OwnSplit(NamedTuple):
    """A split made here: rows by part, where it comes from, and notes about it."""

    splits: dict[str, tuple[Row, ...]]
    origin: str
    notes: tuple[str, ...]


def own_split(rows: Sequence[Row], settings: DataSettings, classnames: Sequence[str], name: str) -> OwnSplit:
    """The split of a user's data that has none: `settings.test_share` of each class to test on, recorded in
    the cache; with 1, all images. A class with a single image has it to train on.
    """
    if settings.test_share == 1:
        alone = "the data has no split: all its images are for testing"
        return OwnSplit({"train": (), "test": tuple(rows)}, "all to test on", (alone,))
    shares = {"train": 1 - settings.test_share, "test": settings.test_share}
    splits = seeded_split(rows, shares, settings.split_seed, classnames, lone=True)
    recorded = record_split(splits, classnames, settings.cache_folder() / "splits", name)
    notes = (split_note(shares, settings.split_seed, recorded), *lone_note(splits, classnames))
    return OwnSplit(splits, f"dear, seed {settings.split_seed}", notes)


def seeded_split(
    rows: Sequence[Row],
    shares: Mapping[str, float],
    seed: int,
    classnames: Sequence[str],
    *,
    lone: bool = False,
) -> dict[str, tuple[Row, ...]]:
    """Distribute each class's images over parts by their shares, rounded; the last part takes the rest.

    Images are ordered by a hash of seed and path, so that an image's part does not depend on other classes,
    the order of the file system or a random generator. Every part gets at least one image of each class.
    With ``lone`` a class of one image has it in the first part alone. Raises DataError naming any other class
    with fewer images than parts.
    """
    parts: dict[str, list[Row]] = {part: [] for part in shares}
    of_class: list[list[Row]] = [[] for _ in classnames]
    for row in rows:
        of_class[row.label].append(row)
    for label, name in enumerate(classnames):
        items = sorted(of_class[label], key=lambda row: _draw(seed, row.path))
        if lone and len(items) == 1:
            parts[next(iter(shares))] += items
            continue
        if len(items) < len(shares):
            raise DataError(
                f"class {label} ({name}) has {len(items)} images: a split into {', '.join(shares)} "
                f"needs at least {len(shares)}."
            )
        start = 0
        for place, (part, share) in enumerate(shares.items()):
            left_over = len(shares) - place - 1
            size = max(1, round(share * len(items))) if left_over else len(items)
            end = min(start + size, len(items) - left_over)
            parts[part] += items[start:end]
            start = end
    return {part: tuple(listed) for part, listed in parts.items()}


def lone_note(splits: Mapping[str, Sequence[Row]], classnames: Sequence[str]) -> tuple[str, ...]:
    """A note on the classes that have a single image, if there are any."""
    times = Counter(row.label for rows in splits.values() for row in rows)
    lone = [name for label, name in enumerate(classnames) if times[label] == 1]
    if not lone:
        return ()
    has = "has one image, which is" if len(lone) == 1 else "have one image each, which are"
    return (f"{first_few(lone)} {has} trained on: no image is left to test on",)


def _draw(seed: int, path: str) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed}/{path}".encode("utf-8", "surrogatepass")).digest(), path


def record_split(
    splits: Mapping[str, Sequence[Row]], classnames: Sequence[str], folder: Path, name: str
) -> Path | None:
    """Save a split as a list in CoOp's format. Returns its path, or None if the folder cannot be written
    (not an error: the split is reproducible).
    """
    content = {
        p: [[row.path, row.label, classnames[row.label]] for row in rows] for p, rows in splits.items()
    }
    from dear.data.dataset import fingerprint  # loads torch, which the names of data sets do without

    text = json.dumps(content, ensure_ascii=True, indent=0)
    path = folder / f"split_dear_{name}-{fingerprint(text)}.json"
    try:
        if not path.exists():
            with atomic_write(path, shared=True) as file:
                file.write(text.encode())
    except OSError:
        return None
    return path


def split_note(shares: Mapping[str, float], seed: int, recorded: Path | None) -> str:
    """A note on a split made here."""
    parts = ", ".join(f"{100 * share:.0f}% {part}" for part, share in shares.items())
    where = f"recorded in {recorded}" if recorded else "not recorded (the cache folder cannot be written)"
    return f"the data has no split: split by dear, {parts} of each class, seed {seed}, {where}"
