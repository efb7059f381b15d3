"""Sets of image files, checked at construction and decoded when loaded."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from dear.data.dataset import Images, Picture, fingerprint
from dear.data.fewshot import leave_subsets
from dear.data.images.decode import decode, read_image
from dear.errors import DataError
from dear.reading.files import file_size

CACHE_BYTES = 512 * 2**20
SKIP = (
    "`dear data check` names all such images; --dataset.broken skip, in Python DataSettings(broken='skip'), "
    "leaves them out."
)

HASH_BYTES = 8  # among a million images against another million, one in 10^7 draws has a false match

View = Callable[[Picture, int], Any]
"""What is made of a picture, given its position among those that are loaded together."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class LoadedImages:
    """Labelled images that threads load. ``room`` bytes of pictures stay in memory: the first ones, because
    with repeated passes over all of them, evicting the oldest would never give a hit.
    """

    def __init__(self, labels: Int[Tensor, "item"], room: int, threads: int) -> None:
        self.labels, self._room, self.threads = labels, room, threads
        self.sizes: Sequence[int | None] = [None] * len(labels)  # of files, in bytes
        self._pictures: dict[int, Picture] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Int[Tensor, "batch"], view: View | None = None) -> list[Any]:
        """The pictures at the given indices, or their views: ``view`` of a picture and its position among
        these. Raises DataError naming an image that cannot be read.
        """
        return in_parallel(lambda item: self._load(*item, view), [*enumerate(indices.tolist())], self.threads)

    def _load(self, position: int, index: int, view: View | None) -> Any:
        picture = self._pictures.get(index)
        if picture is None:
            picture = self._picture(index)
            with self._lock:
                if index not in self._pictures and picture.nbytes <= self._room:
                    self._pictures[index] = picture
                    self._room -= picture.nbytes
        return picture if view is None else view(picture, position)

    def content(self, index: int) -> bytes:
        """The bytes of an image's file, else its pixels. Raises DataError if it cannot be read."""
        raise NotImplementedError

    def _picture(self, index: int) -> Picture:
        raise NotImplementedError


class PhotoImages(LoadedImages):
    """Image files of a folder, decoded when they are loaded; ``cache_bytes`` of pictures stay in memory.

    The identity covers relative paths, labels, file sizes and the short side, not contents. The location is
    the folder's path, links resolved.
    """

    def __init__(
        self,
        folder: Path,
        rows: Sequence[tuple[str, int]],
        short_side: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        *,
        threads: int = 1,
    ) -> None:
        """Check the file of each row, a path and a label, without opening it. Raises DataError for a missing
        or empty file.
        """
        paths, labels = [path for path, _ in rows], [label for _, label in rows]
        super().__init__(torch.tensor(labels, dtype=torch.int64), cache_bytes, threads)
        self.sizes = [file_size(folder / path) for path in paths]
        faults = []
        for fault, fault_size in (("missing", None), ("empty (0 bytes)", 0)):
            faulty = [path for path, size in zip(paths, self.sizes, strict=True) if size == fault_size]
            if faulty:
                verb = "is" if len(faulty) == 1 else "are"
                faults.append(f"{len(faulty)} of {len(paths)} images {verb} {fault}, the first {faulty[0]}")
        if faults:
            raise DataError(f"{folder}: {'; '.join(faults)}. Is the data set unpacked completely? {SKIP}")
        self.folder, self.paths, self.short_side = folder, tuple(paths), short_side
        self.location = str(Path(folder).resolve())
        items = zip(paths, labels, self.sizes, strict=True)
        self.identity = fingerprint(str(short_side), *(str(part) for item in items for part in item))

    def load(self, indices: Int[Tensor, "batch"], view: View | None = None) -> list[Any]:
        """As `LoadedImages.load`. Raises DataError naming a file that cannot be decoded."""
        try:
            return super().load(indices, view)
        except DataError as error:
            raise DataError(f"{error} {SKIP}") from error

    def content(self, index: int) -> bytes:
        """The bytes of an image's file. Raises DataError if it cannot be read."""
        return read_image(self.folder / self.paths[index])

    def _picture(self, index: int) -> Picture:
        return decode(self.folder / self.paths[index], self.short_side)


def image_hashes(images: Images, indices: Iterable[int] | None = None) -> list[bytes]:
    """BLAKE2b of the bytes of each image's file, or of the pixels of an image in memory; of all images or of
    those at ``indices``. By it a bundle knows the images that it was fitted on. Empty for the Attribute
    World, whose images are neither. A picture that was saved again counts as another. Raises DataError for
    an unreadable image.
    """
    numbers = torch.tensor([*(range(len(images)) if indices is None else indices)], dtype=torch.int64)
    images, numbers = leave_subsets(images, numbers)
    if not isinstance(images, LoadedImages):
        return []
    content = images.content
    return in_parallel(lambda index: _hash(content(index)), numbers.tolist(), images.threads)


def file_hash(path: Path) -> bytes:
    """The same of one image file."""
    return _hash(read_image(path))


def split_hashes(hashes: bytes) -> set[bytes]:
    """The hashes of images, of which a bundle has all in one."""
    return {hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)}


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()


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
