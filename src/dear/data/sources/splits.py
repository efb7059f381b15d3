"""Our own split, for data sets that bring none: the same on every machine, recorded as CoOp's lists are."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from dear.data.dataset import fingerprint
from dear.data.sources.listing import Row
from dear.errors import DataError
from dear.writing.files import atomic_write


def seeded_split(
    rows: Sequence[Row], shares: Mapping[str, float], seed: int, classnames: Sequence[str]
) -> dict[str, tuple[Row, ...]]:
    """Deal each class's images out to parts: shares are of the class, rounded, the last part takes the rest.

    The order within a class is that of a hash of seed and path, so no image's part depends on another class,
    on the file system's order or on a random generator. Every part gets at least one image of each class.
    Errors: DataError that names a class with fewer images than parts.
    """
    parts: dict[str, list[Row]] = {part: [] for part in shares}
    of_class: list[list[Row]] = [[] for _ in classnames]
    for row in rows:
        of_class[row.label].append(row)
    for label, name in enumerate(classnames):
        items = sorted(of_class[label], key=lambda row: _draw(seed, row.path))
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


def _draw(seed: int, path: str) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed}/{path}".encode("utf-8", "surrogatepass")).digest(), path


def record_split(
    splits: Mapping[str, Sequence[Row]], classnames: Sequence[str], folder: Path, name: str
) -> Path | None:
    """Write a split as a list in CoOp's form, in a folder of such records; its place, or None if there is
    no writing there (the split can be made again, so that is no error).
    """
    content = {
        p: [[row.path, row.label, classnames[row.label]] for row in rows] for p, rows in splits.items()
    }
    text = json.dumps(content, ensure_ascii=True, indent=0)
    path = folder / f"split_dear_{name}-{fingerprint(text)}.json"
    try:
        if not path.exists():
            with atomic_write(path, shared=True) as file:
                file.write(text.encode())
    except OSError:
        return None
    return path


def spoken_split(shares: Mapping[str, float], seed: int, recorded: Path | None) -> str:
    """What is said aloud about a split of ours."""
    parts = ", ".join(f"{100 * share:.0f}% {part}" for part, share in shares.items())
    where = f"recorded in {recorded}" if recorded else "not recorded (the cache folder cannot be written)"
    return f"no split came with the data: split by dear, {parts} of each class, seed {seed}, {where}"
