"""Sets of image files, checked at construction and decoded when loaded, and of images as Python has them:
paths, Pillow images, arrays, tensors, bytes.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor

from dear.data.dataset import Images, Picture, fingerprint
from dear.data.fewshot import leave_subsets
from dear.data.images.decode import as_image, as_picture, decode, local_path, read_image
from dear.data.images.thumbnails import SIDE, Thumbnails, thumbnail
from dear.errors import DataError
from dear.reading.files import file_size

CACHE_BYTES = 512 * 2**20
SKIP = (
    "`dear data check` names all such images; --dataset.broken skip, in Python DataSettings(broken='skip'), "
    "leaves them out."
)

HASH_BYTES = 8  # among a million images against another million, one in 10^7 draws has a false match

TAKEN = (
    "give a path, a Pillow image, an array (height x width x 3) or tensor (3 x height x width), a gray one "
    "with 1 for the 3 or without it, or the bytes of an image file, or one that is open"
)
STACK = "several gray images are N x 1 x height x width, or a list"
PICTURES_AT_ONCE = 256  # that are in memory to make thumbnails of
_decoding = threading.Lock()  # an image that the user opened is not thread-safe

View = Callable[[Picture, int], Any]
"""What is made of a picture, given its position among those that are loaded together."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class LoadedImages:
    """Labeled images that threads load. ``room`` bytes of pictures stay in memory: the first ones, because
    with repeated passes over all of them, evicting the oldest would never give a hit.
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
    ) -> None:
        """Check the file of each row, a path and a label; no file is opened. ``hashes`` of contents are by
        path, empty for a file that cannot be read. Raises DataError for a missing or empty file.
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
        self.hashes = [hashes.get(path, b"") for path in paths]
        items = zip(paths, labels, self.sizes, (digest.hex() for digest in self.hashes), strict=True)
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
        return self.hashes[index] or file_hash(self.folder / self.paths[index])

    def _picture(self, index: int) -> Picture:
        return decode(self.folder / self.paths[index], self.short_side)


class HeldImages(LoadedImages):
    """Labeled images in memory, or read by a function. Each is read once to check it and to identify it by
    its pixels, of which it keeps ``hashes``.
    """

    def __init__(
        self,
        rows: Sequence[tuple[str, int]],
        read: Callable[[str], Any],
        short_side: int | None = None,
        threads: int = 1,
    ) -> None:
        """Read the image of every row by its name. Raises DataError naming an image that cannot be read."""
        labels = [label for _, label in rows]
        super().__init__(torch.tensor(labels, dtype=torch.int64), CACHE_BYTES, threads)
        self.short_side, self._names, self._read = short_side, [name for name, _ in rows], read
        self._digests = dict[int, bytes]()
        pictures = self.load(torch.arange(len(rows)), _shape_and_hash)
        self.identity = fingerprint(str(short_side), *map(str, labels), *chain.from_iterable(pictures))
        self.hashes = ["".join(picture).encode() for picture in pictures]

    def digest(self, index: int) -> bytes:
        """As `hash_image`. Raises DataError if it cannot be read."""
        if index not in self._digests:
            self._digests[index] = hash_image(self._read(self._names[index]))
        return self._digests[index]

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


def _shape_and_hash(picture: Picture, _position: int) -> tuple[str, str]:
    return str(tuple(picture.shape)), hashlib.sha256(picture.numpy().tobytes()).hexdigest()


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


def file_hash(path: Path) -> bytes:
    """The hash of one image file."""
    return _hash(read_image(path))


def hash_image(image: Any) -> bytes:
    """The hash of an image's file, else of its shape and pixels. Raises DataError if it cannot be read."""
    if isinstance(image, str | os.PathLike):
        return file_hash(local_path(image))
    if is_open_file(image):
        image = _read_open(image)
    if isinstance(image, bytes | bytearray | memoryview):
        return _hash(bytes(image))
    return hash_pixels(picture_of(image))


def hash_pixels(picture: Picture) -> bytes:
    """The hash of a picture in memory."""
    return _hash(b"".join((str(tuple(picture.shape)).encode(), picture.numpy().tobytes())))


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


