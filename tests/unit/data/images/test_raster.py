"""Which image files are read, and that no file makes the decoder do more than its picture needs."""

import os
import pickle
import re
import stat
import tracemalloc
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, TiffImagePlugin, features

from dear.data.images import decode as decoding
from dear.data.images import raster
from dear.data.images.decode import decode
from dear.data.images.raster import FOREIGN, SUFFIXES, kind_of, opened, read_image
from dear.errors import DataError
from dear.limits import LimitError
from tests.unit.data import hostile

FORMS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]
REFUSED = ["ICO", "ICNS", "EPS", "PDF", "PPM", "TGA", "PCX", "SGI", "DDS", "JPEG2000", "IM", "MSP", "XBM"]
REFUSED += ["AVIF"] if features.check("avif") else []


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of Ghostscript's name that leaves a file when it is called; the file's place."""
    left, program = tmp_path / "written", tmp_path / "bin/gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n: > '{left}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # Pillow looks for it once
    return left


class TestKinds:
    @pytest.mark.parametrize("form", FORMS)
    def test_the_listed_ones_are_read_whatever_their_name(self, form: str, tmp_path: Path) -> None:
        (tmp_path / "x.anything").write_bytes(hostile.saved(form, (7, 5)))
        assert decode(tmp_path / "x.anything", 99).shape == (3, 5, 7)

    @pytest.mark.parametrize("form", REFUSED)
    def test_no_other_kind_reaches_pillow(
        self, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mode = "1" if form in ("MSP", "XBM") else "RGB"
        (tmp_path / "photo.png").write_bytes(hostile.saved(form, (64, 64), mode))
        monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was asked"))
        with pytest.raises(DataError, match=r"photo\.png: it is not an image of a supported format: JPEG"):
            decode(tmp_path / "photo.png", 99)

    def test_run_lengths_in_a_bmp(self) -> None:
        """Pillow unpacks them in Python: one of 8 kB with 120 megapixels took 12 s."""
        assert decode(Path("x.bmp"), 99, hostile.bmp(0, bytes(8))).shape == (3, 2, 4)
        for compression in (1, 2):
            with pytest.raises(DataError, match="its BMP has run-length encoding"):
                decode(Path("x.bmp"), 99, hostile.bmp(compression, bytes([0, 1])))

    @pytest.mark.parametrize("name", ["photo.png", "photo.eps", "photo", "photo.jpg"])
    def test_postscript_is_not_run(self, name: str, tmp_path: Path, ghostscript: Path) -> None:
        (tmp_path / name).write_bytes(hostile.POSTSCRIPT)
        with pytest.raises(DataError, match=r"it is not an image of a|\.eps files are not supported"):
            decode(tmp_path / name, 99)
        assert not ghostscript.exists()
        with (
            Image.open(tmp_path / name) as file,
            pytest.raises(OSError, match="cannot identify"),
        ):  # were Pillow to choose
            file.load()
        assert ghostscript.exists()
        ghostscript.unlink()
        with pytest.raises(DataError, match="cannot read the image"):
            decode(tmp_path / name, 99)
        assert not ghostscript.exists()

    @pytest.mark.parametrize("suffix", sorted(FOREIGN))
    def test_names_of_other_kinds_are_refused_with_any_content(self, suffix: str, tmp_path: Path) -> None:
        file = tmp_path / f"x{suffix.upper()}"
        file.write_bytes(hostile.saved("PNG"))
        with pytest.raises(DataError, match="files are not supported; JPEG, PNG"):
            decode(file, 99)
        assert suffix not in SUFFIXES

    def test_the_kind_is_held_against_the_plug_in(self) -> None:
        for content in (b"BM and words", b"GIF89a", b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBP"):
            assert kind_of(content)
            with pytest.raises((OSError, ValueError, SyntaxError)):
                opened(content)


class TestFiles:
    def test_what_never_ends_is_not_read(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.png")
        (tmp_path / "zero.png").symlink_to("/dev/zero")
        (tmp_path / "folder.png").mkdir()
        for name, told in (("pipe", "pipe"), ("zero", "device"), ("folder", "folder")):
            with pytest.raises(DataError, match=rf"{name}\.png: it is a {told}"):
                read_image(tmp_path / f"{name}.png")

    def test_a_file_above_the_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "x.png").write_bytes(content := hostile.saved("PNG"))
        monkeypatch.setenv("DEAR_LIMIT_IMAGE_BYTES", str(len(content)))
        assert read_image(tmp_path / "x.png") == content
        monkeypatch.setenv("DEAR_LIMIT_IMAGE_BYTES", str(len(content) - 1))
        with pytest.raises(DataError, match="DEAR_LIMIT_IMAGE_BYTES to raise it"):
            read_image(tmp_path / "x.png")


class Reading:
    """How many bytes tags were made of: Pillow reads each by this function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        original = ImageFile._safe_read

        def counted(fp: object, size: int) -> bytes:
            self.bytes += size
            return original(fp, size)  # type: ignore[arg-type]

        monkeypatch.setattr(ImageFile, "_safe_read", counted)


