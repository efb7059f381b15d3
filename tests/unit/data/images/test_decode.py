"""Which image files are read, what their pixels are, and that no file asks for more than its limits."""

import io
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageFile, ImageOps, features

from dear.data.images.decode import HAS_HEIC, decode, open_image, read_image
from dear.data.images.forms import picture_of
from dear.errors import DataError
from dear.limits import LimitError
from tests.helpers.errors import refuses
from tests.unit.data.photos import gray_tiff

FORMS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *(["AVIF"] if features.check("avif") else [])]
REFUSED = ["ICO", "ICNS", "EPS", "PDF", "TGA", "PCX", "SGI", "DDS", "JPEG2000", "IM", "MSP", "XBM"]


def saved(form: str, size: tuple[int, int] = (8, 8), mode: str = "RGB", **options: Any) -> bytes:
    stream = io.BytesIO()
    noise = np.random.default_rng(5).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(stream, form, **options)
    return stream.getvalue()


class TestFormats:
    @pytest.mark.parametrize("form", FORMS)
    def test_the_listed_ones_are_read_whatever_their_name(self, form: str, tmp_path: Path) -> None:
        (tmp_path / "x.anything").write_bytes(saved(form, (7, 5)))
        assert decode(tmp_path / "x.anything").shape == (3, 5, 7)

    @pytest.mark.parametrize(
        ("content", "levels"),
        [
            (b"P5 3 1 255\n\x00\x80\xff", [0, 128, 255]),
            (b"P5 3 1 4095\n\x00\x00\x08\x00\x0f\xff", [0, 128, 255]),  # 12 bits: 2048 of 4095
            (b"P2 3 1 65535\n0 32896 65535\n", [0, 128, 255]),
            (b"P1 3 1\n1 0 1\n", [0, 255, 0]),  # of which 1 is black
        ],
    )
    def test_gray_ones_by_their_own_largest_level(
        self, content: bytes, levels: list[int], tmp_path: Path
    ) -> None:
        (tmp_path / "x.pgm").write_bytes(content)
        assert decode(tmp_path / "x.pgm")[:, 0].tolist() == [levels] * 3

    @pytest.mark.parametrize("form", REFUSED)
    def test_no_other_is(self, form: str, tmp_path: Path) -> None:
        mode = "1" if form in ("MSP", "XBM") else "RGB"
        (tmp_path / "photo.png").write_bytes(saved(form, (64, 64), mode))
        refuses(DataError, ("photo.png", "JPEG"), decode, tmp_path / "photo.png")

    def test_photos_of_a_phone(self, tmp_path: Path) -> None:
        if not HAS_HEIC:
            (tmp_path / "x.heic").write_bytes(b"\0\0\0\x18ftypheic")
            refuses(DataError, "pillow-heif", decode, tmp_path / "x.heic")
            return
        pillow_heif = pytest.importorskip("pillow_heif")
        pillow_heif.register_heif_opener()
        levels = np.random.default_rng(1).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(levels).save(tmp_path / "x.heic", quality=-1, chroma=444)
        with Image.open(tmp_path / "x.heic") as file:
            expected = np.asarray(file.convert("RGB"))
        assert np.array_equal(decode(tmp_path / "x.heic").permute(1, 2, 0).numpy(), expected)


