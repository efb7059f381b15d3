"""Sets of image files, checked at construction and decoded when loaded, and of images in memory."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from dear.data.dataset import Images, Picture
from dear.data.fewshot import leave_subsets
from dear.data.images.decode import decode
from dear.data.images.forms import HASH_BYTES, content_of, file_hash, hash_bytes, hash_pixels, picture_of
from dear.data.images.thumbnails import SIDE, Thumbnail, Thumbnails, thumbnail
from dear.data.images.video import file_of
from dear.errors import DataError
from dear.reading.files import file_size, whole_path
from dear.reading.remote import is_address, within
from dear.text import fingerprint

CACHE_BYTES = 512 * 2**20
SKIP = (
    "`dear data check` names all such images; --dataset.broken skip, in Python DataSettings(broken='skip'), "
    "leaves them out."
)

PICTURES_AT_ONCE = 256  # that are in memory to make thumbnails of

View = Callable[[Picture, int], Any]
"""What is made of a picture, given its position among those that are loaded together."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class LoadedImages:
    """Labeled images that threads load. ``room`` bytes of pictures stay in memory, the first ones: in
    repeated passes over all of them, the oldest would always be gone before it is needed.
    """

    identity: str

    def __init__(self, labels: Int[Tensor, "item"], room: int, threads: int) -> None:
        self.labels, self._room, self.threads = labels, room, threads
        self.sizes: Sequence[int | None] = [None] * len(labels)  # of files, in bytes
        self.groups: Sequence[str] = [""] * len(labels)  # of images that belong together, such as twins
        self.thumbnails: Thumbnails | None = None  # if they were made to find near-duplicates
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

    def digest(self, index: int) -> bytes:
        """The hash of an image (`image_hashes`). Raises DataError if it cannot be read."""
        raise NotImplementedError

    def _picture(self, index: int) -> Picture:
        raise NotImplementedError


class PhotoImages(LoadedImages):
    """Image files of a folder, decoded when they are loaded; ``cache_bytes`` of pictures stay in memory.

    The identity covers relative paths, labels, file sizes, the short side and, if given, the hashes of the
    files' contents.
    """

    def __init__(
        self,
        folder: Path,
        rows: Sequence[tuple[str, int]],
        short_side: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        *,
        threads: int = 1,
        hashes: Mapping[str, bytes] = MappingProxyType({}),
        is_published: bool = False,
    ) -> None:
        """Check the file of each row, a path and a label; no file is opened. ``hashes`` of contents are by
        path, empty for a file that cannot be read; the identity of ``is_published`` images leaves them out.
        Raises DataError for a missing or empty file.
        """
        paths, labels = [path for path, _ in rows], [label for _, label in rows]
        super().__init__(torch.tensor(labels, dtype=torch.int64), cache_bytes, threads)
        # Of images at addresses a request each: at once.
        at_once = threads if any(map(is_address, paths)) else 1
        self.sizes = in_parallel(lambda path: file_size(file_of(within(folder, path))), paths, at_once)
        faults = []
        for fault, fault_size in (("missing", None), ("empty (0 bytes)", 0)):
            faulty = [path for path, size in zip(paths, self.sizes, strict=True) if size == fault_size]
            if faulty:
                verb = "is" if len(faulty) == 1 else "are"
                faults.append(f"{len(faulty)} of {len(paths)} images {verb} {fault}, the first {faulty[0]}")
        if faults:
            raise DataError(f"{folder}: {'; '.join(faults)}. Is the data set unpacked completely? {SKIP}")
        self.folder, self.paths, self.short_side = folder, tuple(paths), short_side
        self.hashes = [hashes.get(path, b"") for path in paths]
        self._digests = dict[int, bytes]()  # of the others, once they were read
        named = ("" if is_published else digest.hex() for digest in self.hashes)
        items = zip(paths, labels, self.sizes, named, strict=True)
        self.identity = fingerprint(
            str(short_side), *(str(part) for item in items for part in item if part != "")
        )

    def load(self, indices: Int[Tensor, "batch"], view: View | None = None) -> list[Any]:
        """As `LoadedImages.load`. Raises DataError naming the path of a file that cannot be decoded, without
        the folder, which of a zip is in the cache.
        """
        try:
            return super().load(indices, view)
        except DataError as error:
            raise DataError(f"{error} {SKIP}".replace(os.path.join(self.folder, ""), "")) from error

    def digest(self, index: int) -> bytes:
        """The hash of an image's file. Raises DataError if it cannot be read."""
        if not (known := self.hashes[index] or self._digests.get(index)):
            known = self._digests[index] = file_hash(within(self.folder, self.paths[index]))
        return known

    def _picture(self, index: int) -> Picture:
        return decode(within(self.folder, self.paths[index]), self.short_side)


class ObjectFacts(NamedTuple):
    """What a reading of an image in memory says: its shape and the SHA-256 of its pixels in hexadecimal, its
    hash (`hash_image`), and its thumbnail.
    """

    shape: str
    pixels: str
    digest: bytes
    thumbnail: Thumbnail

    @property
    def content(self) -> bytes:
        """What tells it from other pictures."""
        return f"{self.shape}{self.pixels}".encode()


