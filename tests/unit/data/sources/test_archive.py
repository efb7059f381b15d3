"""Zips of images: unpacked once, whole or not at all, and nothing outside; names of other systems and
encodings, files beside the images, empty folders.
"""

import shutil
import struct
import unicodedata
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dear import writing
from dear.data.check import check_dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources import archive
from dear.data.sources.objects import each_image
from dear.data.sources.shards import find_images
from dear.errors import DataError
from dear.limits import LimitError
from tests.helpers.data import pack
from tests.helpers.errors import refuses
from tests.interrupts import interrupt_at_each_line
from tests.unit.data.photos import COUNTS, class_folders, load, paths, picture, refused


def zipped(path: Path, contents: dict[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        for name, content in contents.items():
            file.writestr(name, content)
    return path


def test_two_processes_unpack_one_zip(
    tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = class_folders(tmp_path / "d", COUNTS)
    packed = pack(tmp_path / "d.zip", folder, "within/")
    rename = Path.rename

    def second(part: Path, target: Path) -> Path:
        if part.suffix == ".part" and not target.exists():  # the other one was first
            shutil.copytree(part, target)
        return rename(part, target)

    monkeypatch.setattr(Path, "rename", second)
    assert len(load(packed, settings).train) > 0
    assert len([*(tmp_path / "cache/archives").iterdir()]) == 1


def test_images_without_labels_may_be_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    folder = class_folders(tmp_path / "d", {"ant": 2, "bee": 1})
    packed = pack(tmp_path / "d.zip", folder, "within/")
    expected = [path.read_bytes() for path in find_images(folder, DataSettings())]
    assert len({*expected}) == 3
    assert [path.read_bytes() for path in find_images(packed, DataSettings())] == expected
    assert [Path(path).read_bytes() for path in each_image(str(packed))] == expected
    refuses(DataError, "none.zip does not exist", find_images, tmp_path / "none.zip", DataSettings())


@pytest.mark.parametrize("module", [archive, writing])
def test_ctrl_c_at_any_line_leaves_no_part(module: ModuleType, tmp_path: Path) -> None:
    packed = pack(tmp_path / "d.zip", class_folders(tmp_path / "d", {"ant": 1}))
    cache = tmp_path / "cache"

    def work() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        archive.unpack(packed, cache)

    def check() -> None:
        assert not [*cache.rglob("*.part")]

    assert interrupt_at_each_line(module, work, check) >= 3
    assert len([*cache.rglob("*.png")]) == len([*(tmp_path / "d").rglob("*.png")])


def test_a_folder_in_a_zip_is_unpacked_once(tmp_path: Path, settings: DataSettings) -> None:
    folder = class_folders(tmp_path / "d", COUNTS)
    (folder / "run.py").write_text("no image, no list")
    plain = load(folder, settings)
    packed = pack(tmp_path / "d.zip", folder, "within/")
    data = load(packed, settings)
    assert (data.name, paths(data), data.classnames) == ("d", paths(plain), plain.classnames)
    assert data.train.identity == plain.train.identity
    (unpacked,) = (tmp_path / "cache/archives").iterdir()
    assert not [*unpacked.rglob("run.py")]
    before = next(unpacked.rglob("*.png")).stat().st_mtime_ns
    load(packed, settings)
    assert next(unpacked.rglob("*.png")).stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["../out.png", "/out.png", "a/../../out.png", "..\\out.png", "C:\\out.png"])
def test_paths_that_climb_out(tmp_path: Path, settings: DataSettings, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("a/1.png", b"x")
        file.writestr(zipfile.ZipInfo(name), b"x")
    refused(tmp_path / "bad.zip", settings, "leads out of the image folder")
    assert not [*tmp_path.rglob("out.png")]


def test_backslashes_between_folders(tmp_path: Path, settings: DataSettings) -> None:
    """Windows' own tools wrote them; they must not lead out either."""
    content = picture(tmp_path / "a.png").read_bytes()
    refused(zipped(tmp_path / "out.zip", {"..\\ant\\0.png": content}), settings, r"out\.zip")
    names = [f"photos\\{name}\\{number}.png" for name in ("ant", "bee") for number in range(3)]
    data = load(zipped(tmp_path / "windows.zip", dict.fromkeys(names, content)), settings)
    assert data.classnames == ("ant", "bee")
    assert sum(map(len, paths(data).values())) == 6


def test_links_are_refused(tmp_path: Path, settings: DataSettings) -> None:
    link = zipfile.ZipInfo("a/1.png")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr(link, "/etc/passwd")
    refused(tmp_path / "bad.zip", settings, "is a link")


def test_damage_leaves_nothing(tmp_path: Path, settings: DataSettings) -> None:
    whole = pack(tmp_path / "d.zip", class_folders(tmp_path / "d", COUNTS))
    data = bytearray(whole.read_bytes())
    place = data.index(b"IDAT")  # in the first image: its checksum does not fit any more
    data[place + 5] ^= 255
    whole.write_bytes(data)
    refuses(DataError, ("d.zip", "ant/0.png"), load, whole, settings)
    assert [*(tmp_path / "cache/archives").iterdir()] == []
    whole.write_bytes(data[:99])
    refused(whole, settings, "is damaged or not a zip")
    (tmp_path / "words.zip").write_text("words")
    refused(tmp_path / "words.zip", settings, "is damaged or not a zip")


TABLES = {"t.csv": "path,label\na.png,ant\na.png,bee\n", "u.csv": "sep=;\npath;label\na.png;ant\nb.png;\n"}
BROKEN = {"empty": b"", "no image": b"no image"}


@pytest.mark.parametrize(("table", "line"), [("t.csv", 3), ("u.csv", 4)])
def test_an_error_in_a_zip_names_the_zip(
    tmp_path: Path, settings: DataSettings, table: str, line: int
) -> None:
    red = picture(tmp_path / "a.png").read_bytes()
    contents = {"inner/a.png": red, "inner/b.png": red, f"inner/{table}": TABLES[table].encode()}
    packed = zipped(tmp_path / "d.zip", contents)
    message = refuses(DataError, f"d.zip/inner/{table}, line {line}", load, packed, settings)
    assert "archives" not in message
    check = check_dataset(str(packed), settings)
    assert any(f"{packed}/inner/{table}, line {line}" in text for text in check.faults)
    assert not any("archives" in text for text in check.faults)


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_image_in_a_zip_is_told_by_the_zip(
    tmp_path: Path, settings: DataSettings, content: bytes
) -> None:
    red = picture(tmp_path / "a.png").read_bytes()
    packed = zipped(tmp_path / "d.zip", {"ant/0.png": red, "bee/0.png": red + b"x", "bee/1.png": content})

    def read() -> None:
        data = load(packed, replace(settings, broken="stop"))
        for images in (data.train, data.test):
            images.load(torch.arange(len(images)))

    assert "archives" not in refuses(DataError, "bee/1.png", read)


def test_a_zip_that_unpacks_to_many_times_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MODEST", 10**6)
    for size, packed in ((10**6, "small.zip"), (10**6 + 1, "bomb.zip")):
        with zipfile.ZipFile(tmp_path / packed, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("a/1.png", bytes(size))
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("it was unpacked"))
    bomb, given = tmp_path / "bomb.zip", ("bomb.zip", "UNPACKED_RATIO")
    refuses(LimitError, given, archive.unpack, bomb, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    with pytest.raises(pytest.fail.Exception):
        archive.unpack(tmp_path / "small.zip", tmp_path / "cache")


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
    (folder / "fox/0.pdf").write_bytes(b"x")
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
    assert any("e: its table train.csv says what its classes are, not its folders" in note for note in told)
    assert "e: there is a single class, 'x': what is fitted to it predicts it for every image" in told
