"""Find the images of a data set that cannot be read: each is decoded once, and the result is cached."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dear.data.dataset import fingerprint
from dear.data.images.decode import decode
from dear.data.images.decode_cache import DecodeCache
from dear.data.images.photos import file_sizes, in_parallel
from dear.data.images.raster import read_image
from dear.data.settings import DataSettings
from dear.data.sources.listing import Listing
from dear.errors import DataError, DearError
from dear.reading.plain import read_json
from dear.reading.typed import typed
from dear.writing.files import atomic_write

CHUNK = 256  # images between two calls of `progress`


def broken_images(
    listing: Listing, settings: DataSettings, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> dict[str, str]:
    """The images that are missing, empty or cannot be decoded: path and reason, in the listing's order.

    The result is cached under the sizes and modification times of the files.
    """
    paths = _paths(listing)
    stamps = [_stamp(listing.folder / path) for path in paths]
    key = fingerprint(
        str(listing.folder.resolve()), *(part for pair in zip(paths, stamps, strict=True) for part in pair)
    )
    record = settings.cache_folder() / "checked" / f"{key}.json"
    if (known := _read(record)) is not None:
        return known
    store = DecodeCache(settings.cache_folder(), settings.short_side) if settings.decode_cache else None
    broken: dict[str, str] = {}
    for start in range(0, len(paths), CHUNK):
        chunk = paths[start : start + CHUNK]
        reasons = in_parallel(
            lambda path: _reason(listing.folder / path, settings, store), chunk, settings.threads
        )
        broken |= {path: reason for path, reason in zip(chunk, reasons, strict=True) if reason is not None}
        progress(min(start + CHUNK, len(paths)), len(paths))
    _write(record, broken)
    return broken


def missing_images(listing: Listing) -> list[str]:
    """Paths in the listing that are not files."""
    paths = _paths(listing)
    sizes = file_sizes(listing.folder, paths)
    return [path for path, size in zip(paths, sizes, strict=True) if size is None]


def _paths(listing: Listing) -> list[str]:
    """The distinct images, in the listing's order."""
    return [*dict.fromkeys(row.path for rows in listing.splits.values() for row in rows)]


def _reason(path: Path, settings: DataSettings, store: DecodeCache | None) -> str | None:
    if not path.is_file():
        return f"the image {path} does not exist"
    try:
        content = read_image(path)
        if store is not None and store.get(store.key(content)) is not None:
            return None
        picture = decode(path, settings.short_side, content)
    except DataError as error:
        return str(error)
    if store is not None:
        store.put(store.key(content), picture)
    return None


def _stamp(path: Path) -> str:
    with suppress(OSError):
        facts = path.stat()
        return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_mode}"
    return "missing"


def _read(record: Path) -> dict[str, str] | None:
    with suppress(DearError):  # a damaged record is computed again
        return typed(read_json(record), dict[str, str], record)
    return None


def _write(record: Path, broken: dict[str, str]) -> None:
    with suppress(OSError), atomic_write(record, shared=True) as file:  # the cache is optional
        file.write(json.dumps(broken).encode())