class HeldImages(LoadedImages):
    """Labeled images in memory, or read by a function, each of which is identified by its pixels."""

    def __init__(
        self,
        rows: Sequence[tuple[str, int]],
        read: Callable[[str], Any],
        short_side: int | None = None,
        threads: int = 1,
        facts: Mapping[str, ObjectFacts] | None = None,
    ) -> None:
        """Images by the names in ``rows``; ``facts`` are by name, and by default of `read_objects`, which
        raises DataError naming an image that cannot be read.
        """
        labels, self._names = [label for _, label in rows], [name for name, _ in rows]
        super().__init__(torch.tensor(labels, dtype=torch.int64), CACHE_BYTES, threads)
        self.short_side, self._read = short_side, read
        facts = read_objects(self._names, read, short_side, threads) if facts is None else facts
        self._facts = [facts[name] for name in self._names]
        pixels = chain.from_iterable((each.shape, each.pixels) for each in self._facts)
        self.identity = fingerprint(str(short_side), *map(str, labels), *pixels)

    def digest(self, index: int) -> bytes:
        """As `hash_image`."""
        return self._facts[index].digest

    def place(self, index: int) -> str:
        """Where an image is in the data that was given (`place_of`)."""
        return place_of(self._names[index])

    def _picture(self, index: int) -> Picture:
        try:
            return picture_of(self._read(self._names[index]), self.short_side)
        except DataError as error:
            raise DataError(f"image {self._names[index]} of the data: {error}") from error


def place_of(name: str) -> str:
    """The index from 0 of an image in memory by its name, after its split if there are several."""
    split, _, row = name.rpartition("/")
    return "/".join([*([split] if split not in ("", "all") else []), row.lstrip("0") or "0"])


def read_objects(
    names: Sequence[str], read: Callable[[str], Any], short_side: int | None, threads: int
) -> dict[str, ObjectFacts]:
    """The facts of images that ``read`` gives by name, each read once and reduced to ``short_side``. Raises
    DataError naming an image that cannot be read.
    """

    def read_one(name: str) -> ObjectFacts:
        try:
            image = content_of(read(name))
            picture = picture_of(image, short_side)
        except DataError as error:
            raise DataError(f"image {name} of the data: {error}") from error
        is_file = isinstance(image, bytes)
        digest = hash_bytes(image) if is_file else hash_pixels(picture_of(image) if short_side else picture)
        pixels = hashlib.sha256(picture.numpy().tobytes()).hexdigest()
        return ObjectFacts(str(tuple(picture.shape)), pixels, digest, thumbnail(picture))

    return dict(zip(names, in_parallel(read_one, names, threads), strict=True))


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
    return in_parallel(images.digest, numbers.tolist(), images.threads)


def picture_names(images: Images) -> list[str]:
    """A name for the picture of each item, the same for the same content (`image_hashes`), whatever its file
    is called; where there is no content, for the same item. Raises as `image_hashes`.
    """
    base, items = leave_subsets(images, torch.arange(len(images)))
    distinct, where = items.unique(return_inverse=True)
    names = [digest.hex() for digest in image_hashes(base, distinct.tolist())]
    names = names or [str(item) for item in distinct.tolist()]
    return [names[at] for at in where.tolist()]


def name_image(images: Images, index: int) -> str:
    """The file of an image, or its index in the data that was given."""
    images, numbers = leave_subsets(images, torch.tensor([index]))
    number = int(numbers[0])
    if isinstance(images, PhotoImages):
        return whole_path(within(images.folder, images.paths[number]))
    return images.place(number) if isinstance(images, HeldImages) else str(number)


def group_names(images: Images) -> list[str]:
    """A name for the group of each item, if it is in one, else for its picture."""
    base, items = leave_subsets(images, torch.arange(len(images)))
    names, groups = picture_names(images), getattr(base, "groups", None)
    if groups is None:
        return names
    of_items = (groups[item] for item in items.tolist())
    return [f"group {group}" if group else name for group, name in zip(of_items, names, strict=True)]


def number_groups(images: Images) -> Int[Tensor, "item"] | None:
    """The number of each item's group; None if the data set has no groups."""
    base, _ = leave_subsets(images, torch.arange(len(images)))
    if not any(getattr(base, "groups", None) or ()):
        return None
    names = group_names(images)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names])


def distinct_pictures(images: Images) -> Int[Tensor, "picture"]:
    """The first item of each picture (`picture_names`) with each of its labels."""
    first = dict[tuple[str, int], int]()
    for item, key in enumerate(zip(picture_names(images), images.labels.tolist(), strict=True)):
        first.setdefault(key, item)
    return torch.tensor([*first.values()], dtype=torch.int64)


def make_thumbnails(images: Images) -> Thumbnails:
    """The thumbnail of each item, as it was made when the data was read, else anew. Raises DataError for an
    unreadable image.
    """
    base, items = leave_subsets(images, torch.arange(len(images)))
    if isinstance(base, LoadedImages) and base.thumbnails is not None:
        return base.thumbnails[items]
    parts = [torch.zeros(0, 3, SIDE, SIDE, dtype=torch.half)]
    for rows in items.split(PICTURES_AT_ONCE):
        parts += [thumbnail(picture)[None] for picture in base.load(rows)]
    return torch.cat(parts)


def split_hashes(hashes: bytes) -> set[bytes]:
    """The hashes of images, of which a bundle has all in one."""
    return {hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)}


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
