"""What Pillow and libtiff would read for a picture again and again, or never need."""

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, TiffImagePlugin

from dear.data.images import tiff
from dear.data.images.decode import decode
from dear.errors import DataError
from tests.unit.data import hostile


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The values of each tag that Pillow makes rational numbers of."""
    made, load = list[int](), TiffImagePlugin.ImageFileDirectory_v2._load_dispatch[5]

    def count(self: Any, data: bytes, legacy_api: bool = True) -> Any:
        made.append(len(data) // 8)
        return load[1](self, data, legacy_api)

    monkeypatch.setitem(TiffImagePlugin.ImageFileDirectory_v2._load_dispatch, 5, (load[0], count))
    return made


def test_further_pictures_of_a_jpeg_are_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 66 kB, 2,700 entries that each name 32 kB: 29 s, 3,271 MiB."""
    made = counted(monkeypatch)
    plain = hostile.saved("JPEG")
    content = hostile.further_pictures(plain, 40)
    with Image.open(io.BytesIO(content)) as file:
        assert file.info["mp"]
    made.clear()
    assert decode(tmp_path / "x", 99, content).equal(decode(tmp_path / "x", 99, plain))
    assert made == []


def test_directories_of_exif_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 18.9 MB, four entries that name the same bytes: 26 s, 2,937 MiB."""
    made = counted(monkeypatch)
    content = hostile.tiff_with_exif(4, 2000)
    with Image.open(io.BytesIO(content)) as file:
        file.load()
    assert made == [2000] * 4
    made.clear()
    assert decode(tmp_path / "x", 99, content).shape == (3, 8, 8)
    assert made == []


@pytest.mark.parametrize(("rows", "size", "passes"), [(60, 100, True), (60, 2**20, False)])
def test_strips_that_share_their_bytes(rows: int, size: int, passes: bool, tmp_path: Path) -> None:
    """libtiff copies those of each: 65,535 strips of a pixel took 41 s from 1.6 MB."""
    content = hostile.shared_strips(rows, size)
    if passes:
        assert decode(tmp_path / "x", 99, content).shape == (3, 16, 1)  # the middle of 60
        return
    with pytest.raises(DataError, match="far more data than its picture needs"):
        decode(tmp_path / "x", 99, content)


def test_the_bytes_of_strips_are_counted_once(tmp_path: Path) -> None:
    """65,536 entries might name the same million of values."""
    plain = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 278: 8, 279: 64}
    tags = [*(hostile.long(*one) for one in plain.items()), hostile.long(279, 64)]
    with pytest.raises(DataError, match="its tag 279 is there twice"):
        decode(tmp_path / "x", 99, hostile.directory(tags, bytes(64)))


@pytest.mark.parametrize(("kind", "most"), [(5, tiff.MAX_RATIONALS), (3, tiff.MAX_VALUES)])
def test_values_of_a_tag(kind: int, most: int, tmp_path: Path) -> None:
    """Pillow makes an object of each."""
    tags = [
        hostile.long(*one)
        for one in {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 278: 8, 279: 64}.items()
    ]
    for count, passes in ((most, True), (most + 1, False)):
        content = hostile.directory([*tags, (50_000, kind, count, bytes(4))], bytes(8 * most + 8))
        if passes:
            assert decode(tmp_path / "x", 99, content).shape == (3, 8, 8)
        else:
            with pytest.raises(DataError, match=rf"its tag 50000 has {count:,} values"):
                decode(tmp_path / "x", 99, content)


@pytest.mark.parametrize("form", ["TIFF", "BIG"])
@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "jpeg"])
def test_honest_pictures(form: str, compression: str | None, tmp_path: Path) -> None:
    """As Pillow writes them, with EXIF: the same pixels as Pillow reads."""
    picture, exif = Image.radial_gradient("L").convert("RGB"), Image.Exif()
    exif[0x0110], exif.get_ifd(0x8769)[0x829A] = "camera", 0.5
    file = io.BytesIO()
    picture.save(file, "TIFF", compression=compression, exif=exif, big_tiff=form == "BIG")
    with Image.open(io.BytesIO(file.getvalue())) as image:
        expected = image.convert("RGB").tobytes()
    read = decode(tmp_path / "x", 999, file.getvalue())
    assert read.permute(1, 2, 0).contiguous().numpy().tobytes() == expected


@pytest.mark.parametrize("tag", [256, 257, 322, 323])
def test_a_size_that_only_libtiff_sees(tag: int, tmp_path: Path) -> None:
    """An 8 x 8 picture in a tile of 26,736 x 26,736 took 2.7 GB."""
    tags = [hostile.long(one, 16) for one in (256, 257, 258, 259, 262, 277, 322, 323, 324, 325)]
    others = [one for one in tags if one[0] != tag]
    for odd, why in (
        ([hostile.long(tag, 16), hostile.long(tag, 32)], "is there twice"),
        ([(tag, 17, 1, bytes(4))], "is no size"),
        ([(tag, 4, 2, bytes(4))], "is no size"),
    ):
        with pytest.raises(DataError, match=f"its tag {tag} {why}"):
            decode(tmp_path / "x", 99, hostile.directory([*others, *odd], bytes(999)))
