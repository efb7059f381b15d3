"""The picture and the hash of an image in any form: a path, a Pillow image, an array, a tensor or bytes."""

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dear.data.dataset import Picture
from dear.data.images.decode import as_image, as_picture, decode, image_path, read_image
from dear.errors import DataError
from dear.reading.files import is_folder

HASH_BYTES = 8  # among a million images against another million, one in 10^7 draws has a false match

TAKEN = (
    "give a path, a Pillow image, an array (height x width x 3) or tensor (3 x height x width), a gray one "
    "with 1 for the 3 or without it, or the bytes of an image file, or one that is open"
)
STACK = "several gray images are N x 1 x height x width, or a list"

_decoding = threading.Lock()  # an image that the user opened is not thread-safe


def file_hash(path: Path) -> bytes:
    """The hash of one image file."""
    return hash_bytes(read_image(path))


def hash_image(image: Any) -> bytes:
    """The hash of an image's file, else of its shape and pixels. Raises DataError if it cannot be read."""
    content = content_of(image)
    return hash_bytes(content) if isinstance(content, bytes) else hash_pixels(picture_of(content))


def content_of(image: Any) -> Any:
    """The bytes of an image that is a file, open, or bytes; any other image itself. Raises DataError."""
    if isinstance(image, str | os.PathLike):
        return read_image(image_path(image))
    if is_open_file(image):
        return _read_open(image)
    return bytes(image) if isinstance(image, bytearray | memoryview) else image


def hash_pixels(picture: Picture) -> bytes:
    """The hash of a picture in memory."""
    return hash_bytes(b"".join((str(tuple(picture.shape)).encode(), picture.numpy().tobytes())))


def hash_bytes(content: bytes) -> bytes:
    """The hash of the content of a file."""
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()


def is_image(value: Any) -> bool:
    """Whether a value stands for a single image, not for several. Of arrays and tensors the number of axes
    decides, whatever their sizes: three are an image in color, or a gray one with an axis of 1.
    """
    if isinstance(value, np.ndarray | Tensor):
        return value.ndim not in (1, 4)  # a row of paths, a batch
    if isinstance(value, str | os.PathLike):
        return not is_folder(value)
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
        return decode(image_path(image), short_side)
    image = content_of(image)
    if isinstance(image, bytes):
        return decode(Path(f"of {len(image)} bytes"), short_side, image)
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
