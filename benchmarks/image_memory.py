"""Peak memory of one image of 40 megapixels while it is decoded, by format, mode and shape.

python benchmarks/image_memory.py [--megapixels 40] [--only TIFF] [--json] [--out FILE]

Each image is written by one process and decoded by another. A figure is what decoding adds to the resident
memory of the second at its highest, in MiB; the file's bytes, which are read at once, are part of it. "long"
is as high as Pillow writes in the format, up to 65,535 pixels. Needs a system that can fork.
"""

import argparse
import json
import multiprocessing
import os
import resource
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from table import table

from dear.data.images.decode import decode
from dear.evaluation.environment import peak, start_counting

SQUARE, LONG = "square", "long"
LONGEST = {"JPEG": 65_500, "WEBP": 16_383}
"""Pixels of the longer side that Pillow can write; 65,535 for the other formats."""
DEFLATE = {"compression": "tiff_deflate"}
STRIP = {"tiffinfo": {278: 65_535}}
"""One strip, which libtiff decodes as a whole."""
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "TIFF, RGB": ("TIFF", "RGB", {}),
    "TIFF, RGB, one strip": ("TIFF", "RGB", STRIP),
    "TIFF, RGBA, one strip": ("TIFF", "RGBA", STRIP),
    "TIFF, RGBA, deflate, one strip": ("TIFF", "RGBA", {**DEFLATE, **STRIP}),
    "TIFF, RGBA, deflate": ("TIFF", "RGBA", DEFLATE),
    "TIFF, CMYK, one strip": ("TIFF", "CMYK", STRIP),
    "TIFF, L": ("TIFF", "L", {}),
    "JPEG, RGB": ("JPEG", "RGB", {}),
    "JPEG, CMYK": ("JPEG", "CMYK", {}),
    "JPEG, RGB, progressive": ("JPEG", "RGB", {"progressive": True, "subsampling": 0}),
    "JPEG, CMYK, progressive": ("JPEG", "CMYK", {"progressive": True, "subsampling": 0}),
    "JPEG, L": ("JPEG", "L", {}),
    "BMP, RGB": ("BMP", "RGB", {}),
    "BMP, RGBA": ("BMP", "RGBA", {}),
    "BMP, L": ("BMP", "L", {}),
    "GIF, palette": ("GIF", "P", {}),
    "GIF, palette with transparency": ("GIF", "P", {"transparency": 0}),
    "WebP, RGB": ("WEBP", "RGB", {"method": 0}),
    "WebP, RGBA": ("WEBP", "RGBA", {"method": 0}),
    "WebP, RGBA, lossless": ("WEBP", "RGBA", {"method": 0, "lossless": True}),
    "PNG, RGB": ("PNG", "RGB", {}),
    "PNG, RGB, interlaced": ("PNG", "RGB", {"interlaced": True}),
    "PNG, RGB, noise": ("PNG", "RGB", {"noise": True}),
    "PNG, RGBA": ("PNG", "RGBA", {}),
    "PNG, RGBA, turned by EXIF": ("PNG", "RGBA", {"turned": True}),
    "PNG, 16-bit grey": ("PNG", "I;16", {}),
    "PNG, grey with transparency": ("PNG", "LA", {}),
    "PNG, L": ("PNG", "L", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megapixels", type=float, default=40)
    parser.add_argument("--only", default="", help="the kinds of images whose name contains this")
    parser.add_argument("--short-side", type=int, default=256, help="pixels that pictures are reduced to")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)  # its threads would not survive the fork
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        Image.new("RGB", (300, 300)).save(Path(folder, "small.png"))
        decode(Path(folder, "small.png"), 256)  # loads what every image needs, before processes are forked
        for kind in KINDS:
            if options.only.lower() in kind.lower():
                rows.append(row(kind, Path(folder, "image"), options))
                print(rows[-1], file=sys.stderr)
    report = json.dumps({"megapixels": options.megapixels, "rows": rows}, indent=2)
    if options.out:
        options.out.write_text(report + "\n", encoding="utf-8")
    print(report if options.json else "\n".join(table(rows)))


def row(kind: str, file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The peaks of one kind of image in every shape, and the highest."""
    peaks: dict[str, int] = {}
    size = 0
    for shape in (SQUARE, LONG):
        width, height = sides(KINDS[kind][0], shape, options.megapixels)
        in_child(write, file, kind, width, height)
        size = max(size, round(file.stat().st_size / 2**20))
        peaks[shape] = in_child(read, file, options.short_side)
    return {"image": kind, "file": size, **peaks, "highest": max(peaks.values())}


def sides(form: str, shape: str, megapixels: float) -> tuple[int, int]:
    """Width and height of an image of that many megapixels."""
    pixels = int(megapixels * 1e6)
    height = int(pixels**0.5) if shape == SQUARE else LONGEST.get(form, 65_535)
    return pixels // height, height


def in_child(step: Callable[..., int], *arguments: Any) -> int:
    """The result of a step in a process of its own."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(step, *arguments).result()


def write(file: Path, kind: str, width: int, height: int) -> int:
    """Write an image; returns its bytes."""
    Image.MAX_IMAGE_PIXELS = None
    form, mode, given = KINDS[kind]
    options = {"compress_level": 1, **given} if form == "PNG" else dict(given)
    if options.pop("interlaced", False):
        return file.write_bytes(interlaced(width, height))
    if options.pop("noise", False):
        image = Image.frombytes(mode, (width, height), os.urandom(len(mode) * width * height))
    else:
        image = Image.new(mode, (width, height), 20_000 if mode == "I;16" else 0)
    if options.pop("turned", False):
        exif = Image.Exif()
        exif[0x0112] = 6
        options["exif"] = exif
    image.save(file, form, **options)
    return file.stat().st_size


def interlaced(width: int, height: int) -> bytes:
    """A black RGB PNG in Adam7's seven passes, which Pillow does not write."""
    passes = (
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    )
    packer, data = zlib.compressobj(1), b""
    for left, top, across, down in passes:
        columns, rows = len(range(left, width, across)), len(range(top, height, down))
        for _ in range(rows if columns else 0):
            data += packer.compress(bytes(1 + 3 * columns))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    chunks = ((b"IHDR", header), (b"IDAT", data + packer.flush()), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def read(file: Path, short_side: int) -> int:
    """MiB that decoding the image adds to this process at its highest."""
    start_counting()
    start = peak()["resident"]
    decode(file, short_side)
    highest = peak()["resident"]
    if start is None or highest is None:
        raise SystemExit("the system does not report the peak of resident memory.")
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
    return round(max(highest, child) - start)


if __name__ == "__main__":
    main()
