"""Image files from anywhere: which kinds are read, and what is judged before a pixel is unpacked.

The kind is told by the first bytes and Pillow gets that one plug-in. Left to choose, it would hand PostScript
to Ghostscript, which runs it, and unpack icons in order to open them.
"""

import io
import re
import warnings
from pathlib import Path
from typing import Final, Literal

from PIL import Image, ImageFile, UnidentifiedImageError, features

from dear.errors import DataError
from dear.limits import LimitError, at_most
from dear.reading.files import ReadingError, read_bytes

Kind = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"]

SUFFIXES: Final = frozenset([
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo", ".png", ".tif",
    ".tiff", ".webp",
])  # fmt: skip
"""What counts as an image file where a folder is searched for them."""

FOREIGN: Final = frozenset([
    ".ai", ".cur", ".dcx", ".dds", ".djvu", ".emf", ".eps", ".epsf", ".epsi", ".fits", ".heic", ".heif",
    ".icns", ".ico", ".j2c", ".j2k", ".jp2", ".jpc", ".jpf", ".jpx", ".pbm", ".pcx", ".pdf", ".pgm",
    ".pnm", ".ppm", ".ps", ".psd", ".qoi", ".sgi", ".svg", ".svgz", ".tga", ".wmf", ".xbm", ".xpm",
])  # fmt: skip
"""Names of pictures and documents of other kinds: refused whatever is in them."""

STARTS: Final[dict[Kind, tuple[bytes, ...]]] = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
READ: Final = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
EMPTY: Final = "it is empty (0 bytes)"

EXIF: Final = b"Exif\0\0"
MOST_EXIF: Final = 2**16
"""Bytes, all that a segment of a JPEG holds. Entries may name the same bytes again and again and each is
copied, so that what is made of them grows with the square."""
SPARE: Final = 2**20  # bytes read beyond what the file's length grants
TILE: Final = 2**22  # pixels of a TIFF's tile, whatever the size of its picture

# Pillow warns from 89 million pixels on; here there is one limit, an error that names the file.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def read_image(path: Path) -> bytes:
    """The content of an image file. Raises DataError for one that is missing, empty, too large, no plain file
    or of a foreign name.
    """
    try:
        if path.suffix.lower() in FOREIGN:
            raise ReadingError(path, f"{path.suffix} files are not read; {READ} files are")
        if content := read_bytes(path, "image_bytes"):
            return content
        raise ReadingError(path, EMPTY)
    except ReadingError as error:
        raise DataError(f"cannot read the image {path}: {error.reason}.") from error
    except LimitError as error:
        raise DataError(f"cannot read the image: {error}") from error


def kind_of(content: bytes) -> Kind | None:
    """What kind of image begins so; None for any that is not read."""
    for kind, starts in STARTS.items():
        if content.startswith(starts):
            return kind
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    if content[4:8] == b"ftyp" and content[8:12] in (b"avif", b"avis", b"mif1", b"msf1"):
        return "AVIF" if features.check("avif") else None
    return None


def opened(content: bytes) -> ImageFile.ImageFile:
    """An image's first picture, none of its pixels unpacked, its size within the limit. To be closed.

    Raises LimitError above a limit, ValueError for a kind that is not read, and what Pillow raises on a
    broken header, which differs from kind to kind.
    """
    if not content:
        raise ValueError(EMPTY)
    kind = kind_of(content)
    if kind is None:
        raise ValueError(f"it is no image of a kind that is read: {READ}")
    source = _Bounded(_disarmed(kind, content), SPARE if kind == "GIF" else 4 * len(content) + SPARE)
    try:
        file = Image.open(source, formats=(kind,))
    except UnidentifiedImageError:  # its own text names the buffer, not the file
        raise ValueError(f"it begins as {kind} and is no image") from None
    source.left = 4 * len(content) + SPARE
    width, height = file.size
    at_most("image_pixels", width * height, f"its header ({width} x {height})")
    if kind == "TIFF":
        tile = [_number(file, tag) for tag in (322, 323)]
        if tile[0] * tile[1] > max(width * height, TILE):  # a tile is unpacked as a whole
            raise ValueError(f"its tiles of {tile[0]} x {tile[1]} pixels are larger than the picture")
    return file


def orientation(image: Image.Image) -> int:
    """How EXIF says that an image is turned, 1 for not at all; damaged or overlong EXIF says nothing."""
    given = len(image.info.get("exif") or b"") + len(image.info.get("Raw profile type exif") or "") // 2
    if given > MOST_EXIF:
        return 1
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # what Pillow raises on damaged EXIF differs from format to format
        return 1


class _Bounded(io.BytesIO):
    """A content of which only so many bytes are read, those read twice counted twice."""

    def __init__(self, content: bytes, left: int) -> None:
        super().__init__(content)
        self.left = left

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.left -= len(data)
        if self.left < 0:
            raise ValueError("it holds far more beside its picture than a picture needs")
        return data


def _disarmed(kind: Kind, content: bytes) -> bytes:
    """The content without what costs far more than its length as soon as Pillow opens it; offsets stay."""
    if kind == "JPEG":
        # Each scan goes over the whole picture; a few bytes are enough for one. FF DA is nothing else.
        at_most("image_scans", content.count(b"\xff\xda"), "it")
        if (first := content.find(EXIF) + len(EXIF)) >= len(EXIF):  # Pillow joins the segments
            return content[:first] + content[first:].replace(EXIF, b"None\0\0")
    if kind == "AVIF":  # how it is turned is told elsewhere: the type of the item is taken from it
        return re.sub(rb"(infe(?:.{8}|.{10}))Exif", rb"\1none", content, flags=re.DOTALL)
    return content


def _number(file: ImageFile.ImageFile, tag: int) -> int:
    value = getattr(file, "tag_v2", {}).get(tag, 0)
    return value if isinstance(value, int) else 0