class TestFiles:
    def test_an_empty_or_missing_one(self, tmp_path: Path) -> None:
        (tmp_path / "x.png").touch()
        refuses(DataError, ("x.png", "empty"), read_image, tmp_path / "x.png")
        refuses(DataError, "y.png", read_image, tmp_path / "y.png")

    def test_one_above_the_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "x.png").write_bytes(content := saved("PNG"))
        monkeypatch.setenv("DEAR_LIMIT_IMAGE_BYTES", str(len(content)))
        assert read_image(tmp_path / "x.png") == content
        monkeypatch.setenv("DEAR_LIMIT_IMAGE_BYTES", str(len(content) - 1))
        refuses(DataError, "DEAR_LIMIT_IMAGE_BYTES", read_image, tmp_path / "x.png")

    @pytest.mark.parametrize("form", FORMS)
    def test_the_size_is_judged_before_a_pixel_is_decoded(
        self, form: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        content = saved(form, (64, 32))
        monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("pixels were decoded"))
        open_image(content).close()
        monkeypatch.setenv("DEAR_LIMIT_IMAGE_PIXELS", str(64 * 32 - 1))
        refuses(LimitError, ("64 x 32", "2,048"), open_image, content)

    def test_the_limit_is_not_that_of_pillow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 32 // 3)  # Pillow refuses above twice as many
        open_image(saved("PNG", (64, 32))).close()
        assert Image.MAX_IMAGE_PIXELS == 64 * 32 // 3
        monkeypatch.setenv("DEAR_LIMIT_IMAGE_PIXELS", str(64 * 32 - 1))
        refuses(LimitError, "DEAR_LIMIT_IMAGE_PIXELS", open_image, saved("PNG", (64, 32)))

    @pytest.mark.parametrize("progressive", [False, True])
    def test_scans_over_and_over(self, progressive: bool) -> None:
        plain = saved("JPEG", (64, 64), "L", progressive=progressive)
        starts = [match.start() for match in re.finditer(b"\xff\xda", plain)]
        last = plain[starts[-1] : -2]
        of_64, of_65 = (plain[:-2] + last * (count - len(starts)) + plain[-2:] for count in (64, 65))
        open_image(of_64).close()
        refuses(DataError, ("65", "JPEG"), decode, Path("x"), data=of_65)


ORIENTED = [("JPEG", turned) for turned in range(1, 9)] + [("PNG", 6), ("WEBP", 5), ("TIFF", 8)]


@pytest.mark.parametrize(("form", "turned"), ORIENTED)
def test_every_form_of_an_image_is_upright(form: str, turned: int, tmp_path: Path) -> None:
    """Path, bytes, and Pillow's image, loaded or not, once and again: as `exif_transpose` has it."""
    exif = Image.Exif()
    exif[0x0112] = turned
    lossless = {"lossless": True} if form == "WEBP" else {}
    (tmp_path / "x").write_bytes(content := saved(form, (23, 17), exif=exif, **lossless))
    with Image.open(tmp_path / "x") as file:
        expected = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
    fresh, loaded = Image.open(tmp_path / "x"), Image.open(tmp_path / "x")
    loaded.load()
    for image in (tmp_path / "x", str(tmp_path / "x"), content, fresh, fresh, loaded, loaded):
        assert np.array_equal(picture_of(image).permute(1, 2, 0).numpy(), expected)


class TestPixels:
    """By Pillow and numpy, step by step."""

    def levels(self, high: int, kind: str = "uint16") -> np.ndarray:
        return np.random.default_rng(3).integers(0, high, (17, 23)).astype(kind)

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
    def test_transparency_is_on_white(self, mode: str, tmp_path: Path) -> None:
        noise = np.random.default_rng(7).integers(0, 256, (23, 11, 4), dtype=np.uint8)
        image = Image.fromarray(noise)
        if mode == "P":
            image = image.convert("RGB").convert("P")
            image.info["transparency"] = 3
        else:
            image = image.convert(mode)
        image.save(tmp_path / "x.png")
        rgba = np.asarray(image.convert("RGBA")).astype(float)
        expected = 255 + (rgba[..., :3] - 255) * rgba[..., 3:] / 255
        assert np.abs(decode(tmp_path / "x.png").permute(1, 2, 0).numpy() - expected).max() <= 1

    def test_a_white_icon_is_seen(self, tmp_path: Path) -> None:
        alpha = Image.fromarray(np.random.default_rng(7).integers(0, 256, (9, 9), dtype=np.uint8))
        icon = Image.new("RGBA", (9, 9), "white")
        icon.putalpha(alpha)
        icon.save(tmp_path / "x.png")
        assert np.abs(decode(tmp_path / "x.png").numpy().astype(int) - np.asarray(alpha)).max() <= 1

    @pytest.mark.parametrize("form", ["PNG", "TIFF"])
    def test_16_bits_are_scaled(self, form: str, tmp_path: Path) -> None:
        levels = self.levels(65_536)
        Image.fromarray(levels).save(tmp_path / "x", form)
        expected = np.rint(levels / 257).astype(np.uint8)
        assert all(np.array_equal(channel, expected) for channel in decode(tmp_path / "x").numpy())

    @pytest.mark.parametrize("kind", ["uint8", "uint16"])
    @pytest.mark.parametrize("turned", [1, 6])
    def test_a_tiff_with_zero_for_white(self, kind: str, turned: int, tmp_path: Path) -> None:
        levels = self.levels(np.iinfo(kind).max + 1, kind)
        content = gray_tiff(levels, white_is_zero=True, turned=turned)
        (tmp_path / "x.tif").write_bytes(content)
        brightness = 255 - np.rint(levels / (np.iinfo(kind).max / 255))
        expected = np.rot90(brightness, -1) if turned == 6 else brightness
        for image in (tmp_path / "x.tif", content, Image.open(tmp_path / "x.tif")):
            assert all(np.array_equal(channel, expected) for channel in picture_of(image).numpy())

    @pytest.mark.parametrize("kind", ["int32", "float32"])
    def test_32_bits_are_refused(self, kind: str, tmp_path: Path) -> None:
        Image.fromarray(self.levels(65_536, kind)).save(tmp_path / "x.tif")
        refuses(DataError, ("x.tif", "range"), decode, tmp_path / "x.tif")

    @pytest.mark.parametrize("form", ["PNG", "TIFF"])
    def test_12_bits_in_16_are_refused(self, form: str, tmp_path: Path) -> None:
        """They would be black."""
        Image.fromarray(self.levels(4096)).save(tmp_path / "x", form)
        refuses(DataError, "12 bits", decode, tmp_path / "x")
        for level in (0, 4096):
            Image.fromarray(np.full((17, 23), level, np.uint16)).save(tmp_path / "x", form)
            assert decode(tmp_path / "x").unique().tolist() == [round(level / 257)]

    def test_the_first_frame_of_an_animation(self, tmp_path: Path) -> None:
        red, blue = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))
        for form in ("png", "gif", "webp"):
            red.save(tmp_path / f"x.{form}", save_all=True, append_images=[blue], lossless=True)
            assert decode(tmp_path / f"x.{form}")[:, 3, 3].tolist() == [255, 0, 0]


