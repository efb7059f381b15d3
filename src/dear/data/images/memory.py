"""Images as Python has them (paths, Pillow images, arrays, tensors, bytes), and a labelled set of them."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from dear.data.dataset import Picture, fingerprint
from dear.data.images.decode import as_image, as_picture, decode, local_path, read_image
from dear.data.images.photos import CACHE_BYTES, LoadedImages
from dear.errors import DataError

TAKEN = (
    "give a path, a Pillow image, an array (height x width x 3) or tensor (3 x height x width), a gray one "
    "without the 3, or the bytes of an image file"
)
_decoding = threading.Lock()  # an open image is not thread-safe


def is_image(value: Any) -> bool:
    """Whether a value stands for a single image, not for several."""
    if isinstance(value, np.ndarray | Tensor):
        return value.ndim not in (1, 4)  # a row of paths, a batch
    if isinstance(value, str | os.PathLike):
        return not os.path.isdir(value)
    return isinstance(value, bytes | bytearray | memoryview | Image.Image)


def each_image(images: Any) -> Iterator[Any]:
    """The images of a list, a batch, a torch Dataset or a DataLoader, or the image itself. Labels that come
    with them, as (image, number), and other columns than "image" are left out.

    Raises DataError for what is neither an image nor several.
    """
    if is_image(images) or isinstance(images, str | os.PathLike):
        yield images
    elif isinstance(images, DataLoader):
        for batch in map(_image_of, images):
            pairs = isinstance(batch, list | tuple) and batch and not is_image(_image_of(batch[0]))
            yield from map(_image_of, batch[0] if pairs else batch)  # images, then their labels
    elif isinstance(images, Mapping) or not (hasattr(images, "__iter__") or hasattr(images, "__getitem__")):
        raise _refused(images)
    elif hasattr(images, "__iter__"):
        yield from map(_image_of, images)
    else:
        yield from (_image_of(images[index]) for index in range(len(images)))


def picture_of(image: Any, short_side: int | None = None) -> Picture:
    """The upright 8-bit RGB picture of an image in any form, reduced to ``short_side`` as by `decode`.

    Numbers in [0, 1] are rounded to 8 bits. Raises DataError for an unreadable image or another type.
    """
    if isinstance(image, str | os.PathLike):
        return decode(local_path(image), short_side)
    if isinstance(image, bytes | bytearray | memoryview):
        return decode(Path(f"of {len(image)} bytes"), short_side, bytes(image))
    if isinstance(image, np.ndarray):
        channels_last = image.ndim == 3 and image.shape[2] == 3
        if not (channels_last or image.ndim == 2 or image.shape[:-2] == (3,)) or image.dtype.kind not in "uf":
            raise _refused(image)
        pixels = torch.from_numpy(np.array(image, np.uint8 if image.dtype == np.uint8 else float))
        image = pixels.permute(2, 0, 1) if channels_last else pixels
    if isinstance(image, Tensor):
        image = image.expand(3, *image.shape) if image.ndim == 2 else image
        if image.ndim != 3 or len(image) != 3 or not image.numel():
            raise _refused(image)
        if image.dtype != torch.uint8:
            require_unit(image)
            image = image.detach().mul(255).round().to(torch.uint8)
        image = as_image(image.cpu())
    if not isinstance(image, Image.Image):
        raise _refused(image)
    try:
        with _decoding:
            return as_picture(image, short_side)
    except (OSError, ValueError, SyntaxError) as error:  # pixels are decoded on access
        raise DataError(f"the image cannot be read: {error}.") from error


def require_unit(pixels: Tensor) -> None:
    """Raise DataError unless all pixels are numbers in [0, 1]."""
    if not pixels.is_floating_point():
        raise _refused(pixels)
    if not bool(((pixels >= 0) & (pixels <= 1)).all()):
        low, high = float(pixels.min()), float(pixels.max())
        raise DataError(
            f"the image has numbers from {low:.3g} to {high:.3g}: give uint8, or numbers in [0, 1], without "
            "CLIP's normalization, which is part of the model."
        )


class HeldImages(LoadedImages):
    """Labelled images in memory, or read by a function. Each is read once to check it and to identify it by
    its pixels.
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
        pictures = self.load(torch.arange(len(rows)), _shape_and_hash)
        self.identity = fingerprint(str(short_side), *map(str, labels), *chain.from_iterable(pictures))

    def content(self, index: int) -> bytes:
        """The bytes of an image's file, else its shape and pixels. Raises DataError if it cannot be read."""
        image = self._read(self._names[index])
        if isinstance(image, str | os.PathLike):
            return read_image(local_path(image))
        if isinstance(image, bytes | bytearray | memoryview):
            return bytes(image)
        (picture,) = self.load(torch.tensor([index]))
        return b"".join((str(tuple(picture.shape)).encode(), picture.numpy().tobytes()))

    def _picture(self, index: int) -> Picture:
        try:
            return picture_of(self._read(self._names[index]), self.short_side)
        except DataError as error:
            raise DataError(f"image {self._names[index]} of the data: {error}") from error


def _shape_and_hash(picture: Picture, _position: int) -> tuple[str, str]:
    return str(tuple(picture.shape)), hashlib.sha256(picture.numpy().tobytes()).hexdigest()


def _image_of(item: Any) -> Any:
    """The image of an item of a data set: it may come with its label, or as a column."""
    if isinstance(item, Mapping) and "image" in item:
        return item["image"]
    if isinstance(item, tuple | list) and len(item) == 2:
        labelled = isinstance(item[1], Integral) or (isinstance(item[1], Tensor) and not item[1].ndim)
        return item[0] if labelled else item
    return item


def _refused(value: Any) -> DataError:
    kind = type(value).__name__
    if isinstance(value, np.ndarray | Tensor):
        kind += f" of {str(value.dtype).removeprefix('torch.')} and shape {tuple(value.shape)}"
    return DataError(f"{kind} is not an image: {TAKEN}.")
