"""Pictures as they are sent to a server."""

import io
import struct
import zlib

import torch
from PIL import Image


def picture(seed: int = 0, width: int = 31, height: int = 29) -> Image.Image:
    noise = torch.randint(
        0, 256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )
    return Image.fromarray(noise.numpy())


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def bomb(width: int = 10_000, height: int = 6_000) -> bytes:
    """A black PNG of 60 megapixels in a few kilobytes, whole and well-formed."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((1 + width // 8) * height), 9)
    parts = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