class TestRoom:
    """Each file is about half a megabyte and asks for a gigabyte or minutes."""

    @pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", *FORMS[6:]])
    def test_exif_that_names_the_same_bytes_again_and_again(
        self, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exif = hostile.repeating_exif()
        content = hostile.jpeg_of_exif(exif) if form == "JPEG" else hostile.saved(form, exif=exif)
        read = Reading(monkeypatch)
        assert decode(tmp_path / "x", 99, content).shape == (3, 8, 8)
        assert read.bytes < 2**21

    def test_tags_of_a_tiff_that_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read = Reading(monkeypatch)
        with pytest.raises(DataError, match="far more data than its picture"):
            decode(tmp_path / "x", 99, hostile.repeating_tiff())
        assert read.bytes < 2**23

    def test_a_tile_larger_than_its_picture(self, tmp_path: Path) -> None:
        assert decode(tmp_path / "x", 99, hostile.large_tile(2048)).shape == (3, 8, 8)
        with pytest.raises(DataError, match="tiles of 4096 x 4096 pixels are larger than the picture"):
            decode(tmp_path / "x", 99, hostile.large_tile(4096))

    def test_tiles_that_lie_beside_their_picture(self, tmp_path: Path) -> None:
        """40,000 x 1 pixels in 2,500 tiles of 16 x 262,144, 1 MB, took 67 s of the processor."""
        assert decode(tmp_path / "x", 99, hostile.outside_tiles(64, 64, 4)).shape[0] == 3
        with pytest.raises(DataError, match="tiles of 64 x 65536 pixels lie mostly beside the picture"):
            decode(tmp_path / "x", 99, hostile.outside_tiles(64, 65_536, 5))

    def test_a_comment_that_grows_block_by_block(self, tmp_path: Path) -> None:
        assert decode(tmp_path / "x", 99, hostile.long_comment(2**19)).shape == (3, 8, 8)
        with pytest.raises(DataError, match="far more data than its picture"):
            decode(tmp_path / "x", 99, hostile.long_comment(8 * 2**20))

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(hostile.many_chunks(b"tEXt", b"", 150_000), id="PNG, text"),
            pytest.param(hostile.many_chunks(b"IDAT", b"", 150_000), id="PNG, data"),
            pytest.param(hostile.many_segments(b"\xfe\0\x02", 150_000), id="JPEG, comments"),
            pytest.param(hostile.many_segments(b"\xe1\0\x02", 150_000), id="JPEG, APP1"),
            pytest.param(hostile.many_segments(b"", 300_000), id="JPEG, fill bytes"),
        ],
    )
    def test_pieces_without_end(
        self, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(DataError, match="far more pieces than its picture needs"):
            decode(tmp_path / "x", 99, content)
        monkeypatch.setattr(raster, "MAX_READS", 2**20)
        assert decode(tmp_path / "x", 99, content).shape == (3, 8, 8)

    def test_colour_profiles_are_not_unpacked_again_and_again(self, tmp_path: Path) -> None:
        profile = b"a\0\0" + zlib.compress(bytes(100))
        assert decode(tmp_path / "x", 99, hostile.many_chunks(b"iCCP", profile, 16)).shape == (3, 8, 8)
        with pytest.raises(DataError, match="more than 16 colour profiles"):
            decode(tmp_path / "x", 99, hostile.many_chunks(b"iCCP", profile, 17))

    def test_tags_of_a_bigtiff(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert decode(tmp_path / "x", 99, hostile.big_tiff(9)).shape == (3, 8, 8)
        monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was asked"))
        with pytest.raises(DataError, match="more than 65,536 tags"):
            decode(tmp_path / "x", 99, hostile.big_tiff(2**16 + 1))

    def test_tiles_of_a_pixel(self, tmp_path: Path) -> None:
        """4 million tiles in 4 MB, for each of which Pillow made a tuple, 1,250 MiB in all."""
        content = hostile.small_tiles(2000)
        tracemalloc.start()
        try:
            assert decode(tmp_path / "x", 7, content).shape == (3, 7, 7)
            assert tracemalloc.get_traced_memory()[1] < 2**26
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("form", ["PNG", "TIFF"])
    @pytest.mark.parametrize("size", [(65_536, 1), (1, 65_536), (2, 19_000_000)])
    def test_thin_pictures(
        self, form: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        content = hostile.of_size(form, *size)
        monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("pixels were unpacked"))
        with pytest.raises(DataError, match=r"pixels of a side of an image, above the limit of 65,535"):
            decode(tmp_path / "x", 99, content)
        with opened(hostile.of_size(form, 65_535, 1)) as file:
            assert file.size == (65_535, 1)

    def test_scans_over_and_over(self, tmp_path: Path) -> None:
        assert decode(tmp_path / "x", 99, hostile.many_scans(64)).shape == (3, 64, 64)
        with pytest.raises(DataError, match="65 scans of a progressive JPEG"):
            decode(tmp_path / "x", 99, hostile.many_scans(65))

    def test_scans_of_a_large_picture(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What libjpeg saves is read at the largest size: 14 scans of a component for RGB, 24 for CMYK."""
        monkeypatch.setenv("DEAR_LIMIT_IMAGE_PIXELS", str(64 * 64))
        for mode in ("L", "RGB", "CMYK"):
            decode(tmp_path / "x", 99, hostile.saved("JPEG", (64, 64), mode, progressive=True))
        decode(tmp_path / "x", 99, hostile.many_scans(36))
        with pytest.raises(DataError, match="it has too many scans for 64 x 64 pixels: save it with fewer"):
            decode(tmp_path / "x", 99, hostile.many_scans(37))

    @pytest.mark.parametrize("marker", [*range(0xC9, 0xCC), *range(0xCD, 0xD0)])
    def test_arithmetic_coding(self, marker: int, tmp_path: Path) -> None:
        plain = hostile.saved("JPEG", (64, 64))
        content = plain.replace(b"\xff\xc0", bytes([0xFF, marker]))
        for jpeg in (content, hostile.jpeg_in_tiff(content, 64)):
            with pytest.raises(DataError, match="its JPEG has arithmetic coding"):
                decode(tmp_path / "x", 99, jpeg)

    def test_a_jpeg_in_a_tiff(self, tmp_path: Path) -> None:
        read = decode(tmp_path / "x", 99, hostile.jpeg_in_tiff(hostile.saved("JPEG", (64, 64)), 64))
        assert read.shape == (3, 64, 64)
        with pytest.raises(DataError, match="it holds JPEGs of many scans"):
            decode(tmp_path / "x", 99, hostile.jpeg_in_tiff(hostile.many_scans(5, progressive=False), 64))
        for others in ([], [hostile.compressed(8)]):  # of two compressions, libtiff takes the first
            with pytest.raises(DataError, match="it holds a progressive JPEG"):
                decode(tmp_path / "x", 99, hostile.jpeg_in_tiff(hostile.many_scans(10), 64, *others))

    @pytest.mark.parametrize("form", FORMS)
    def test_the_size_is_judged_before_a_pixel_is_unpacked(
        self, form: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        frames = {"save_all": True, "append_images": [Image.new("RGB", (64, 32), "red")]}
        several = form in ("TIFF", "GIF", "WEBP", "PNG")
        content = hostile.saved(form, (64, 32), **(frames if several else {}))
        monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("pixels were unpacked"))
        opened(content).close()
        monkeypatch.setenv("DEAR_LIMIT_IMAGE_PIXELS", str(64 * 32 - 1))
        with pytest.raises(LimitError, match=r"\(64 x 32\): 2,048 pixels"):
            opened(content)


class TestLevels:
    """Pictures whose numbers have no agreed range, or fewer bits than their samples."""

    def levels(self, high: int, kind: str = "uint16") -> np.ndarray:
        return np.random.default_rng(3).integers(0, high, (17, 23)).astype(kind)

    @pytest.mark.parametrize("high", [255, 4096, 65_536, 2**31 - 1])
    def test_32_bits_are_refused(self, high: int, tmp_path: Path) -> None:
        Image.fromarray(self.levels(high, "int32")).save(tmp_path / "x.tif")
        with pytest.raises(DataError, match="32-bit or signed pixels have no agreed range; save it with 8"):
            decode(tmp_path / "x.tif", 99)

    @pytest.mark.parametrize("form", ["PNG", "TIFF"])
    def test_12_bits_in_16_are_refused(self, form: str, tmp_path: Path) -> None:
        Image.fromarray(self.levels(4096)).save(tmp_path / "x", form)
        with pytest.raises(DataError, match=r"have 12 bits, or it is dark.*-depth 8 OUT.png` if dark\.$"):
            decode(tmp_path / "x", 99)
        for levels in (np.full((17, 23), 4096, np.uint16), np.zeros((17, 23), np.uint16)):
            Image.fromarray(levels).save(tmp_path / "x", form)
            assert decode(tmp_path / "x", 99).unique().tolist() == [round(int(levels[0, 0]) / 257)]

    @pytest.mark.parametrize(("highest", "dark"), [(65_535, True), (4096, True), (4095, False), (255, False)])
    def test_a_dark_picture_whose_tag_says_so(self, highest: int, dark: bool, tmp_path: Path) -> None:
        """MaxSampleValue of a TIFF tells a dark picture from one of 12 bits."""
        levels = self.levels(4096)
        Image.fromarray(levels).save(tmp_path / "x.tif", tiffinfo={281: highest})
        if dark:
            picture = decode(tmp_path / "x.tif", 99)
            assert np.array_equal(picture[0].numpy(), np.rint(levels / 257).astype(np.uint8))
        else:
            with pytest.raises(DataError, match="12 bits, or it is dark"):
                decode(tmp_path / "x.tif", 99)

    @pytest.mark.parametrize("level", [0, 15, 16])
    def test_12_bits_in_16_in_colour(self, level: int, tmp_path: Path) -> None:
        content = hostile.deep_png(level * 256 + 255 if level else 0)
        if level == 15:
            with pytest.raises(DataError, match=r"below 4096.*if dark\.$"):
                decode(tmp_path / "x", 99, content)
        else:
            assert decode(tmp_path / "x", 99, content).unique().tolist() == [level]

    def test_packed_12_bits_are_scaled(self, tmp_path: Path) -> None:
        levels = np.random.default_rng(3).integers(0, 4096, (17, 22))
        levels[0, :2] = 0, 4095
        picture = decode(tmp_path / "x", 99, hostile.packed_12_bits(levels))
        assert np.array_equal(picture[1].numpy(), np.rint(levels / 4095 * 255).astype(np.uint8))

    @pytest.mark.parametrize("compression", [None, "tiff_deflate"])
    def test_ycbcr(self, compression: str | None, tmp_path: Path) -> None:
        noise = np.random.default_rng(3).integers(0, 256, (17, 23, 3), dtype=np.uint8)
        picture = Image.fromarray(noise).convert("YCbCr")
        picture.save(tmp_path / "x.tif", compression=compression)
        decoded = decode(tmp_path / "x.tif", 99).permute(1, 2, 0).numpy().astype(int)
        assert abs(decoded - np.asarray(picture.convert("RGB")).astype(int)).max() <= 2

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "LAB", "I;16", "I;16B"])
    def test_an_uncompressed_tiff_has_the_pixels_of_pillows_own_reader(
        self, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if mode.startswith("I"):
            image = Image.fromarray(self.levels(65_536, "<u2" if mode == "I;16" else ">u2"))
        else:
            noise = np.random.default_rng(3).integers(0, 256, (17, 23, 4), dtype=np.uint8)
            image = Image.fromarray(noise)
            image = image.convert("RGB").convert(mode) if mode in ("CMYK", "LAB") else image.convert(mode)
        image.save(tmp_path / "x.tif")
        picture = decode(tmp_path / "x.tif", 99)
        monkeypatch.setattr(TiffImagePlugin, "READ_LIBTIFF", False)
        assert torch.equal(decode(tmp_path / "x.tif", 99), picture)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "L", "CMYK"])
@pytest.mark.parametrize("turned", [1, 6])
def test_bands_are_the_whole(mode: str, turned: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the conversion of the whole picture at once, turned before it and not after."""
    height, width, rows = 23, 11, 7
    monkeypatch.setattr(decoding, "BAND", rows * width + 2)
    random = np.random.default_rng(7)
    if mode == "I;16":
        image = Image.fromarray(random.integers(0, 65536, (height, width), dtype=np.uint16))
    else:
        noise = random.integers(0, 256, (height, width, 4), dtype=np.uint8)
        image = Image.fromarray(noise, "RGBA")
        image = image.convert("RGB").convert(mode) if mode in ("P", "CMYK") else image.convert(mode)
    exif = Image.Exif()
    exif[0x0112] = turned
    if mode == "P":
        image.info["transparency"] = 3
    image.save(tmp_path / "x", "TIFF" if mode == "CMYK" else "PNG", exif=exif)
    whole = image.transpose(Image.Transpose.ROTATE_270) if turned == 6 else image
    if mode == "I;16":
        expected = np.repeat(np.rint(np.asarray(whole) / 257)[..., None], 3, axis=2).astype(np.uint8)
    else:
        paper = Image.new("RGBA", whole.size, "white")
        flat = Image.alpha_composite(paper, whole.convert("RGBA")) if mode in ("RGBA", "LA", "P") else whole
        expected = np.asarray(flat.convert("RGB"))
    assert np.array_equal(decode(tmp_path / "x", 999).permute(1, 2, 0).numpy(), expected)


def test_the_filter_of_warnings_is_one_that_others_can_copy(tmp_path: Path) -> None:
    """scikit-learn hands the filters of this process to its workers: as patterns, or pickled."""
    with raster.naming(tmp_path / "a.png"):
        pass
    [message] = {entry[1] for entry in warnings.filters if entry[1] is raster._collector}
    for copied in (re.compile(message.pattern, message.flags), pickle.loads(pickle.dumps(message))):
        assert copied.match("") is None
        assert copied.match("Corrupt EXIF data") is None


def test_a_large_picture_within_the_limit_is_no_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Pillow's warning is silenced whatever became of the filters since this module was loaded."""
    content = hostile.saved("PNG", (7, 5))
    (tmp_path / "x.png").write_bytes(content)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        assert decode(tmp_path / "x.png", 99).shape == (3, 5, 7)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        with opened(content) as file:
            assert file.size == (7, 5)
    assert not [str(warning.message) for warning in recwarn]


def test_a_small_file_of_a_very_large_picture() -> None:
    """A WebP of 38 bytes with 16,383 x 8,192 pixels of four bytes, of which its decoder keeps several."""
    content = "524946461e000000574542505650384c110000002ffeffff1707508522d7a3808188e87f0000"
    with pytest.raises(LimitError, match="134,209,536 pixels of an image, above the limit of 120,000,000"):
        opened(bytes.fromhex(content))
