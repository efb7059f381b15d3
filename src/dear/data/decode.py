"""From an image file to an 8-bit RGB picture as people see it."""

import io
import warnings
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from dear.errors import DataError, first_line

MOST_PIXELS = 2**27
"""134 million: a picture above it is refused before its pixels are unpacked (a decompression bomb)."""

SUFFIXES = frozenset(
    [
        ".avif",
        ".bmp",
        ".gif",
        ".jfif",
        ".jp2",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".pbm",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    ]
)
"""What counts as an image file where a folder is searched for them."""

# Pillow warns from 89 million pixels on; here there is one limit, an error that names the file.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def decode(path: Path, short_side: int, data: bytes | None = None) -> UInt8[Tensor, "3 height width"]:
    """Read an image file as people see it: turned as its EXIF says, in RGB, transparent parts on white.

    A short side above `short_side` pixels is brought down to it (bicubic, antialiased). `data` is the file's
    content where it was read already. Errors: DataError with the path and the reason.
    """
    try:
        content = path.read_bytes() if data is None else data
        if not content:
            raise ValueError("it is empty (0 bytes)")
        with Image.open(io.BytesIO(content)) as file:
            if file.width * file.height > MOST_PIXELS:
                raise ValueError(
                    f"{file.width} x {file.height} pixels are above the limit of {MOST_PIXELS:,}"
                )
            file.load()
            return as_picture(file, short_side)
    except PermissionError as error:
        raise DataError(f"cannot read the image {path}: no permission.") from error
    except Exception as error:  # what a decoder raises on broken bytes differs from format to format
        raise DataError(f"cannot read the image {path}: {_reason(error)}.") from error


def as_picture(image: Image.Image, short_side: int) -> UInt8[Tensor, "3 height width"]:
    """The same of an image that is open already. Raises ValueError for floating-point pixels."""
    image = _rgb(_turned(image))
    if min(image.size) > short_side:
        width, height = (side * short_side // min(image.size) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def as_image(picture: UInt8[Tensor, "3 height width"]) -> Image.Image:
    """A picture as Pillow has it: the inverse of `as_picture`."""
    return Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy())


def _turned(image: Image.Image) -> Image.Image:
    """As EXIF says; as it is where that is damaged, as viewers show it."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # what Pillow raises on damaged EXIF differs from format to format
        return image


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # its own text names the buffer, not the file
        return "it is no image in a format that Pillow knows"
    return first_line(error).rstrip(".")


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits, grey: Pillow's own conversion would clip at 255
        levels = np.asarray(image).astype(np.float64).clip(0, 65535) / 257
        image = Image.fromarray(levels.round().astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
