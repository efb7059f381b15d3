"""Zips as people have them: names of other systems and encodings, files beside the images, empty folders."""

import struct
import unicodedata
import zipfile
from pathlib import Path

import pytest

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources import archive
from tests.unit.data.photos import COUNTS, class_folders, load, picture, refused
from tests.unit.data.sources.test_archive import pack, zipped

NAMES = ("K\u00e4fer", "M\u00f6we")


def png(folder: Path) -> bytes:
    return picture(folder / "any.png").read_bytes()


def without_flag(packed: Path) -> Path:
    """The zip without the flag that its names are in UTF-8, as Info-ZIP and macOS write them."""
    content = bytearray(packed.read_bytes())
    for signature, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = -1
        while (start := content.find(signature, start + 1)) >= 0:
            (flags,) = struct.unpack_from("<H", content, start + at)
            struct.pack_into("<H", content, start + at, flags & ~archive.UTF_8)
    packed.write_bytes(content)
    return packed


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_in_utf_8_without_its_flag(form: str, tmp_path: Path, settings: DataSettings) -> None:
    """They were read in the encoding of MS-DOS: a class was called "M├╢we"."""
    names = [unicodedata.normalize(form, name) for name in NAMES]
    contents = {f"{name}/{number}.png": png(tmp_path) for name in names for number in range(2)}
    packed = without_flag(zipped(tmp_path / "d.zip", contents))
    assert zipfile.ZipFile(packed).namelist() != [*contents]
    assert load(packed, settings).classnames == NAMES
    (tmp_path / "l").mkdir()
    rows = "".join(f"{names[0]}/{number}.png,x,{part}\n" for number, part in enumerate(("train", "test")))
    listed = without_flag(
        zipped(tmp_path / "l" / "d.zip", contents | {"l.csv": f"path,label,split\n{rows}".encode()})
    )
    assert len(load(listed, settings).train) == 1


def test_a_class_without_images(tmp_path: Path, settings: DataSettings) -> None:
    """It is one by name alone if it has no files; also in a zip, of which other files are not unpacked."""
    folder = class_folders(tmp_path / "d", COUNTS)
    (folder / "fox").mkdir()
    (folder / "fox/0.mov").write_bytes(b"x")
    refused(folder, settings, "the class 'fox' has no images in ")
    packed = load(pack(tmp_path / "d.zip", folder), settings)
    assert "fox" in packed.classnames
    assert any("by name alone, without an image: fox" in note for note in packed.notes)
    assert any("no image suffix" in note for note in packed.notes)


def test_tables_that_list_no_images_beside_folders(tmp_path: Path, settings: DataSettings) -> None:
    """As in the zips of competitions."""
    folder = tmp_path / "d"
    for part in ("train", "test"):
        class_folders(folder / part, COUNTS)
    (folder / "sample_submission.csv").write_text("id,label\n7,ant\n")
    (folder / "log.jsonl").write_text('{"loss": 7}\n')
    data = load(pack(tmp_path / "d.zip", folder), settings)
    assert (data.classnames, len(data.train)) == (("ant", "sea horse"), 18)
    (folder / "train.csv").write_text("Path;Label\ntrain/ant/0.png;x\ntrain/ant/1.png;x\n")
    with pytest.warns(UserWarning, match="a single class") as warnings:
        assert load_dataset(str(pack(tmp_path / "e.zip", folder)), settings).classnames == ("x",)
    told = [str(warning.message) for warning in warnings]
    assert "e: its table train.csv says what its classes are, not its folders" in told
    assert "e: there is a single class, 'x': every image would be predicted as it" in told
