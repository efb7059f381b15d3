"""Untrusted image files: which formats are read, and the checks before any pixel is decoded.

The format is determined by the first bytes, and Pillow is restricted to its plug-in. Otherwise Pillow would
pass PostScript to Ghostscript, which executes it, and decode icons in order to open them.
"""

import io
import os
import re
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import Any, Final, Literal

from PIL import Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from dear.data.images.jpeg import without_trailer
from dear.data.images.tiff import Directory
from dear.errors import DataError, warn
from dear.limits import LimitError, at_most, limit
from dear.reading.files import ReadingError, read_bytes

Kind = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]

SUFFIXES: Final = frozenset([
    ".apng", ".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo", ".png", ".tif",
    ".tiff", ".webp",
])  # fmt: skip
"""Suffixes of image files when a folder is searched."""

FOREIGN: Final = frozenset([
    ".ai", ".avif", ".cur", ".dcx", ".dds", ".djvu", ".emf", ".eps", ".epsf", ".epsi", ".fits", ".heic",
    ".heif", ".icns", ".ico", ".j2c", ".j2k", ".jp2", ".jpc", ".jpf", ".jpx", ".pbm", ".pcx", ".pdf", ".pgm",
    ".pnm", ".ppm", ".ps", ".psd", ".qoi", ".sgi", ".svg", ".svgz", ".tga", ".wmf", ".xbm", ".xpm",
])  # fmt: skip
"""Suffixes of unsupported image and document formats, refused whatever their content."""

PNG: Final = b"\x89PNG\r\n\x1a\n"
STARTS: Final[dict[Kind, tuple[bytes, ...]]] = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (PNG,),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
FORMATS: Final = "JPEG, PNG, WebP, GIF, BMP or TIFF"
EMPTY: Final = "it is empty (0 bytes)"

EXIF: Final = b"Exif\0\0"
PICTURES: Final = re.compile(rb"(\xff\xe2..)MPF\0", re.DOTALL)
"""A JPEG's list of further pictures (MPO), whose entries may name the same bytes again and again."""
MAX_EXIF: Final = 2**16
"""Bytes: the size of a JPEG segment. Many entries may refer to the same bytes and each is copied, so memory
can grow with the square of the size."""
SPARE: Final = 2**20  # bytes that may be read beyond the multiple of the file's length
MAX_READS: Final = 2**18
"""Steps in which Pillow may read a file: about three for each chunk of a PNG, segment of a JPEG, block of a
GIF. An image of the largest size in the usual 8 KiB chunks takes 2**17.4."""
FRAME: Final = rb"\x00[\x0b-\x26][\x08\x0c].{4}[\x01-\x0a]"
"""What follows the marker of a JPEG's frame: its length, precision, size and number of components."""
ARITHMETIC: Final = re.compile(rb"\xff[\xc9-\xcb\xcd-\xcf]" + FRAME, re.DOTALL)
SEVERAL_SCANS: Final = re.compile(rb"\xff[\xc2\xc6]" + FRAME, re.DOTALL)
SCANNED: Final = re.compile(rb"\xff\xda\x00[\x08\x0a\x0c\x0e]([\x01-\x04])", re.DOTALL)
"""The start of a scan, and how many components it has."""
MOST_SCANNED: Final = 36
"""Scans of a component of the largest image. libjpeg saves RGB in 14, CMYK in 24."""
MAX_PROFILES, MAX_TEXTS = 16, 64  # of a PNG, each unpacked to up to a megabyte
PNG_DATA: Final = (b"IDAT", b"fdAT", b"IEND")
MAX_SAMPLE_VALUE: Final = 281  # a tag of a TIFF
LOSSLESS: Final = (b"VP8L", b"ALPH", b"ANIM")
"""Chunks of a WebP with entropy-coded pixels, or with frames that may have them."""
ISOLATED_PIXELS, ISOLATED_BYTES = 2**18, 2**20
"""Up to both, a picture takes at most about a second."""
TILE: Final = 2**22  # pixels of a TIFF tile that are allowed for any picture size

# Pillow's own reader of uncompressed TIFFs makes a list of all tiles (1 KB for each byte of a hostile file)
# and cannot read YCbCr; libtiff, which reads the compressed ones, gives the same pixels.
TiffImagePlugin.READ_LIBTIFF = True


ADDRESS = re.compile(r"(https?|ftps?|s3|gs|hf|file):/|data:image")


