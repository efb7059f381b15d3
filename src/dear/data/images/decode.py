"""Image files: which are images, by name and content, and their upright 8-bit RGB pictures.

Images are untrusted. Pillow is restricted to a few formats, within limits; otherwise it would pass PostScript
to Ghostscript, which runs it. Light to import: commands and readers of folders need no torch for it.
"""

import io
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PIL import Image, ImageCms, ImageFile, TiffImagePlugin, UnidentifiedImageError, features

from dear.data.images.video import HELP, HOW, is_video, read_frame, split_frame
from dear.errors import DataError, first_line
from dear.limits import LimitError, require_at_most
from dear.reading.files import ReadingError, read_bytes
from dear.reading.remote import as_path

if TYPE_CHECKING:
    from dear.data.dataset import Picture

HEIC: Final = frozenset([".heic", ".heif"])
HAS_HEIC: Final = find_spec("pillow_heif") is not None
HAS_AVIF: Final = bool(features.check("avif"))
SUFFIXES: Final = frozenset([
    ".apng", ".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo", ".pbm", ".pgm", ".png", ".pnm",
    ".ppm", ".tif", ".tiff", ".webp", *(HEIC if HAS_HEIC else ()), *([".avif"] if HAS_AVIF else []),
])  # fmt: skip
"""Suffixes of image files when a folder is searched."""
FORMATS: Final = (
    f"JPEG, PNG, WebP, GIF, BMP, PPM{', AVIF' if HAS_AVIF else ''}{', HEIC' if HAS_HEIC else ''} or TIFF"
)
PLUGINS: Final = (
    "JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF",
    *(["HEIF"] if HAS_HEIC else []), *(["AVIF"] if HAS_AVIF else []),
)  # fmt: skip
"""Pillow's names of these formats."""
MARKER: Final = re.compile(rb"\xff([\xc0-\xcf\xd9-\xfe])")
"""A marker of a JPEG that is neither a byte of a picture nor a restart."""
INLINE: Final = "data:image"

MOST_SQUARES: Final = 16
"""A picture that is longer than so many squares is cut to its middle before it is reduced."""
DARK: Final = 2**12
"""A 16-bit picture without any level above this has 12 bits or fewer, and would be black."""
ROUNDING: Final = 3
"""Levels of 255 by which sRGB profiles of different makers differ."""
ORIENTATION: Final = 0x0112
TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transpose that makes a picture upright, by EXIF orientation. Pillow's `exif_transpose` also writes the
EXIF data anew, which fails for photographs whose other tags are damaged."""


_opening = threading.Lock()
_open_now: Final = list[int | None]()
"""Pillow's limit of pixels, once for each picture that is being opened."""

# Pillow's own reader of uncompressed TIFFs cannot read YCbCr; libtiff gives the same pixels otherwise.
TiffImagePlugin.READ_LIBTIFF = True


def image_path(path: str | os.PathLike[str]) -> Path:
    """The path of an image file, or its address. Raises DataError for an address that is not read."""
    if (text := os.fspath(path)).startswith(INLINE):
        raise DataError(f"{text[:40]}... is the content of an image, not its path: give its bytes.")
    return as_path(path)


def read_image(path: Path) -> bytes:
    """The content of an image file, or of a frame of a video. Raises DataError for one that is missing, empty
    or too large.
    """
    if frame := split_frame(path):
        return read_frame(*frame)
    if is_video(path) and path.is_file():
        raise DataError(f"cannot read the image {path}: it is a video: {HOW} ({HELP}).")
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
        require_at_most("image_scans", _count_scans(content), "its content")
    try:
        with _without_limit_of_pillow():
            file = Image.open(io.BytesIO(content), formats=PLUGINS)
    except UnidentifiedImageError:  # Pillow's message names the buffer, not the file
        raise ValueError(f"it is not an image of a supported format: {FORMATS}") from None
    width, height = file.size
    require_at_most("image_pixels", width * height, f"its header ({width} x {height})")
    return file


@contextmanager
def _without_limit_of_pillow() -> Iterator[None]:
    """Context in which Pillow leaves the number of pixels to `require_at_most`, which names its variable: it
    would warn above 89 million, and refuse twice as many whatever the limit is. Pictures are opened in
    threads, and the last one restores its limit.
    """
    with _opening:
        _open_now.append(Image.MAX_IMAGE_PIXELS if not _open_now else _open_now[0])
        Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        with _opening:
            before = _open_now.pop()
            if not _open_now:
                Image.MAX_IMAGE_PIXELS = before


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


def decode(
    path: Path, short_side: int | None = None, data: bytes | None = None, *, coarse: bool = False
) -> "Picture":
    """Decode an image file: rotated by its EXIF orientation, in RGB, transparency on white, or on black where
    all would be white.

    A short side above `short_side` pixels is reduced to it (bicubic, antialiased), and of a picture that is
    more than 16 times as long as it is wide the middle is used. `data` is the file's content if it was read
    before; a JPEG that is `coarse` has down to an eighth of its size, to see quickly whether it can be read.
    Raises DataError with the path and the reason.
    """
    return _as_tensor(decode_image(path, short_side, data, coarse=coarse))


def decode_image(
    path: Path, short_side: int | None = None, data: bytes | None = None, *, coarse: bool = False
) -> Image.Image:
    """`decode` as an image of Pillow, without torch."""
    content = read_image(path) if data is None else data
    try:
        with open_image(content) as file:
            if coarse:
                file.draft("RGB", (64, 64))
            return _make_plain(file, short_side)
    except Exception as error:  # the exceptions of decoders differ between formats
        raise DataError(f"cannot read the image {path}: {first_line(error).rstrip('.')}.") from error


