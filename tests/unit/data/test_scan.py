"""The scan of a data set: each image is read once, whatever is asked of it before a training."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dear.adapters.prepare import prepare_data, read_data
from dear.data.check import check_dataset
from dear.data.images import hashes
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.evaluation.resolve import MethodSetup
from dear.reading.files import CORRECTIONS
from tests.helpers.pictures import noise_pixels, save_picture

OPENED = Counter[str]()


def count_opened(event: str, arguments: Any) -> None:
    """Count each image file that is opened."""
    if event == "open" and str(arguments[0]).endswith(".png"):
        OPENED[str(arguments[0])] += 1


sys.addaudithook(count_opened)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of five pictures, of which one is a copy and one is damaged, with corrections."""
    for number in range(10):
        path = tmp_path / "photos" / "ab"[number // 5] / f"{number}.png"
        save_picture(path, noise_pixels(0 if number == 1 else number))
    (tmp_path / "photos/b/5.png").write_bytes(b"damaged")
    (tmp_path / "photos" / CORRECTIONS).write_text("path,label\nb/6.png,c\nb/7.png,a\na/4.png,remove\n")
    return tmp_path / "photos"


def prepare_fit(data: Any, settings: DataSettings) -> None:
    """What a fit does before it encodes images."""
    prepare_data(read_data(data, settings, None), MethodSetup("dear+"), None, 1, "last")


def check(data: Any, settings: DataSettings) -> None:
    """What `dear data check` does."""
    check_dataset(str(data), settings)


@pytest.mark.parametrize("use", [prepare_fit, check])
def test_each_file_is_opened_once_by_the_scan(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Any, DataSettings], None]
) -> None:
    """Files that a table of corrections names without their hashes are read for that once more."""
    monkeypatch.setattr(hashes, "SETTLED", 0)
    named = {str(photos / name) for name in ("b/6.png", "b/7.png", "a/4.png")}
    OPENED.clear()
    use(photos, DataSettings(cache=tmp_path / "cache"))
    opened = {file: count - (file in named) for file, count in OPENED.items()}
    assert len(opened) == 10
    damaged = opened.pop(str(photos / "b/5.png"))
    assert {*opened.values()} == {1}
    assert damaged == 2  # by the corrections and by the scan: what is broken is not remembered
    OPENED.clear()
    use(photos, DataSettings(cache=tmp_path / "cache"))
    assert {os.path.basename(file) for file in OPENED} == {"5.png", *map(os.path.basename, named)}


@pytest.mark.parametrize(
    "settings", [DataSettings(), DataSettings(broken="skip"), DataSettings(short_side=12)]
)
def test_each_image_in_memory_is_read_once_before_training(
    settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Counter[int]()

    class Lazy(dict[str, bytes]):
        """A table of images that counts what is taken from it."""

        def __getitem__(self, name: str) -> Any:
            read[int(name)] += 1
            return noise_pixels(int(name))

    from dear.data.sources import objects

    real = objects.read_pairs
    monkeypatch.setattr(
        "dear.data.loading.read_object",
        lambda data, _: (real(*data)[0], Lazy().__getitem__),
    )
    data = ([noise_pixels(number) for number in range(12)], ["ant", "bee"] * 6)
    dataset = load_dataset(data, settings)
    prepare_data(dataset, MethodSetup("dear+"), None, 1, "last")
    assert read == dict.fromkeys(range(12), 1)


def test_what_is_remembered_of_files_changes_no_result(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are only hashed have no thumbnails, also if an earlier command has made these."""
    monkeypatch.setattr(hashes, "SETTLED", 0)
    files, cache = sorted(photos.glob("a/*.png")), tmp_path / "cache"
    hashed = hashes.read_files(files, 1, cache, decoded=False)
    decoded = hashes.read_files(files, 1, cache, decoded=True)
    assert all(facts.thumbnail for facts in decoded)
    assert [facts.content for facts in decoded] == [facts.content for facts in hashed]
    assert hashes.read_files(files, 1, cache, decoded=False) == hashed
    assert hashes.read_files(files, 1, cache, decoded=True) == decoded