class _Collector(threading.local):
    """Pillow's warnings while a thread reads an image, which do not name the file: collected, not issued.

    It stands for the pattern of the text in a filter of warnings. `warnings.catch_warnings` would change the
    filters of all threads, and images are decoded by several.
    """

    pattern, flags = r"(?!)", 0  # what others may take from a filter: a pattern that matches nothing

    def __init__(self) -> None:
        self.texts: list[str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process: the pattern that matches nothing."""
        return re.compile, (self.pattern,)

    def match(self, text: str) -> bool:
        """Collect a warning, if this thread reads an image; True then, which makes Python ignore it."""
        if self.texts is None:
            return False
        self.texts.append(text)
        return True


_collector = _Collector()
# Pillow warns above 89 million pixels; here the only limit is an error that names the file.
# It comes first: Python asks the collector about each warning that gets so far, whatever its category.
_FILTERS: Final[list[Any]] = [
    ("ignore", None, Image.DecompressionBombWarning, None, 0),
    ("ignore", _collector, UserWarning, re.compile(r"PIL\."), 0),
]


def _filter_warnings() -> None:
    """Put the filters first, where they decide. Whenever an image is read: filters that are set while a
    module is loaded are gone if that was within `warnings.catch_warnings`.
    """
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    if filters[: len(_FILTERS)] != _FILTERS:
        for entry in _FILTERS:
            with suppress(ValueError):
                filters.remove(entry)
        filters[:0] = _FILTERS


@contextmanager
def naming(path: Path) -> Iterator[list[str]]:
    """Issue what Pillow warns of within, such as damaged EXIF, as warnings that name the file: a list that
    grows.
    """
    _filter_warnings()
    texts: list[str] = []
    _collector.texts = texts
    try:
        yield texts
    finally:
        _collector.texts = None
    for text in dict.fromkeys(texts):
        warn(f"{path}: {text.strip().rstrip('.')}.")


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path. Raises DataError for an address: nothing is fetched."""
    if ADDRESS.match(os.fspath(path)):
        raise DataError(f"{os.fspath(path)[:100]} is an address, not a file: download it and give its path.")
    return Path(path)


def read_image(path: Path) -> bytes:
    """The content of an image file. Raises DataError for one that is missing, empty, too large, not a regular
    file or has an unsupported suffix.
    """
    try:
        if path.suffix.lower() in FOREIGN:
            raise ReadingError(path, f"{path.suffix} files are not supported; {FORMATS} files are")
        if content := read_bytes(path, "image_bytes", links=True):
            return content
        raise ReadingError(path, EMPTY)
    except ReadingError as error:
        raise DataError(f"cannot read the image {path}: {error.reason}.") from error
    except LimitError as error:
        raise DataError(f"cannot read the image: {error}") from error


def kind_of(content: bytes) -> Kind | None:
    """The format of an image by its first bytes; None if it is not supported."""
    for kind, starts in STARTS.items():
        if content.startswith(starts):
            return kind
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    return None


def opened(content: bytes) -> ImageFile.ImageFile:
    """The first picture of an image, undecoded, its size within the limit. The caller must close it.

    Raises LimitError above a limit, ValueError for an unsupported format, and Pillow's exceptions for a
    broken header, which differ between formats.
    """
    if not content:
        raise ValueError(EMPTY)
    kind = kind_of(content)
    if kind is None:
        raise ValueError(f"it is not an image of a supported format: {FORMATS}")
    if kind == "JPEG":
        content = without_trailer(content)
    _filter_warnings()
    source = _Bounded(_disarmed(kind, content), SPARE if kind == "GIF" else 4 * len(content) + SPARE)
    try:
        file = Image.open(source, formats=(kind,))
    except UnidentifiedImageError:  # Pillow's message names the buffer, not the file
        raise ValueError(f"it begins like {kind} but is not an image") from None
    source.budget = 4 * len(content) + SPARE
    width, height = file.size
    _require_size(width, height)
    if any(tile[0] == "bmp_rle" for tile in file.tile):  # which Pillow unpacks byte by byte, in Python
        raise ValueError("its BMP has run-length encoding: save it without")
    if kind == "JPEG":
        scanned = sum(components[0] for components in SCANNED.findall(content))
        if scanned * width * height > MOST_SCANNED * limit("image_pixels"):
            raise ValueError(f"it has too many scans for {width} x {height} pixels: save it with fewer")
    if kind == "TIFF":
        if (directory := Directory(content)).may_hold_jpegs():
            if SEVERAL_SCANS.search(content):
                raise ValueError("it holds a progressive JPEG: save it with another compression")
            directory.require_few_scans(len(SCANNED.findall(content)))
            _require_huffman(content)
        across, down = (_number(file, tag) for tag in (322, 323))
        if across * down > max(width * height, TILE):  # a tile is decoded as a whole
            raise ValueError(f"its tiles of {across} x {down} pixels are larger than the picture")
        if across and down:
            tiled = ceil(width / across) * across * ceil(height / down) * down
            if tiled > 4 * max(width * height, TILE):
                raise ValueError(f"its tiles of {across} x {down} pixels lie mostly beside the picture")
    return file


def pixels_to_isolate(content: bytes) -> int:
    """The number of pixels of an image that is decoded in a process of its own, with limits on time and
    memory: a TIFF, which has a dozen codecs, or a lossless WebP, whose tables may be larger than the picture.
    0 for small ones, and other formats. Raises as `opened` does.
    """
    kind = kind_of(content)
    if kind != "TIFF" and not (kind == "WEBP" and any(chunk in content for chunk in LOSSLESS)):
        return 0
    with opened(content) as file:
        pixels = file.width * file.height
    return pixels if pixels > ISOLATED_PIXELS or len(content) > ISOLATED_BYTES else 0


def orientation(image: Image.Image) -> int:
    """The EXIF orientation of an image, 1 for upright; damaged or overlong EXIF is ignored."""
    size = len(image.info.get("exif") or b"") + len(image.info.get("Raw profile type exif") or "") // 2
    if size > MAX_EXIF:
        return 1
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # Pillow's exceptions for damaged EXIF differ between formats
        return 1


def highest_level(file: ImageFile.ImageFile) -> int:
    """The highest level that the samples of a TIFF may have, as the file says; 0 if it says nothing."""
    levels = getattr(file, "tag_v2", {}).get(MAX_SAMPLE_VALUE, 0)
    levels = levels if isinstance(levels, tuple) else (levels,)
    return max((level for level in levels if isinstance(level, int)), default=0)


class _Bounded(io.BytesIO):
    """A buffer that limits the number of reads and of bytes read, counting repeated reads."""

    def __init__(self, content: bytes, budget: int) -> None:
        super().__init__(content)
        self.budget, self.reads = budget, 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.budget -= len(data)
        self.reads += 1
        if self.reads > MAX_READS:
            raise ValueError("it is in far more pieces than its picture needs")
        if self.budget < 0:
            raise ValueError("it contains far more data than its picture needs")
        return data


def _disarmed(kind: Kind, content: bytes) -> bytes:
    """The content without parts that are costly for their length once Pillow opens them; offsets are kept."""
    if kind == "JPEG":
        # Each scan covers the whole picture but may take only a few bytes. FF DA has no other meaning.
        at_most("image_scans", content.count(b"\xff\xda"), "its content")
        _require_huffman(content)
        if b"MPF\0" in content:  # the list of further pictures
            content = PICTURES.sub(rb"\1none", content)
        if content.count(EXIF) > 1:  # Pillow joins the segments
            first = content.find(EXIF) + len(EXIF)
            return content[:first] + content[first:].replace(EXIF, b"None\0\0")
    if kind == "PNG":
        if content.count(b"iCCP") > MAX_PROFILES:
            raise ValueError(f"it has more than {MAX_PROFILES} colour profiles")
        if content.count(b"iTXt") + content.count(b"zTXt") > MAX_TEXTS:
            raise ValueError(f"it has more than {MAX_TEXTS} compressed texts")
        return _still(content)
    if kind == "TIFF":
        directory = Directory(content)
        directory.require_modest()
        return directory.hidden()
    return content


def _still(content: bytes) -> bytes:
    """A PNG without the chunk by which Pillow takes it for an animation, for whose first frame it fills a
    picture of any size. Raises LimitError for a header of too many pixels, ValueError for too many chunks.
    """
    parts, start, position = list[bytes](), 0, len(PNG)
    for _ in range(MAX_READS):
        if len(content) < position + 12 or (kind := content[position + 4 : position + 8]) in PNG_DATA:
            return b"".join([*parts, content[start:]]) if parts else content
        end = position + 12 + int.from_bytes(content[position : position + 4], "big")
        if kind == b"IHDR":
            _require_size(*struct.unpack_from(">II", content.ljust(position + 16, b"\0"), position + 8))
        if kind == b"acTL":
            parts.append(content[start:position])
            start = end
        position = end
    raise ValueError("it is in far more pieces than its picture needs")


def _require_size(width: int, height: int) -> None:
    at_most("image_side", max(width, height), f"its header ({width} x {height})")
    at_most("image_pixels", width * height, f"its header ({width} x {height})")


def _require_huffman(content: bytes) -> None:
    """Raise ValueError for a JPEG with arithmetic coding, which a few bytes keep busy for long."""
    if ARITHMETIC.search(content):
        raise ValueError("its JPEG has arithmetic coding, which browsers do not read either: save it again")


def _number(file: ImageFile.ImageFile, tag: int) -> int:
    value = getattr(file, "tag_v2", {}).get(tag, 0)
    return value if isinstance(value, int) else 0
