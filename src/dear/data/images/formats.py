"""Which files are images, by name and content. Images are untrusted: of a few formats, within limits.

Pillow is restricted to these formats. Otherwise it would pass PostScript to Ghostscript, which runs it.
Light to import: commands and readers of folders need no torch for it.
"""

import io
import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from PIL import Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from dear.errors import DataError
from dear.limits import LimitError, at_most
from dear.reading.files import ReadingError, read_bytes

HEIC: Final = frozenset([".heic", ".heif"])
HAS_HEIC: Final = find_spec("pillow_heif") is not None
SUFFIXES: Final = frozenset([
    ".apng", ".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo", ".png", ".tif", ".tiff",
    ".webp", *(HEIC if HAS_HEIC else ()),
])  # fmt: skip
"""Suffixes of image files when a folder is searched."""
FORMATS: Final = f"JPEG, PNG, WebP, GIF, BMP{', HEIC' if HAS_HEIC else ''} or TIFF"
PLUGINS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", *(["HEIF"] if HAS_HEIC else []))
"""Pillow's names of these formats."""
MARKER: Final = re.compile(rb"\xff([\xc0-\xcf\xd9-\xfe])")
"""A marker of a JPEG that is neither a byte of a picture nor a restart."""
ADDRESS: Final = re.compile(r"(https?|ftps?|s3|gs|hf|file):/|data:image")

# Pillow's own reader of uncompressed TIFFs cannot read YCbCr; libtiff gives the same pixels otherwise.
TiffImagePlugin.READ_LIBTIFF = True


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path. Raises DataError for an address: nothing is fetched."""
    if ADDRESS.match(os.fspath(path)):
        raise DataError(f"{os.fspath(path)[:100]} is an address, not a file: download it and give its path.")
    return Path(path)


def read_image(path: Path) -> bytes:
    """The content of an image file. Raises DataError for one that is missing, empty or too large."""
    if path.suffix.lower() in HEIC and not HAS_HEIC:
        raise DataError(f"cannot read the image {path}: HEIC needs `pip install pillow-heif`.")
    try:
        content = read_bytes(path, "image_bytes")
    except ReadingError as error:
        raise DataError(f"cannot read the image {path}: {error.reason}.") from error
    except LimitError as error:
        raise DataError(f"cannot read the image: {error}") from error
    if not content:
        raise DataError(f"cannot read the image {path}: it is empty (0 bytes).")
    return content


def open_image(content: bytes) -> ImageFile.ImageFile:
    """The first picture of an image file, not decoded yet. The caller must close it.

    Raises ValueError for an unsupported format, LimitError for more pixels or scans than the limits, and
    Pillow's exceptions for a broken header, which differ between formats.
    """
    _register_heic()
    if content.startswith(b"\xff\xd8"):  # each scan of a few bytes may cover the whole picture
        at_most("image_scans", _count_scans(content), "its content")
    try:
        file = Image.open(io.BytesIO(content), formats=PLUGINS)
    except UnidentifiedImageError:  # Pillow's message names the buffer, not the file
        raise ValueError(f"it is not an image of a supported format: {FORMATS}") from None
    width, height = file.size
    at_most("image_pixels", width * height, f"its header ({width} x {height})")
    return file


@cache
def _register_heic() -> None:
    if HAS_HEIC:
        import pillow_heif

        pillow_heif.register_heif_opener()


def _count_scans(jpeg: bytes) -> int:
    """The scans of a JPEG up to its end, behind which a phone may keep a video."""
    scans, position = 0, 2
    while (marker := MARKER.search(jpeg, position)) and marker[1] != b"\xd9":
        scans += marker[1] == b"\xda"
        position = marker.end() + int.from_bytes(jpeg[marker.end() : marker.end() + 2], "big")
    return scans
