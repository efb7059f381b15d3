"""Images of one content: inside a class, in several classes, in several splits."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from dear.data.images.photos import file_sizes, in_parallel
from dear.data.sources.listing import Listing

PIECE = 2**20  # bytes of a file read at a time
CHUNK = 256  # files between two calls of `progress`


def same_images(
    listing: Listing, threads: int = 1, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> list[list[str]]:
    """Groups of files with the same bytes, in the listing's order; only files of one size are read.

    A picture that was saved anew is another one here. [ours]
    """
    paths = [*dict.fromkeys(row.path for rows in listing.splits.values() for row in rows)]
    sizes = file_sizes(listing.folder, paths)
    alike = [path for group in _groups(zip(sizes, paths, strict=True)) for path in group]
    digests = list[str | None]()
    for start in range(0, len(alike), CHUNK):
        chunk = alike[start : start + CHUNK]
        digests += in_parallel(lambda path: _digest(listing.folder / path), chunk, threads)
        progress(len(digests), len(alike))
    place = {path: at for at, path in enumerate(paths)}
    return sorted(_groups(zip(digests, alike, strict=True)), key=lambda group: place[group[0]])


def told_of(listing: Listing, groups: list[list[str]]) -> list[str]:
    """One warning for each kind of repetition that there is, with the first of its groups."""
    part_of = {row.path: part for part, rows in listing.splits.items() for row in rows}
    class_of = {row.path: row.label for rows in listing.splits.values() for row in rows}
    kinds: dict[str, list[list[str]]] = {
        "in several splits, so that images that are tested on are trained on": [],
        "in several classes": [],
        "in one class": [],
    }
    splits, classes, inside = kinds.values()
    for group in groups:
        if len({part_of[path] for path in group}) > 1:
            splits.append(group)
        if len({class_of[path] for path in group}) > 1:
            classes.append(group)
        elif len({part_of[path] for path in group}) == 1:
            inside.append(group)
    return [
        f"{len(found)} images are there more than once {where}: {' = '.join(found[0])}"
        + (f" ... and {len(found) - 1} more" if len(found) > 1 else "")
        for where, found in kinds.items()
        if found
    ]


def _groups(keyed: Iterable[tuple[object, str]]) -> list[list[str]]:
    """The paths that share a key with another one; those without a key are left out."""
    found = defaultdict[object, list[str]](list)
    for key, path in keyed:
        if key is not None:
            found[key].append(path)
    return [group for group in found.values() if len(group) > 1]


def _digest(path: Path) -> str | None:
    """The SHA-256 of a file, None if it cannot be read, which is told elsewhere."""
    digest = hashlib.sha256()
    with suppress(OSError), path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
        return digest.hexdigest()
    return None
