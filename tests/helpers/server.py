"""A server in a thread, and pictures as they are sent to it."""

import io
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from PIL import Image


@contextmanager
def serving(app: Any, prefix: str = "") -> Iterator[str]:
    """An app in a server on a free port, behind a path ``prefix``, as the command runs it; its address."""
    from dear.serving.server import listen, server_of

    server, opened = server_of(app, prefix), listen("127.0.0.1", 0, None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < until
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{opened.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(30)


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
