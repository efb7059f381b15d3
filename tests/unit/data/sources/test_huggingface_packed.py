"""Archives of data sets of the hub: what the library gets of them."""

import bz2
import gzip
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources.huggingface_packed import require_plain_tar
from dear.errors import DataError, DearError
from tests.standin_hub import StandIn
from tests.unit.data.sources.test_huggingface_hub import photos

USTAR, GNU, PAX = tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT
IMAGE = next(content for content in photos().values())


def tar(members: Iterable[tuple[tarfile.TarInfo, bytes]], form: int = USTAR) -> bytes:
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as file:
        for member, content in members:
            file.addfile(member, BytesIO(content))
    return packed.getvalue()


def member(name: str, content: bytes, **facts: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for fact, value in facts.items():
        setattr(info, fact, value)
    return info, content


def examples(folder: str = "") -> list[tuple[tarfile.TarInfo, bytes]]:
    contents = [*photos().values()]
    pairs = [((f"{folder}{n}.png", contents[n]), (f"{folder}{n}.cls", b"%d" % (n % 2))) for n in range(6)]
    return [member(*file) for pair in pairs for file in pair]


@pytest.mark.parametrize("form", [USTAR, GNU, PAX])
def test_a_tar_of_images_and_labels(form: int, forged: StandIn, settings: DataSettings) -> None:
    """Names of more than 100 bytes are written before the header, in two of the forms."""
    forged.files["someone/photos"] = {"train.tar": tar(examples("é" * 30 + "/" + "a" * 80), form)}
    dataset = load_dataset("hf:someone/photos", replace(settings, label="cls"))
    assert dataset.classnames == ("0", "1")
    assert len(dataset.train) + len(dataset.test) == 6


def folders() -> bytes:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in photos().items():
            file.writestr(name, content)
    return packed.getvalue()


NESTED = b'{"file_name": "0.png", "label": "a", "d": ' + b"[" * 30_000 + b"]" * 30_000 + b"}\n"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"train.zip": folders()}, r"images in '.*train\.zip': download it"),
        ({"train.tar": bz2.compress(tar(examples()))}, "no plain tar"),
        ({"train.tar": gzip.compress(tar(examples()))}, "no plain tar"),
        ({"train.tar": tar([*examples(), member("6.pth", b"x")])}, r"6\.pth"),
        ({"train.tar": tar([*examples(), member("6.json.gz", b"x")])}, r"6\.json\.gz"),
        ({"train/0.png": IMAGE, "train/metadata.jsonl": NESTED}, "nested too deeply|levels"),
    ],
)
def test_what_the_library_would_unpack_or_decode_without_bound(
    files: dict[str, bytes], reason: str, forged: StandIn, settings: DataSettings
) -> None:
    """A bzip2 of 15 kB held it beyond 100 s, nested lists ended the process by a signal."""
    forged.files["someone/photos"] = files
    with pytest.raises(DearError, match=reason) as caught:
        load_dataset("hf:someone/photos", settings)
    assert "\n" not in str(caught.value)


def test_a_zip_by_another_name_stays_packed(forged: StandIn, settings: DataSettings) -> None:
    forged.files["someone/photos"] = {"train/notes.txt": folders()} | {
        name.removeprefix("data/"): content for name, content in photos().items()
    }
    dataset = load_dataset("hf:someone/photos", settings)
    assert len(dataset.train) + len(dataset.test) == 6


def extended(facts: dict[str, str]) -> bytes:
    return tar([member("0.png", IMAGE, pax_headers=facts)], PAX)


def relabelled(start: int, new: bytes, name: str = "0.png") -> bytes:
    """A tar whose first header has other bytes, and the checksum that fits them."""
    content = bytearray(tar([member(name, IMAGE)]))
    content[start : start + len(new)] = new
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (relabelled(156, b"2"), "a link or a device"),
        (relabelled(156, b"S"), "a link or a device"),
        (relabelled(156, b"3"), "a link or a device"),
        (relabelled(124, b"77777777777"), "not complete"),
        (relabelled(124, b"\x80" + bytes(10) + b"\1"), "no plain tar"),
        (relabelled(0, b"BZh91AY&SY.png"), "no plain tar"),
        (tar([member("0.png", IMAGE)])[:600], "not complete"),
        (b"x" * 1024, "no plain tar"),
        (bytes(1024), "no members"),
        (b"", "no members"),
        (tar([member("0.png", IMAGE), member("a" * 600 + ".png", IMAGE)], GNU), "more than 512 bytes"),
        (tar([member("0.png", IMAGE), member("a" * 5000 + ".png", IMAGE)], GNU), "more than 4,096 bytes"),
        (extended({"size": "99999"}), "another size"),
        (extended({"GNU.sparse.major": "1"}), "another size"),
        (extended({"comment": "9" * 5000}), "more than 4,096 bytes"),
        (extended({"path": "x.pth"}), r"x\.pth"),
        (extended({"comment": "x"}).replace(b"13 comment=x\n", b"1" * 13), "not readable"),
    ],
)
def test_a_tar_of_something_else(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        require_plain_tar(tmp_path / "x.tar", "someone/photos")
