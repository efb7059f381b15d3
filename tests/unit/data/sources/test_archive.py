"""Zips of images: unpacked once, whole or not at all, and nothing outside."""

import shutil
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from dear import writing
from dear.data.settings import DataSettings
from dear.data.sources import archive
from dear.errors import DataError
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
