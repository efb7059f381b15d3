"""Contents of files: known again without reading, and never mistaken for those of other files."""

import hashlib
import multiprocessing
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dear.data.dataset import Dataset
from dear.data.images import hashes
from dear.data.images.hashes import hash_files
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from tests.helpers.pictures import save_picture
from tests.unit.data.photos import class_folders, load, picture

YEAR = 365 * 86400 * 10**9


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are read, as they are."""
    names, read_file = list[str](), hashes._read

    def counted(path: Path) -> hashes.FileFacts:
        names.append(path.name)
        return read_file(path)

    monkeypatch.setattr(hashes, "_read", counted)
    monkeypatch.setattr(hashes, "SETTLED", 0)
    return names


def test_unchanged_files_are_read_once(tmp_path: Path, read: list[str]) -> None:
    """By the BLAKE2b of their bytes; others of the same name, size and date are read."""
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(path.name.encode() * 7)
    expected = [hashlib.blake2b(letter * 7, digest_size=8).digest() for letter in (b"a", b"b", b"c")]
    cache, other_cache = tmp_path / "cache", tmp_path / "file"
    assert hash_files(paths, 2, cache) == expected
    assert sorted(read) == ["a", "b", "c"]
    read.clear()
    assert hash_files(paths[::-1], 1, cache) == expected[::-1]
    assert read == []
    before = paths[1].stat()
    (tmp_path / "x").write_bytes(b"x" * 7)
    shutil.move(tmp_path / "x", paths[1])
    os.utime(paths[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    expected[1] = hashlib.blake2b(b"x" * 7, digest_size=8).digest()
    paths[2].unlink()
    assert hash_files(paths, 1, cache) == [*expected[:2], b""]
    assert read == ["b", "c"]
    other_cache.write_bytes(b"no folder")
    assert hash_files(paths[:2], 1, other_cache) == expected[:2]
    (cache / hashes.FILE).write_bytes(b"damaged")
    assert hash_files(paths[:2], 1, cache) == expected[:2]


def test_files_that_have_just_changed_are_read_again(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next change may come within the same tick of the clock."""
    monkeypatch.setattr(hashes, "SETTLED", YEAR)
    picture(tmp_path / "a.png")
    for _ in range(2):
        hash_files([tmp_path / "a.png"], 1, tmp_path)
    assert read == ["a.png", "a.png"]


def test_pictures_of_the_same_names_and_sizes_are_another_data_set(
    tmp_path: Path, settings: DataSettings
) -> None:
    """A copy is the same one."""

    def photos(name: str, level: int) -> Dataset:
        for label in ("ant", "bee"):
            for number in range(5):
                picture(tmp_path / name / "photos" / label / f"{number}.bmp", level + number)
        return load(tmp_path / name / "photos", settings)

    first, copied, replaced = photos("first", 0), photos("copied", 0), photos("first", 1)
    assert first.train.sizes == replaced.train.sizes  # type: ignore[attr-defined]
    assert first.identity == copied.identity != replaced.identity
    for part in ("train", "test"):
        assert getattr(first, part).identity != getattr(replaced, part).identity
    (one := class_folders(tmp_path / "b", {"ant": 3, "bee": 3})).touch()
    assert load(one, settings).identity == load(one, settings).identity


def test_unchanged_pictures_are_compared_without_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder that is read twice, only a picture that was replaced; which pictures are alike is the same
    as in an empty cache.
    """
    monkeypatch.setattr(hashes, "SETTLED", 0)
    decoded, decode = list[str](), hashes.decode

    def counted(file: Path, **options: Any) -> Any:
        decoded.append(file.name)
        return decode(file, **options)

    monkeypatch.setattr(hashes, "decode", counted)
    paths = [tmp_path / "photos" / name / f"{number}.png" for name in "ab" for number in range(4)]
    for seed, path in enumerate(paths):
        save_picture(path, noise_picture(seed))
    first = load_dataset(tmp_path / "photos", DataSettings(cache=tmp_path / "cache"))
    assert len(decoded) == 8
    decoded.clear()
    again = load_dataset(tmp_path / "photos", DataSettings(cache=tmp_path / "cache"))
    assert decoded == []
    assert again.identity == first.identity
    noise_picture(0).resize((40, 30)).save(paths[2])  # like a/0.png
    known, anew = (
        load_dataset(tmp_path / "photos", DataSettings(cache=tmp_path / name)) for name in ("cache", "other")
    )
    assert decoded[0] == "2.png"
    assert len(decoded) == 1 + 8
    assert known.identity == anew.identity
    assert [known.train.groups, known.test.groups] == [anew.train.groups, anew.test.groups]
    assert sum(group != "" for part in (known.train, known.test) for group in part.groups) == 2


def noise_picture(seed: int) -> Image.Image:
    """Large spots, each of its color."""
    spots = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize((80, 60), Image.Resampling.BICUBIC)


def rows_of(part: int, count: int = 8, size: int = 4096) -> dict[bytes, bytes]:
    return {bytes([part, row]) * 8: bytes([part]) * size for row in range(count)}


def test_the_oldest_features_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file stays near its limit, and the last ones are there, whatever came before: small or large."""
    most = 2**18
    monkeypatch.setattr(hashes, "FEATURE_BYTES", most)
    parts = [rows_of(part, size=40 if part % 2 else 8192) for part in range(40)]
    for part in parts:
        assert hashes.remember_features(tmp_path, part)
        assert hashes.recall_features(tmp_path, [*part]) == part
    kept = [hashes.recall_features(tmp_path, [*part]) == part for part in parts]
    assert kept == sorted(kept)
    assert 2 * 3 <= sum(kept) <= 2 * 4  # of 64 KiB in every other one
    assert (tmp_path / hashes.FEATURES).stat().st_size < 1.5 * most


def test_several_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each with its connection, as all have."""
    with ThreadPoolExecutor(4) as writers:
        written = writers.map(lambda part: hashes.remember_features(tmp_path, rows_of(part)), range(40))
        assert all(written)
    for part in range(40):
        assert hashes.recall_features(tmp_path, [*rows_of(part)]) == rows_of(part)


def write_until_killed(folder: Path) -> None:
    """Two parts, and half of a third."""
    for part in range(2):
        hashes.remember_features(folder, rows_of(part))
    hashes._forget_oldest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    hashes.remember_features(folder, rows_of(2))


def test_a_killed_process_leaves_what_it_had_written(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=write_until_killed, args=(tmp_path,))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == -signal.SIGKILL
    known = [hashes.recall_features(tmp_path, [*rows_of(part)]) for part in range(3)]
    assert known == [rows_of(0), rows_of(1), {}]
    assert hashes.remember_features(tmp_path, rows_of(2))
    assert hashes.recall_features(tmp_path, [*rows_of(2)]) == rows_of(2)


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    """With a warning: one that is no database, and one whose pages are gone."""
    file = tmp_path / hashes.FEATURES
    hashes.remember_features(tmp_path, rows_of(1))
    for damaged in (b"cut", file.read_bytes()[:4096] + b"x" * 40_000):
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match="damaged"):
            assert hashes.recall_features(tmp_path, [*rows_of(1)]) == {}
        assert hashes.remember_features(tmp_path, rows_of(1))
        assert hashes.recall_features(tmp_path, [*rows_of(1)]) == rows_of(1)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no folder")
    assert not hashes.remember_features(tmp_path / "file", rows_of(1))
    assert hashes.recall_features(tmp_path / "file", [*rows_of(1)]) == {}
