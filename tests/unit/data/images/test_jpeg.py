"""Where a JPEG ends: what follows its picture, such as a phone's video, is not read."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dear.data.images.decode import decode
from dear.data.images.jpeg import without_trailer


def saved(**options: Any) -> bytes:
    noise = np.random.default_rng(3).integers(0, 256, (53, 71, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "JPEG", **options)
    return stream.getvalue()


THUMBNAIL = Image.Exif()
THUMBNAIL[0x010E] = saved().decode("latin-1")  # an end of image within a segment


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"progressive": True},
        {"restart_marker_blocks": 1},
        {"exif": THUMBNAIL},
        {"comment": b"\xff\xd9" * 99},
        {"quality": 100, "subsampling": 0},
    ],
)
def test_what_follows_the_picture_is_left_out(options: dict[str, Any]) -> None:
    content = saved(**options)
    assert content.endswith(b"\xff\xd9")
    for trailer in (b"", b"\0" * 9, saved(), b"\xff\xd9", b"\xff\xda" * 99):
        assert without_trailer(content + trailer) == content


def test_a_picture_without_an_end_stays() -> None:
    empty = b"\xff\xd8" + b"\xff\xe0\0\0" * 9
    for content in (saved()[:-2], saved()[:-20], b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\0", empty):
        assert without_trailer(content) == content


def test_a_photo_with_a_video_behind_it_is_read() -> None:
    """It was refused for its 89 scans, as random bytes have FF DA once in 64 kB."""
    video = b"\0\0\0\x18ftypmp42" + np.random.default_rng(5).bytes(6_000_000)
    assert video.count(b"\xff\xda") > 64
    photo = saved()
    assert decode(Path("x.jpg"), 53, photo + video).equal(decode(Path("x.jpg"), 53, photo))