def as_picture(image: Image.Image, short_side: int | None = None) -> "Picture":
    """`decode` for an open image, loaded or not. Raises ValueError for pixels of 32 bits, and of 12 in 16."""
    return _as_tensor(_make_plain(image, short_side))


def _make_plain(image: Image.Image, short_side: int | None) -> Image.Image:
    """An image upright and in RGB, reduced to a short side. Raises as `as_picture`."""
    image.load()  # which turns a TIFF upright, and removes its orientation
    if image.format == "PPM" and image.mode == "I":  # more than 8 bits, which Pillow scales to 16
        image = image.point(lambda level: level * (1 / 257) + 0.5).convert("L")
    image = _convert_to_rgb(_convert_profile(_make_upright(image)), white_is_zero=_is_white_zero(image))
    if short_side is not None:
        image = _reduce(image, short_side)
    return image


def _as_tensor(image: Image.Image) -> "Picture":
    import numpy as np
    import torch  # the other functions need none of it

    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def as_image(picture: "Picture") -> Image.Image:
    """A picture as a Pillow image: the inverse of `as_picture`."""
    return Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy())


def encode_png(image: Image.Image) -> bytes:
    """The bytes of a PNG file."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _convert_profile(image: Image.Image) -> Image.Image:
    """The image with the colors of its embedded profile in sRGB, as screens show it. One of 16 bits stays,
    and one with a profile that is damaged or of another kind of pixels.
    """
    profile = image.info.get("icc_profile")
    if not isinstance(profile, bytes) or image.mode not in ("RGB", "RGBA", "P", "L", "LA", "CMYK"):
        return image
    alpha = image.convert("RGBA").getchannel("A") if image.has_transparency_data else None
    mode = "L" if image.mode in ("L", "LA") else "CMYK" if image.mode == "CMYK" else "RGB"
    if (transform := _transform_to_srgb(profile, mode)) is None:
        return image
    converted: Image.Image = transform.apply(image.convert(mode))
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


@lru_cache(16)
def _transform_to_srgb(profile: bytes, mode: str) -> Any:
    """What converts pixels of a profile to sRGB; None if it cannot, or if they are in sRGB already: then no
    level changes by more than the rounding of such profiles.
    """
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        target = ImageCms.createProfile("sRGB")
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        flags = ImageCms.Flags.BLACKPOINTCOMPENSATION
        transform = ImageCms.buildTransform(source, target, mode, "RGB", intent, flags)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None
    if mode == "CMYK":
        return transform
    levels = bytes(range(0, 256, 15))
    probe = Image.frombytes("L", (len(levels), 1), levels)
    if mode == "RGB":
        colors = bytes(level for color in product(levels, repeat=3) for level in color)
        probe = Image.frombytes("RGB", (len(levels) ** 3, 1), colors)
    pairs = zip(transform.apply(probe).tobytes(), probe.convert("RGB").tobytes(), strict=True)
    return transform if max(abs(new - old) for new, old in pairs) > ROUNDING else None


def _make_upright(image: Image.Image) -> Image.Image:
    try:
        turned = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF: Pillow's exceptions differ between formats
        return image
    return image.transpose(TURNS[turned]) if turned in TURNS else image


def _reduce(image: Image.Image, short_side: int) -> Image.Image:
    if max(image.size) > MOST_SQUARES * min(image.size):
        longest = MOST_SQUARES * min(image.size)
        left, top = (max(0, side - longest) // 2 for side in image.size)
        image = image.crop((left, top, left + min(image.width, longest), top + min(image.height, longest)))
    if min(image.size) <= short_side:
        return image
    sides = [side * short_side // min(image.size) for side in image.size]
    return image.resize(sides, Image.Resampling.BICUBIC)


def _is_white_zero(image: Image.Image) -> bool:
    """True for a TIFF with 0 for white. Pillow inverts those of 8 bits or fewer, but not those of 16."""
    tags = getattr(image, "tag_v2", {})
    return bool(tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == 0)


def _convert_to_rgb(image: Image.Image, *, white_is_zero: bool) -> Image.Image:
    """The image in RGB: 16 bits reduced to 8, with ``white_is_zero`` inverted; transparency on white, or on
    black if all would be white.
    """
    if image.mode in ("F", "I"):
        numbers = "floating-point" if image.mode == "F" else "32-bit or signed"
        raise ValueError(f"{numbers} pixels have no agreed range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # Pillow's own conversion would clip at 255
        import numpy as np

        levels: Any = np.asarray(image)
        if white_is_zero and 0 < levels.max() < DARK:
            raise ValueError(
                "its 16-bit levels, of which 0 is white, are below 4096: they have 12 bits, or it is bright. "
                "Save it with 8 bits, of which 0 is black"
            )
        if 0 < levels.max() < DARK:
            raise ValueError(
                "its 16-bit levels are below 4096: they have 12 bits, or it is dark. Save it with 8 bits: "
                "`magick IN -evaluate multiply 16 -depth 8 OUT.png` for 12 bits, "
                "`magick IN -depth 8 OUT.png` if dark"
            )
        levels = 65535 - levels if white_is_zero else levels
        return Image.fromarray((levels / (65535 / 255)).round().astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        shown = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        levels = shown.getextrema()
        if levels == ((255, 255),) * 3:  # such as a white icon
            shown = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image).convert("RGB")
        return shown
    return image if image.mode == "RGB" else image.convert("RGB")