CONTENTS = [partial(saved, form, (23, 17)) for form in FORMS]
CONTENTS += [partial(saved, "TIFF", (23, 17), compression=name) for name in ("jpeg", "tiff_lzw")]
CONTENTS += [
    partial(saved, "JPEG", (23, 17), progressive=True),
    partial(saved, "WEBP", (23, 17), lossless=True),
]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    number=st.integers(0, len(CONTENTS) - 1),
    cut=st.floats(0, 1),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=4)), max_size=4
    ),
)
def test_a_damaged_file_is_a_picture_or_one_line(
    number: int, cut: float, changes: list[tuple[float, bytes]]
) -> None:
    """Whatever bytes are changed or cut off: pixels within the limit, or a DataError of one line."""
    content = bytearray(CONTENTS[number]())
    for place, values in changes:
        start = int(place * len(content))
        content[start : start + len(values)] = values
    content = content[: round(len(content) * max(cut, 0.1))] if cut < 0.9 else content
    try:
        picture, message = decode(Path("photo"), data=bytes(content)), ""
    except DataError as error:
        picture, message = torch.zeros(3, 1, 1, dtype=torch.uint8), str(error)
    assert "\n" not in message
    assert picture.dtype == torch.uint8
    assert picture.shape[0] == 3
    assert picture.numel() <= 3 * 120_000_000


def test_a_picture_looks_as_with_its_color_profile(tmp_path: Path) -> None:
    """By hand: sRGB with the primaries of red and green exchanged shows green where red is stored."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    red, green = profile.find(b"rXYZ"), profile.find(b"gXYZ")
    entries = profile[green + 4 : green + 12], profile[red + 4 : red + 12]
    levels = np.random.default_rng(3).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "srgb.png", icc_profile=bytes(profile))
    profile[red + 4 : red + 12], profile[green + 4 : green + 12] = entries
    Image.fromarray(levels[..., [1, 0, 2]]).save(tmp_path / "exchanged.png", icc_profile=bytes(profile))
    Image.fromarray(levels).save(tmp_path / "damaged.png", icc_profile=b"no profile")
    expected = torch.from_numpy(levels).permute(2, 0, 1).int()
    assert torch.equal(decode(tmp_path / "srgb.png").int(), expected)
    assert torch.equal(decode(tmp_path / "damaged.png").int(), expected)
    assert (decode(tmp_path / "exchanged.png").int() - expected).abs().max() <= 1
