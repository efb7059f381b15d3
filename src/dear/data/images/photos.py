"""A set of images from files: the files are checked at construction and decoded when loaded."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from jaxtyping import Int, UInt8
from torch import Tensor

from dear.data.dataset import fingerprint
from dear.data.images.decode import decode
from dear.data.images.decode_cache import DecodeCache
from dear.data.images.raster import read_image
from dear.errors import DataError

SHORT_SIDE = 256
CACHE_BYTES = 512 * 2**20
SKIP = "To skip such images, use --dataset.broken skip."

Item = TypeVar("Item")
Result = TypeVar("Result")


class PhotoImages:
    """Image files of a folder, decoded by threads when they are loaded.

    With a store, each file is decoded only once. Without one, pictures are kept in memory while there is
    room; the first ones stay, because with repeated passes over all of them, evicting the oldest would never
    give a hit. The identity covers relative paths, labels, file sizes and the short side, not contents.
    """

    def __init__(
        self,
        folder: Path,
        paths: Sequence[str],
        labels: Int[Tensor, "item"],
        short_side: int = SHORT_SIDE,
        cache_bytes: int = CACHE_BYTES,
        *,
        store: DecodeCache | None = None,
        threads: int = 1,
    ) -> None:
        """Check every file without opening it. Raises DataError for a missing or empty file."""
        sizes = file_sizes(folder, paths)
        for what, wrong in (("are not in", None), ("are empty (0 bytes) in", 0)):
            found = [path for path, size in zip(paths, sizes, strict=True) if size == wrong]
            if found:
                raise DataError(
                    f"{len(found)} of {len(paths)} images {what} {folder}; the first is {found[0]}. "
                    f"Is the data set unpacked completely? {SKIP}"
                )
        self.folder, self.paths, self.labels = folder, tuple(paths), labels
        self.short_side, self.room = short_side, cache_bytes
        self.store, self.threads = store, threads
        items = zip(paths, labels.tolist(), sizes, strict=True)
        self.identity = fingerprint(str(short_side), *(str(part) for item in items for part in item))
        self._kept: dict[int, UInt8[Tensor, "3 height width"]] = {}
        self._keys: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, indices: Int[Tensor, "batch"]) -> list[UInt8[Tensor, "3 _height _width"]]:
        """The pictures at the given indices. Raises DataError naming a file that cannot be decoded."""
        wanted: list[int] = indices.tolist()
        try:
            pictures = in_parallel(self._picture, wanted, self.threads)
        except DataError as error:
            raise DataError(f"{error} {SKIP}") from error
        if self.store is None:
            for index, picture in zip(wanted, pictures, strict=True):
                if index not in self._kept and picture.nbytes <= self.room:
                    self._kept[index] = picture
                    self.room -= picture.nbytes
        return pictures

    def _picture(self, index: int) -> UInt8[Tensor, "3 height width"]:
        if index in self._kept:
            return self._kept[index]
        path = self.folder / self.paths[index]
        if self.store is None:
            return decode(path, self.short_side)
        if index in self._keys and (known := self.store.get(self._keys[index])) is not None:
            return known
        content = read_image(path)
        key = self._keys[index] = self.store.key(content)
        picture = self.store.get(key)
        if picture is None:
            picture = decode(path, self.short_side, content)
            self.store.put(key, picture)
        return picture


def file_sizes(folder: Path, paths: Iterable[str]) -> list[int | None]:
    """Bytes of each file, None if it does not exist. Raises DataError for a folder that may not be read."""
    try:
        return [place.stat().st_size if place.is_file() else None for place in (folder / p for p in paths)]
    except PermissionError as error:
        raise DataError(f"no permission to read {error.filename}.") from error


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """Results of `work` for each item, in order, by threads: decoding and file access release the GIL."""
    if threads < 2 or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(work, items))
