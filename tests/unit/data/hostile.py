"""Image files that ask for far more than their length: small, and harmless where they are refused."""

import io
import re
import struct
import zlib
from typing import Any

from PIL import Image

Tag = tuple[int, int, int, bytes]
"""Number, type, count, and the four bytes of the value or of its place."""


def saved(form: str, size: tuple[int, int] = (8, 8), mode: str = "RGB", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, form, **options)
    return stream.getvalue()


def bmp(compression: int, pixels: bytes, size: tuple[int, int] = (4, 2)) -> bytes:
    """A BMP with a palette: 8 bits a pixel, of which RLE4 has 4."""
    bits = 4 if compression == 2 else 8
    head = struct.pack("<IiiHHIIiiII", 40, *size, 1, bits, compression, len(pixels), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(pixels), 0, 0, 1078) + head + bytes(1024) + pixels


def directory(tags: list[Tag], rest: bytes) -> bytes:
    """A TIFF with one directory; ``rest`` follows it."""
    head = b"II*\0" + struct.pack("<IH", 8, len(tags))
    return head + b"".join(struct.pack("<HHI", *tag[:3]) + tag[3] for tag in sorted(tags)) + bytes(4) + rest


def long(number: int, value: int) -> Tag:
    return number, 4, 1, struct.pack("<I", value)


def pointing(count: int, size: int, first: int = 1000, others: int = 0) -> list[Tag]:
    """Tags that all name the same bytes, behind a directory of ``others`` more tags."""
    start = struct.pack("<I", 8 + 2 + 12 * (count + others) + 4)
    return [(first + number, 7, size, start) for number in range(count)]


def repeating_exif(count: int = 2000, size: int = 500_000) -> bytes:
    """EXIF of ``size`` bytes that reads as ``count`` times as many."""
    return b"Exif\0\0" + directory(pointing(count, size), bytes(size))


def repeating_tiff(count: int = 2000, size: int = 500_000) -> bytes:
    """The same as a picture of its own."""
    plain = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 278: 8, 279: 64}
    tags = [long(*one) for one in plain.items()]
    return directory(tags + pointing(count, size, others=len(tags)), bytes(size))


def jpeg_of_exif(exif: bytes) -> bytes:
    """A JPEG whose EXIF goes on from segment to segment; without JFIF, so that Pillow reads it at once."""
    plain, body = saved("JPEG"), exif.removeprefix(b"Exif\0\0")
    parts = (body[start : start + 65_000] for start in range(0, len(body), 65_000))
    segments = (b"\xff\xe1" + struct.pack(">H", 8 + len(part)) + b"Exif\0\0" + part for part in parts)
    return plain[:2] + b"".join(segments) + plain[20:]


def large_tile(side: int) -> bytes:
    """A picture of 8 x 8 pixels in one tile of ``side`` x ``side``."""
    data, count = zlib.compress(bytes(side * side), 9), 10
    plain = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 325: len(data)}
    tags = [long(*one) for one in plain.items()] + [long(324, 8 + 2 + 12 * count + 4)]
    return directory(tags, data)


def outside_tiles(across: int, down: int, count: int) -> bytes:
    """A picture of one row in ``count`` tiles, of which most lies below it and which share their bytes."""
    data = zlib.compress(bytes(across * down), 9)
    places = 8 + 2 + 12 * 10 + 4
    plain = {256: across * count, 257: 1, 258: 8, 259: 8, 262: 1, 277: 1, 322: across, 323: down}
    tags: list[Tag] = [long(*one) for one in plain.items()]
    tags += [
        (324, 4, count, struct.pack("<I", places)),
        (325, 4, count, struct.pack("<I", places + 4 * count)),
    ]
    start, sizes = struct.pack("<I", places + 8 * count), struct.pack("<I", len(data))
    return directory(tags, start * count + sizes * count + data)


def long_comment(length: int) -> bytes:
    """A GIF with a comment of so many bytes."""
    plain = saved("GIF")
    at = 13 + 3 * (2 << (plain[10] & 7))
    blocks = (b"\xff" + b"a" * 255) * (length // 255)
    return plain[:at] + b"\x21\xfe" + blocks + b"\0" + plain[at:]


def many_scans(count: int, progressive: bool = True) -> bytes:
    """A JPEG whose last scan stands there so often that there are ``count``."""
    plain = saved("JPEG", (64, 64), "L", progressive=progressive)
    starts = [one.start() for one in re.finditer(b"\xff\xda", plain)]
    last = plain[starts[-1] : -2]
    return plain[:-2] + last * (count - len(starts)) + plain[-2:]


def jpeg_in_tiff(jpeg: bytes, side: int, *others: Tag) -> bytes:
    """A TIFF whose only strip is a JPEG of this side, with other tags."""
    start = len(directory([long(0, 0)] * (9 + len(others)), b""))
    tags = {256: side, 257: side, 258: 8, 262: 6, 273: start, 277: 3, 278: side, 279: len(jpeg)}
    return directory([*(long(*tag) for tag in tags.items()), compressed(7), *others], jpeg)


def compressed(kind: int) -> Tag:
    """The tag of a TIFF's compression: 7 is JPEG, 8 Deflate."""
    return 259, 3, 1, struct.pack("<HH", kind, 0)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def many_chunks(kind: bytes, data: bytes, count: int) -> bytes:
    """A PNG with so many more chunks before its pixels."""
    plain = saved("PNG")
    at = plain.index(b"IDAT") - 4
    return plain[:at] + chunk(kind, data) * count + plain[at:]


def many_segments(segment: bytes, count: int) -> bytes:
    """A JPEG with so many more segments at its start."""
    plain = saved("JPEG")
    return plain[:2] + (b"\xff" + segment) * count + plain[2:]


def of_size(form: str, width: int, height: int) -> bytes:
    """An image of the size that its header states; its pixels are those of another."""
    plain = saved(form)
    if form == "PNG":
        return plain[:8] + chunk(b"IHDR", struct.pack(">II", width, height) + plain[24:29]) + plain[33:]
    tags = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 278: height, 279: 64}
    return directory([long(*tag) for tag in tags.items()], b"")


