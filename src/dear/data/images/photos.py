"""Sets of image files, checked at construction and decoded when loaded, and the cache of decoded pictures."""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dear.data.dataset import Images, fingerprint
from dear.data.images.decode import decode
from dear.data.images.raster import read_image
from dear.errors import DataError, OutputError
from dear.reading.files import ReadingError, file_size, resolved
from dear.reading.tensors import map_array
from dear.writing import atomic_write

VERSION = 3
"""Increment when `decode` gives other pixels for the same file or the format of the cache changes."""
SHORT_SIDE = 256
CACHE_BYTES = 512 * 2**20
SKIP = "`dear data check` names all such images; --dataset.broken skip leaves them out."

Item = TypeVar("Item")
Result = TypeVar("Result")


class DecodeCache:
    """Pictures keyed by the SHA-256 of the file's bytes and the short side that they were reduced to.

    Pictures are written atomically, so that processes may share a store; a file that occurs in several data
    sets is stored once.
    """

    def __init__(self, folder: Path, short_side: int) -> None:
        self.folder = folder / "decoded" / f"v{VERSION}-{short_side}"

    @staticmethod
    def key(content: bytes) -> str:
        return hashlib.sha256(content).hexdigest()

    def get(self, key: str) -> UInt8[Tensor, "3 height width"] | None:
        """The memory-mapped picture of a key, or None if it is missing or damaged."""
        try:
            array = map_array(self._path(key), np.uint8)
        except ReadingError:
            return None
        if array.ndim != 3 or array.shape[0] != 3 or not array.size or not _sealed(array):
            return None
        return torch.from_numpy(array)

    def put(self, key: str, picture: UInt8[Tensor, "3 height width"]) -> None:
        """Store a picture. Raises OutputError if the folder cannot be written."""
        try:
            with atomic_write(self._path(key), shared=True) as file:
                np.save(file, picture.numpy())
                file.write(_sum(picture.numpy()))
        except OSError as error:
            raise OutputError(
                f"cannot write the decode cache {self.folder}: {error}. "
                "Choose another cache folder, or turn the decode cache off."
            ) from error

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.npy"


class LoadedImages:
    """Labelled images that threads load. ``room`` bytes of pictures stay in memory: the first ones, because
    with repeated passes over all of them, evicting the oldest would never give a hit.
    """

    def __init__(self, labels: Int[Tensor, "item"], room: int, threads: int) -> None:
        self.labels, self._room, self.threads = labels, room, threads
        self._pictures: dict[int, UInt8[Tensor, "3 height width"]] = {}

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Int[Tensor, "batch"]) -> list[UInt8[Tensor, "3 _height _width"]]:
        """The pictures at the given indices. Raises DataError naming an image that cannot be read."""
        numbers: list[int] = indices.tolist()
        unread = [index for index in dict.fromkeys(numbers) if index not in self._pictures]
        pictures = dict(zip(unread, in_parallel(self._picture, unread, self.threads), strict=True))
        for index, picture in pictures.items():
            if picture.nbytes <= self._room:
                self._pictures[index] = picture
                self._room -= picture.nbytes
        return [pictures[index] if index in pictures else self._pictures[index] for index in numbers]

    def content(self, index: int) -> bytes:
        """The bytes of an image's file, else its pixels. Raises DataError if it cannot be read."""
        raise NotImplementedError

    def _picture(self, index: int) -> UInt8[Tensor, "3 height width"]:
        raise NotImplementedError


class PhotoImages(LoadedImages):
    """Image files of a folder, decoded when they are loaded: with a store only once, without one
    ``cache_bytes`` of pictures stay in memory.

    The identity covers relative paths, labels, file sizes and the short side, not contents. The location is
    the folder's path, links resolved.
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
        sizes = [file_size(folder / path) for path in paths]
        faults = []
        for fault, fault_size in (("missing", None), ("empty (0 bytes)", 0)):
            faulty = [path for path, size in zip(paths, sizes, strict=True) if size == fault_size]
            if faulty:
                verb = "is" if len(faulty) == 1 else "are"
                faults.append(f"{len(faulty)} of {len(paths)} images {verb} {fault}, the first {faulty[0]}")
        if faults:
            raise DataError(f"{folder}: {'; '.join(faults)}. Is the data set unpacked completely? {SKIP}")
        super().__init__(labels, cache_bytes if store is None else 0, threads)
        self.folder, self.paths, self.short_side, self.store = folder, tuple(paths), short_side, store
        self.location = str(resolved(folder))
        items = zip(paths, labels.tolist(), sizes, strict=True)
        self.identity = fingerprint(str(short_side), *(str(part) for item in items for part in item))
        self._keys: dict[int, str] = {}

    def load(self, indices: Int[Tensor, "batch"]) -> list[UInt8[Tensor, "3 _height _width"]]:
        """The pictures at the given indices. Raises DataError naming a file that cannot be decoded."""
        try:
            return super().load(indices)
        except DataError as error:
            raise DataError(f"{error} {SKIP}") from error

    def content(self, index: int) -> bytes:
        """The bytes of an image's file. Raises DataError if it cannot be read."""
        return read_image(self.folder / self.paths[index])

    def _picture(self, index: int) -> UInt8[Tensor, "3 height width"]:
        path = self.folder / self.paths[index]
        if self.store is None:
            return decode(path, self.short_side)
        if index in self._keys and (stored := self.store.get(self._keys[index])) is not None:
            return stored
        content = read_image(path)
        key = self._keys[index] = self.store.key(content)
        picture = self.store.get(key)
        if picture is None:
            picture = decode(path, self.short_side, content)
            self.store.put(key, picture)
        return picture


def fill(images: Images, batch: int = 256) -> Iterator[tuple[int, int]]:
    """Load all images once to fill their store; yields the number of images and bytes of each batch."""
    for indices in torch.arange(len(images)).split(batch):
        pictures = images.load(indices)
        yield len(pictures), sum(picture.nbytes for picture in pictures)


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """Results of `work` for each item, in order, by threads: decoding and file access release the GIL.

    After an exception, such as one of SIGTERM, no work begins, and none that has begun is waited for.
    """
    if threads < 2 or len(items) < 2:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(min(threads, len(items)))
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _sum(picture: np.ndarray) -> bytes:
    """The checksum that follows a picture in its file, to detect overwritten files."""
    return zlib.crc32(np.ascontiguousarray(picture).data).to_bytes(4, "little")


def _sealed(picture: np.memmap) -> bool:
    with open(str(picture.filename), "rb") as file:
        file.seek(picture.offset + picture.nbytes)
        return file.read(5) == _sum(picture)
