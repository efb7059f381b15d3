"""PNGs whose chunks ask Pillow for more than the picture: animations and compressed texts."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dear.data.images import raster
from dear.data.images.decode import decode
from dear.data.images.raster import MAX_TEXTS, PNG, opened
from dear.errors import DataError
from dear.limits import LimitError
from tests.unit.data.hostile import chunk, saved

END = chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b"")


def header(width: int, height: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def animated(width: int, height: int, disposal: int) -> bytes:
    """One frame, disposed of before the first: Pillow fills a picture when it opens the file."""
    frame = struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 1, disposal, 0)
    return chunk(b"acTL", struct.pack(">II", 1, 0)) + chunk(b"fcTL", frame)


@pytest.mark.parametrize("disposal", [1, 2])
@pytest.mark.parametrize("sides", [(36_000, 36_000), (70_000, 1)])
@pytest.mark.parametrize("first", [(1, 1), None])
def test_the_size_is_judged_before_pillow_opens_an_animation(
    disposal: int, sides: tuple[int, int], first: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """132 bytes took 5.7 GB. Also behind another header."""
    monkeypatch.setattr("PIL.Image.open", lambda *_, **__: pytest.fail("Pillow opened it"))
    headers = (header(*first) if first else b"") + header(*sides)
    with pytest.raises(LimitError, match=f"its header \\({sides[0]} x {sides[1]}\\)"):
        opened(PNG + headers + animated(*sides, disposal) + END)


def test_no_picture_is_filled_for_an_animation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.Image.core.fill", lambda *_: pytest.fail("a picture was filled"))
    with opened(PNG + header(9000, 9000) + animated(9000, 9000, 1) + END) as file:
        assert file.size == (9000, 9000)


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), dtype=np.uint8)
    frames = [Image.fromarray(frame) for frame in pixels]
    exif = Image.Exif()
    exif[0x0112] = 3
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:], disposal=1, exif=exif)
    assert b"acTL" in (tmp_path / "a.png").read_bytes()
    upright = torch.from_numpy(pixels[0, ::-1, ::-1].copy()).permute(2, 0, 1)
    assert torch.equal(decode(tmp_path / "a.png", 99), upright)


@pytest.mark.parametrize("kind", [b"iTXt", b"zTXt"])
def test_compressed_texts(kind: bytes) -> None:
    """Pillow unpacks them all, and counts none that is no UTF-8 or has a wrong checksum: 20 MB took 39 s."""
    whole = saved("PNG")
    start, rest = whole[:33], whole[33:]  # after the header
    text = chunk(
        kind, b"a\0" + (b"\1\0\0\0" if kind == b"iTXt" else b"\0") + zlib.compress(b"x" * 100 + b"\xff")
    )
    assert decode(Path("p"), 99, start + text * MAX_TEXTS + rest).shape == (3, 8, 8)
    texts = text * (MAX_TEXTS + 1)
    for content in (start + texts + rest, whole[:-12] + texts + whole[-12:]):
        with pytest.raises(DataError, match="it has more than 64 compressed texts"):
            decode(Path("p"), 99, content)


def test_a_png_in_very_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raster, "MAX_READS", 100)
    with pytest.raises(ValueError, match="in far more pieces"):
        opened(PNG + header(1, 1) + chunk(b"tEXt", b"a\0b") * 100 + END)


@pytest.mark.parametrize("end", [0, 4, 10, 20, 33, 40])
def test_a_png_that_is_cut(end: int) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (5, 5)).save(stream, "PNG")
    with pytest.raises((DataError, ValueError)):
        decode(Path("p"), 99, stream.getvalue()[: 8 + end])