def is_image(value: Any) -> bool:
    """Whether a value stands for a single image, not for several. Of arrays and tensors the number of axes
    decides, whatever their sizes: three are an image in color, or a gray one with an axis of 1.
    """
    if isinstance(value, np.ndarray | Tensor):
        return value.ndim not in (1, 4)  # a row of paths, a batch
    if isinstance(value, str | os.PathLike):
        return not os.path.isdir(value)
    return isinstance(value, bytes | bytearray | memoryview | Image.Image) or is_open_file(value)


def is_open_file(value: Any) -> bool:
    """Whether a value is an open file, whose lines would else be taken for images."""
    methods = (getattr(value, name, None) for name in ("read", "seek"))
    return not isinstance(value, Image.Image) and all(map(callable, methods))


def _read_open(file: Any) -> bytes:
    """The content of an open file, from its start on. Raises DataError if it is open as text."""
    file.seek(0)
    if isinstance(content := file.read(), str):
        raise DataError('the image file is open as text: open it with mode "rb".')
    return bytes(content)


def picture_of(image: Any, short_side: int | None = None) -> Picture:
    """The upright 8-bit RGB picture of an image in any form, reduced to ``short_side`` as by `decode`.

    Numbers in [0, 1] are rounded to 8 bits. Raises DataError for an unreadable image or another type.
    """
    if isinstance(image, str | os.PathLike):
        return decode(local_path(image), short_side)
    if is_open_file(image):
        image = _read_open(image)
    if isinstance(image, bytes | bytearray | memoryview):
        return decode(Path(f"of {len(image)} bytes"), short_side, bytes(image))
    if isinstance(image, np.ndarray):
        if image.ndim not in (2, 3) or image.dtype.kind not in "biuf":
            raise refused_image(image)
        if image.dtype.kind == "i" and image.size and image.min() >= 0 and image.max() <= 255:
            image = image.astype(np.uint8)  # arithmetic of uint8 arrays gives int64
        channels_last = image.ndim == 3 and image.shape[2] in (1, 3)
        pixels = torch.from_numpy(np.array(image, np.uint8 if image.dtype == np.uint8 else float))
        image = pixels.permute(2, 0, 1) if channels_last else pixels
    if isinstance(image, Tensor):
        image = image[None] if image.ndim == 2 else image
        if image.ndim != 3 or len(image) not in (1, 3) or not image.numel():
            raise refused_image(image)
        image = image.expand(3, -1, -1)
        if image.dtype == torch.bool:
            image = image.float()
        elif not image.is_floating_point() and image.dtype != torch.uint8:
            image = image.to(torch.uint8) if 0 <= int(image.min()) <= int(image.max()) <= 255 else image
        if image.dtype != torch.uint8:
            require_unit(image)
            image = image.detach().mul(255).round().to(torch.uint8)
        return as_picture(as_image(image.cpu()), short_side)
    if not isinstance(image, Image.Image):
        raise refused_image(image)
    try:
        with _decoding:
            return as_picture(image, short_side)
    except (OSError, ValueError, SyntaxError) as error:  # pixels are decoded on access
        raise DataError(f"the image cannot be read: {error}.") from error


def require_unit(pixels: Tensor) -> None:
    """Raise DataError unless all pixels are numbers in [0, 1]."""
    if not pixels.is_floating_point():
        raise refused_image(pixels)
    if not bool(((pixels >= 0) & (pixels <= 1)).all()):
        low, high = float(pixels.min()), float(pixels.max())
        raise DataError(
            f"the image has numbers from {low:.3g} to {high:.3g}: give uint8, or numbers in [0, 1], without "
            "CLIP's normalization, which is part of the model."
        )


def refused_image(value: Any) -> DataError:
    """The error for a value that is no image."""
    kind, stack = type(value).__name__, ""
    if isinstance(value, np.ndarray | Tensor):
        kind += f" of {str(value.dtype).removeprefix('torch.')} and shape {tuple(value.shape)}"
        stack = f"; {STACK}" if value.ndim == 3 else ""
    return DataError(f"{kind} is not an image: {TAKEN}{stack}.")
