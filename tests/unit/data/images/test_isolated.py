"""Large TIFFs and lossless WebPs, decoded in a process of its own: the same pixels, within limits."""

import io
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from PIL import Image

from dear.data.images import decode as module
from dear.data.images import raster
from dear.data.images.decode import decode
from dear.errors import DataError

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these processes")


def picture(form: str, mode: str = "RGB", **options: Any) -> bytes:
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    noise = np.random.default_rng(0).integers(0, 256, (530, 510, channels), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise.squeeze(), mode).save(buffer, form, **options)
    return buffer.getvalue()


@pytest.fixture(name="isolated")
def count(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The limits of each process."""
    seen, original = list[dict[str, int]](), module.isolated

    def counted(read: Any, where: object, **limits: int) -> Any:
        seen.append(limits)
        return original(read, where, **limits)

    monkeypatch.setattr(module, "isolated", counted)
    return seen


LOSSLESS = {"lossless": True}


@pytest.mark.parametrize(
    ("form", "mode", "options", "own"),
    [
        ("TIFF", "RGB", {}, True),
        ("TIFF", "L", {"compression": "tiff_lzw"}, True),
        ("WEBP", "RGB", LOSSLESS, True),
        ("WEBP", "RGBA", LOSSLESS, True),
        ("WEBP", "RGBA", {"quality": 50}, True),
        ("WEBP", "RGB", {"quality": 50}, False),
        ("PNG", "RGBA", {}, False),
        ("JPEG", "RGB", {}, False),
    ],
)
def test_the_pixels_are_the_same(
    form: str, mode: str, options: Any, own: bool, isolated: list[dict[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = 6
    content = picture(form, mode, exif=exif, **options)
    pictures = [decode(Path("p"), side, content) for side in (100, 1000)]
    assert isolated == 2 * own * [
        {"seconds": 2, "memory": 2**27 + {"TIFF": 14, "WEBP": 19}.get(form, 0) * 530 * 510}
    ]
    assert pictures[1].shape == (3, 510, 530)  # turned
    monkeypatch.setattr(module, "pixels_to_isolate", lambda _: 0)
    here = [decode(Path("p"), side, content) for side in (100, 1000)]
    assert all(torch.equal(one, other) for one, other in zip(pictures, here, strict=True))


def test_small_ones_are_decoded_here(isolated: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    content = picture("WEBP", lossless=True)
    monkeypatch.setattr(raster, "ISOLATED_PIXELS", 530 * 510)
    decode(Path("p"), 100, content)
    assert not isolated
    monkeypatch.setattr(raster, "ISOLATED_BYTES", len(content) - 1)
    decode(Path("p"), 100, content)
    assert len(isolated) == 1


def test_warnings_name_the_file() -> None:
    exif = Image.Exif()
    exif[0x010E] = "a description that is long enough to lie behind the directory"
    content = picture("WEBP", lossless=True, exif=exif.tobytes()[:-20])
    with pytest.warns(UserWarning, match=r"^odd\.webp: ") as caught:
        decode(Path("odd.webp"), 100, content)
    assert len(caught) == 1


def test_a_broken_one_is_a_line() -> None:
    content = picture("TIFF", compression="tiff_lzw")
    with pytest.raises(DataError, match=r"^cannot read the image cut\.tif: [^\n]+\.$"):
        decode(Path("cut.tif"), 100, content[: len(content) // 2])


@linux
def test_one_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: bytes) -> NoReturn:
        while True:
            pass

    monkeypatch.setattr(module, "SECONDS", 1)
    monkeypatch.setattr(module, "_unpacked", endless)
    reason = "cannot read the image p.webp: its WEBP: it takes more than 1 s to read, far more than its size."
    with pytest.raises(DataError, match=rf"^{re.escape(reason)}$"):
        decode(Path("p.webp"), 100, picture("WEBP", lossless=True))


@linux
def test_one_that_takes_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_unpacked", lambda _: (1, Image.new("RGB", (40_000, 40_000), "red")))
    with pytest.raises(
        DataError, match=r"^cannot read the image p\.tif: its TIFF: it takes more than 131 MiB"
    ):
        decode(Path("p.tif"), 100, picture("TIFF"))
