"""Which files are images, by name, and their bytes. Light to import: commands and readers of folders need no
torch for it.
"""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dear.errors import DataError
from dear.limits import LimitError
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
ADDRESS: Final = re.compile(r"(https?|ftps?|s3|gs|hf|file):/|data:image")


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
