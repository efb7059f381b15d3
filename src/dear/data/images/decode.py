"""Decode image files to upright 8-bit RGB pictures."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from dear.data.images.raster import naming, opened, orientation, read_image
from dear.errors import DataError, first_line

BAND = 64  # rows converted at a time
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transpose that makes a picture upright, by EXIF orientation."""


def decode(path: Path, short_side: int, data: bytes | None = None) -> UInt8[Tensor, "3 height width"]:
    """Decode an image file: rotated by its EXIF orientation, in RGB, transparency on white.

    A short side above `short_side` pixels is reduced to it (bicubic, antialiased). `data` is the file's
    content if it was read before. Raises DataError with the path and the reason.
    """
    content = read_image(path) if data is None else data
    try:
        with naming(path):
            upright = _upright(*_unpacked(content))
    except Exception as error:  # the exceptions of decoders differ between formats
        raise DataError(f"cannot read the image {path}: {first_line(error).rstrip('.')}.") from error
    return _picture(upright, short_side)


def as_picture(image: Image.Image, short_side: int) -> UInt8[Tensor, "3 height width"]:
    """The same for an open image. Raises ValueError for floating-point pixels."""
    return _picture(_upright(orientation(image), _rgb(image)), short_side)


def as_image(picture: UInt8[Tensor, "3 height width"]) -> Image.Image:
    """A picture as a Pillow image: the inverse of `as_picture`."""
    return Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy())


def _unpacked(content: bytes) -> tuple[int, Image.Image]:
    """The EXIF orientation and the image in RGB; the original pixels are freed with the file."""
    with opened(content) as file:
        file.load()
        return orientation(file), _rgb(file)


def _upright(turned: int, image: Image.Image) -> Image.Image:
    return image.transpose(TURNS[turned]) if turned in TURNS else image


def _picture(image: Image.Image, short_side: int) -> UInt8[Tensor, "3 height width"]:
    if min(image.size) > short_side:
        width, height = (side * short_side // min(image.size) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _rgb(image: Image.Image) -> Image.Image:
    """The image in RGB: 16 bits reduced to 8, transparency on white."""
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        return _in_bands(image, "L", _eight_bits).convert("RGB")
    if image.has_transparency_data:
        return _in_bands(image, "RGB", _on_white)
    return image if image.mode == "RGB" else image.convert("RGB")


def _in_bands(image: Image.Image, mode: str, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Apply a pixelwise conversion a few rows at a time, because it needs several copies of its input."""
    made = Image.new(mode, image.size)
    for top in range(0, image.height, BAND):
        bottom = min(top + BAND, image.height)
        made.paste(convert(image.crop((0, top, image.width, bottom))), (0, top))
    return made


def _eight_bits(image: Image.Image) -> Image.Image:
    """Reduce 16-bit grey to 8 bits; Pillow's own conversion would clip at 255."""
    levels = np.asarray(image).astype(np.float64).clip(0, 65535) / 257
    return Image.fromarray(levels.round().astype(np.uint8))


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
