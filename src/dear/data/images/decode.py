"""Decode image files to upright 8-bit RGB pictures."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from dear.data.images.raster import (
    highest_level,
    kind_of,
    naming,
    opened,
    orientation,
    pixels_to_isolate,
    read_image,
)
from dear.errors import DataError, DearError, first_line
from dear.reading.isolated import isolated

BAND = 2**19  # pixels converted at a time
SECONDS, PIXELS_A_SECOND = 2, 15_000_000
"""Seconds of the processor for a picture in a process of its own, and pixels for each further one."""
MEMORY, BYTES_A_PIXEL = 2**27, {"TIFF": 14, "WEBP": 19}
"""Bytes of memory that it may take, and further ones for each pixel: measured were 10 for 16 bits of four
samples in a strip of a TIFF, and 19 for a lossless WebP with transparency."""
MOST_SQUARES = 16
"""Of a picture that is longer than so many squares the middle is used: a line of pixels is no picture, and
takes hundreds of times the memory of one when its shorter side has become that of the others."""
DARK = 2**12
"""A 16-bit picture without any level above this is one of 12 bits or fewer, and would be black."""
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


def decode(
    path: Path, short_side: int | None = None, data: bytes | None = None
) -> UInt8[Tensor, "3 height width"]:
    """Decode an image file: rotated by its EXIF orientation, in RGB, transparency on white.

    A short side above `short_side` pixels is reduced to it (bicubic, antialiased), and of a picture that is
    more than 16 times as long as it is wide the middle is used. `data` is the file's content if it was read
    before. Large TIFFs and lossless WebPs are decoded in a process of their own. Raises DataError with the
    path and the reason.
    """
    content = read_image(path) if data is None else data
    try:
        with naming(path) as warned:
            if not (pixels := pixels_to_isolate(content)):
                return _picture(_upright(*_unpacked(content)), short_side)
            kind = str(kind_of(content))
            rows, warnings = isolated(
                partial(_in_a_process, content, short_side, warned),
                f"its {kind}",
                seconds=SECONDS + pixels // PIXELS_A_SECOND,
                memory=MEMORY + BYTES_A_PIXEL[kind] * pixels,
            )
            warned[:] = warnings
            return _channels_first(rows)
    except Exception as error:  # the exceptions of decoders differ between formats
        raise DataError(f"cannot read the image {path}: {first_line(error).rstrip('.')}.") from error


def _in_a_process(
    content: bytes, short_side: int | None, warned: list[str]
) -> tuple[UInt8[np.ndarray, "height width 3"], list[str]]:
    """The picture and the warnings, without torch, whose threads a fork lacks. Raises DataError."""
    try:
        return np.array(_reduced(_upright(*_unpacked(content)), short_side)), warned
    except (DearError, MemoryError):
        raise
    except Exception as error:
        raise DataError(first_line(error)) from error


def as_picture(image: Image.Image, short_side: int | None = None) -> UInt8[Tensor, "3 height width"]:
    """`decode` for an open image. Raises ValueError for pixels of 32 bits, and of 12 in 16."""
    return _picture(_upright(orientation(image), _rgb(image)), short_side)


def as_image(picture: UInt8[Tensor, "3 height width"]) -> Image.Image:
    """A picture as a Pillow image: the inverse of `as_picture`."""
    return Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy())


def _unpacked(content: bytes) -> tuple[int, Image.Image]:
    """The EXIF orientation and the image in RGB; the original pixels are freed with the file."""
    with opened(content) as file:
        form = str(file.tile)  # names how samples are stored, until they are loaded
        file.load()
        deep = highest_level(file) >= DARK  # as the file says, then it is a dark picture
        if ";16" in form and "I;16" not in form and not deep:  # Pillow keeps the upper 8 bits of each sample
            colours = [band for band in file.getbands() if band != "A"]
            _require_light([file.getchannel(band).getextrema()[1] for band in colours], DARK // 256)
        return orientation(file), _rgb(file, packed="I;12" in form, deep=deep)


def _upright(turned: int, image: Image.Image) -> Image.Image:
    return image.transpose(TURNS[turned]) if turned in TURNS else image


def _picture(image: Image.Image, short_side: int | None) -> UInt8[Tensor, "3 height width"]:
    return _channels_first(np.array(_reduced(image, short_side)))


def _reduced(image: Image.Image, short_side: int | None) -> Image.Image:
    if short_side is None:
        return image
    if max(image.size) > MOST_SQUARES * min(image.size):
        longest = MOST_SQUARES * min(image.size)
        left, top = (max(0, side - longest) // 2 for side in image.size)
        image = image.crop((left, top, left + min(image.width, longest), top + min(image.height, longest)))
    if min(image.size) <= short_side:
        return image
    width, height = (side * short_side // min(image.size) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def _channels_first(rows: UInt8[np.ndarray, "height width 3"]) -> UInt8[Tensor, "3 height width"]:
    return torch.from_numpy(rows).permute(2, 0, 1).contiguous()


def _rgb(image: Image.Image, *, packed: bool = False, deep: bool = False) -> Image.Image:
    """The image in RGB: 16 bits, or 12 if they are packed, reduced to 8; transparency on white. ``deep`` says
    that 16 bits are not fewer in fact.
    """
    if image.mode in ("F", "I"):
        numbers = "floating-point" if image.mode == "F" else "32-bit or signed"
        raise ValueError(f"{numbers} pixels have no agreed range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        if not packed and not deep:
            _require_light([int(np.asarray(image).max())], DARK)
        return _in_bands(image, "L", partial(_eight_bits, white=4095 if packed else 65535)).convert("RGB")
    if image.has_transparency_data:
        return _in_bands(image, "RGB", _on_white)
    return image if image.mode == "RGB" else image.convert("RGB")


def _in_bands(image: Image.Image, mode: str, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Apply a pixelwise conversion a few rows at a time, because it needs several copies of its input."""
    converted, rows = Image.new(mode, image.size), max(1, BAND // image.width)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        converted.paste(convert(image.crop((0, top, image.width, bottom))), (0, top))
    return converted


def _require_light(highest: Sequence[Any], dark: int) -> None:
    """Raise ValueError if the highest 16-bit levels of a picture are those of fewer bits; black passes."""
    if 0 < max(highest) < dark:
        raise ValueError(
            "its 16-bit levels are below 4096: they have 12 bits, or it is dark. Save it with 8 bits: "
            "`magick IN -evaluate multiply 16 -depth 8 OUT.png` for 12 bits, `magick IN -depth 8 OUT.png` "
            "if dark"
        )


def _eight_bits(image: Image.Image, white: int) -> Image.Image:
    """Reduce grey to 8 bits; Pillow's own conversion would clip at 255."""
    levels = np.asarray(image).astype(np.float64) / (white / 255)
    return Image.fromarray(levels.round().astype(np.uint8))


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
