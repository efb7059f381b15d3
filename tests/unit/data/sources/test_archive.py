"""Zips of images: unpacked once, whole or not at all, and nothing outside."""

import shutil
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from dear import writing
from dear.data.settings import DataSettings
from dear.data.sources import archive, table
from dear.errors import DataError, OutputError
from dear.limits import LimitError
from tests.interrupts import interrupt_at_each_line
from tests.unit.data.photos import COUNTS, class_folders, load, paths, refused


def pack(path: Path, folder: Path, within: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for place in sorted(folder.rglob("*")):
            if place.is_file():
                file.write(place, within + place.relative_to(folder).as_posix())
    return path


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


@pytest.mark.parametrize("module", [archive, writing])
def test_ctrl_c_at_any_line_leaves_no_part(module: ModuleType, tmp_path: Path) -> None:
    packed = pack(tmp_path / "d.zip", class_folders(tmp_path / "d", COUNTS))
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


def test_a_table_and_coops_layout_in_a_zip(tmp_path: Path, settings: DataSettings) -> None:
    folder = class_folders(tmp_path / "d", COUNTS)
    (folder / "list.csv").write_text("path,label,split\nant/0.png,x,train\nant/1.png,x,test\n")
    data = load(pack(tmp_path / "t.zip", folder), settings)
    assert (data.name, data.classnames, len(data.train)) == ("t", ("x",), 1)


def test_tables_of_all_formats_are_unpacked(tmp_path: Path) -> None:
    tables = {f"list{suffix}" for suffix in table.SUFFIXES}
    packed = tmp_path / "d.zip"
    with zipfile.ZipFile(packed, "w") as file:
        for name in (*tables, "a.png", "a.exe"):
            file.writestr(name, b"x")
    assert {path.name for path in archive.unpack(packed, tmp_path).folder.iterdir()} == {*tables, "a.png"}


@pytest.mark.parametrize("name", ["../out.png", "/out.png", "a/../../out.png", "..\\out.png", "C:\\out.png"])
def test_paths_that_climb_out(tmp_path: Path, settings: DataSettings, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("a/1.png", b"x")
        file.writestr(zipfile.ZipInfo(name), b"x")
    refused(tmp_path / "bad.zip", settings, "leads out of the image folder")
    assert not [*tmp_path.rglob("out.png")]


@pytest.mark.parametrize("letter", ["n", "\U0001f41d"])
def test_the_longest_name_of_a_zip(tmp_path: Path, letter: str) -> None:
    """Two of them, which are alike for as long as the names of their folders go."""
    stem = letter * (250 // len(letter.encode()))
    for last in "ab":
        packed = zipped(tmp_path / f"{stem}{last}.zip", {"a.png": last.encode()})
        assert (archive.unpack(packed, tmp_path / "cache").folder / "a.png").read_bytes() == last.encode()


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
    with pytest.raises(DataError, match=r"d\.zip, 'ant/0\.png' cannot be unpacked \(.*\): copy or pack it"):
        load(whole, settings)
    assert [*(tmp_path / "cache/archives").iterdir()] == []
    whole.write_bytes(data[:99])
    refused(whole, settings, "is damaged or not a zip")
    (tmp_path / "words.zip").write_text("words")
    refused(tmp_path / "words.zip", settings, "is damaged or not a zip")


def test_without_images(tmp_path: Path, settings: DataSettings) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e/run.py").write_text("x")
    refused(pack(tmp_path / "e.zip", tmp_path / "e"), settings, "contains no images")


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    packed = pack(tmp_path / "d.zip", class_folders(tmp_path / "d", COUNTS))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match=r"cannot unpack into .*file"):
        load(packed, DataSettings(cache=tmp_path / "file"))


def test_a_member_twice(tmp_path: Path, settings: DataSettings) -> None:
    zipped(tmp_path / "bad.zip", {"a/1.png": b"x", "a/./1.png": b"y"})
    refused(tmp_path / "bad.zip", settings, r"bad\.zip, 'a/\./1\.png' is in the zip twice")


def test_a_zip_that_unpacks_to_many_times_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MODEST", 10**6)
    for size, packed in ((10**6, "small.zip"), (10**6 + 1, "bomb.zip")):
        with zipfile.ZipFile(tmp_path / packed, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("a/1.png", bytes(size))
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(LimitError, match=r"bomb\.zip: .* times the size of .*UNPACKED_RATIO"):
        archive.unpack(tmp_path / "bomb.zip", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    with pytest.raises(pytest.fail.Exception):
        archive.unpack(tmp_path / "small.zip", tmp_path / "cache")