def big_tiff(count: int) -> bytes:
    """A picture of 8 x 8 pixels as a BigTIFF of so many tags, at least nine."""
    plain = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 16, 278: 8, 279: 64}
    tags = [(number, 4, 1, value) for number, value in plain.items()]
    tags += [(60_000, 4, 1, 0)] * (count - len(tags))
    packed = b"".join(struct.pack("<HHQQ", *tag) for tag in tags)
    return b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, count) + packed + bytes(64)


def small_tiles(side: int) -> bytes:
    """A picture of as many tiles as pixels; the place of each takes one byte."""
    tiles, start = side * side, struct.pack("<I", 8 + 2 + 12 * 10 + 4)
    plain = {256: side, 257: side, 258: 8, 259: 1, 262: 1, 277: 1, 322: 1, 323: 1}
    places: list[Tag] = [(number, 1, tiles, start) for number in (324, 325)]
    return directory([long(*tag) for tag in plain.items()] + places, b"\x01" * tiles)


def deep_png(level: int) -> bytes:
    """A PNG of 8 x 8 pixels of three samples of 16 bits, all of one level."""
    rows = (b"\0" + struct.pack(">H", level) * 24) * 8
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def packed_12_bits(levels: Any) -> bytes:
    """A grey TIFF of 12 bits a sample, two in three bytes; the width is even."""
    height, width = levels.shape
    pairs = levels.reshape(-1, 2).tolist()
    data = b"".join((first << 12 | second).to_bytes(3, "big") for first, second in pairs)
    plain = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 273: 8 + 2 + 12 * 9 + 4, 277: 1}
    plain |= {278: height, 279: len(data)}
    return directory([long(*tag) for tag in plain.items()], data)


def icon(side: int = 64) -> bytes:
    """An icon that holds a PNG of any size: Pillow unpacks it to open it."""
    held = saved("PNG", (side, side), "RGBA")
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 0, 0, 0, 0, 1, 32, len(held), 22) + held


POSTSCRIPT = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
(written) (w) file dup (by PostScript) writestring closefile
showpage
%%EOF
"""


def further_pictures(jpeg: bytes, entries: int) -> bytes:
    """A JPEG with a list of further pictures (MPO), whose entries all name the same numbers."""
    start = 8 + 2 + 12 * entries + 4
    count = (65_529 - start) // 8
    head = b"MM\0*" + struct.pack(">LH", 8, entries)
    named = b"".join(struct.pack(">HHLL", 1000 + number, 5, count, start) for number in range(entries))
    segment = b"MPF\0" + head + named + bytes(4) + b"\x81\x93\x85\xfb\x71\x95\x87\x99" * count
    return jpeg[:2] + b"\xff\xe2" + struct.pack(">H", len(segment) + 2) + segment + jpeg[2:]


def tiff_with_exif(entries: int, rationals: int) -> bytes:
    """A TIFF whose EXIF has entries that all name the same numbers, of 8 bytes each."""
    tags = [long(*one) for one in {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 277: 1, 278: 8, 279: 64}.items()]
    start = 8 + 2 + 12 * (len(tags) + 2) + 4
    exif = start + 8 * rationals
    tags += [long(273, start), long(34665, exif)]
    numbers = struct.pack("<II", 3, 7) * rationals
    named = (struct.pack("<HHII", 40_000 + number, 5, rationals, start) for number in range(entries))
    return directory(tags, numbers + struct.pack("<H", entries) + b"".join(named) + bytes(4))


def shared_strips(rows: int, size: int) -> bytes:
    """A TIFF with a strip for each row, all of which name the same bytes."""
    start = 8 + 2 + 12 * 9 + 4
    tags = [long(*one) for one in {256: 1, 257: rows, 258: 8, 259: 8, 262: 1, 277: 1, 278: 1}.items()]
    tags += [
        (tag, 4, rows, struct.pack("<I", start + 4 * rows * part)) for part, tag in enumerate((273, 279))
    ]
    strip = zlib.compress(b"\x80").ljust(size, b"\0")
    values = struct.pack("<I", start + 8 * rows) * rows + struct.pack("<I", size) * rows
    return directory(tags, values + strip)
