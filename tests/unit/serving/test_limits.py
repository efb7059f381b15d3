"""Limits: what is refused, with which status, before it is unpacked."""

import io
import re
from typing import Any

import pytest
from PIL import Image, ImageFile

from dear.errors import SettingsError
from dear.serving.limits import MIB, Limits, Rate, Refused, check_picture
from tests.unit.serving.small import bomb, picture, png


def saved(form: str, size: tuple[int, int], **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.new("L", size).save(stream, form, **options)
    return stream.getvalue()


def many_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan stands there so often that there are ``count``."""
    plain = saved("JPEG", (64, 64), progressive=True)
    starts = [match.start() for match in re.finditer(b"\xff\xda", plain)]
    last = plain[starts[-1] : -2]
    return plain[:-2] + last * (count - len(starts)) + plain[-2:]


def test_a_picture_within_the_limits_is_taken() -> None:
    check_picture(png(picture()), Limits())
    check_picture(png(Image.new("1", (1000, 1000))), Limits(megapixels=1))


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"", 400, "empty"),
        (b"only words, whatever the name says", 415, "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", 415, "not an image in a supported format"),
        (saved("ICO", (64, 64)), 415, "not an image in a supported format"),
        (b"\xff\xd8\xff\xe0 a JPEG's first bytes", 415, "not an image"),
        (b"\0" * (10 * MIB + 1), 413, "larger than 10 MiB"),
        (png(Image.new("1", (1001, 1000))), 413, "1001 x 1000 pixels"),
    ],
)
def test_what_is_refused(data: bytes, status: int, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        check_picture(data, Limits(megapixels=1))
    assert refused.value.status == status


def test_a_bomb_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("pixels were unpacked"))
    with pytest.raises(Refused, match=r"10000 x 6000 pixels \(60.0 megapixels\).*40 megapixels") as refused:
        check_picture(bomb(), Limits())
    assert refused.value.status == 413
    with pytest.raises(Refused, match="far more than 40 megapixels") as refused:  # Pillow's own limit
        check_picture(bomb(20_000, 10_000), Limits())
    assert refused.value.status == 413


def test_scans_beyond_the_limit_are_too_much() -> None:
    with pytest.raises(Refused, match="scans of a progressive JPEG") as refused:
        check_picture(many_scans(65), Limits())
    assert refused.value.status == 413


def test_a_rate_refills_over_a_minute() -> None:
    now = [0.0]
    rate = Rate(3, lambda: now[0])
    for _ in range(3):
        rate.take("one")
    with pytest.raises(Refused, match="more than 3 units of work per minute") as refused:
        rate.take("one")
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "20"})
    rate.take("other")
    now[0] = 19.0
    with pytest.raises(Refused):
        rate.take("one")
    now[0] = 20.5
    rate.take("one")
    with pytest.raises(Refused):
        rate.take("one")
    now[0] = 1000.0
    for _ in range(3):
        rate.take("one")
    with pytest.raises(Refused):
        rate.take("one")
    for _ in range(1000):
        Rate(0).take("one")


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(SettingsError, match=r"limits\.batch is 0"):
        Limits(batch=0)
    with pytest.raises(SettingsError, match="must be above 0"):
        Limits(upload=0)
