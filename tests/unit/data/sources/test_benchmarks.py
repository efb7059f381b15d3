"""The rows of the benchmarks, and each reader on a small tree of its own."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torchvision.datasets

from dear.data.dataset import Dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources import benchmarks as rows
from dear.data.sources.benchmarks import (
    READERS,
    Benchmark,
    benchmarks,
    fetch,
    find_benchmark,
    published_names,
)
from dear.errors import DataError
from tests.helpers.errors import refuses
from tests.unit.data.photos import class_folders, picture

NAMES = ("ant", "bee", "emu")
WNIDS = ("n01", "n02", "n03")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Benchmark]:
    """Make a benchmark have three classes, for the length of a test."""

    def make(name: str, **fields: Any) -> Benchmark:
        small = replace(benchmarks()[name], classes=3, **fields)
        monkeypatch.setattr(rows, "benchmarks", lambda: {name: small})
        names = lambda file: WNIDS if file.endswith("wnids.txt") else NAMES  # noqa: E731
        monkeypatch.setattr(rows, "packaged_names", names)
        return small

    return make


def load(name: str, root: Path, **options: Any) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_dataset(name, DataSettings(root=root, cache=root / "cache", workers=1, **options))


def paths(images: Any) -> list[str]:
    return [*images.paths]


class TestRows:
    def test_fifteen_with_a_place_for_the_class_and_a_known_reader(self) -> None:
        assert len(benchmarks()) == 15
        for name, row in benchmarks().items():
            assert row.template.count("{}") == 1
            assert row.reader is None or row.reader in READERS
            assert len(published_names(row)) == row.classes, name
            assert row.by_hand
        assert benchmarks()["UCF101"].template.format("Archery") == "a photo of a person doing Archery."

    def test_subsets_of_imagenet_keep_its_names(self) -> None:
        row = benchmarks()["ImageNet"]
        whole = dict(zip(rows.folder_names(row) or (), published_names(row), strict=True))
        assert len(whole) == 1000
        for name in ("ImageNetA", "ImageNetR"):
            row = benchmarks()[name]
            assert [whole[wnid] for wnid in rows.folder_names(row) or ()] == [*published_names(row)]
        assert published_names(benchmarks()["ImageNetR"])[0] == "goldfish"  # n01443537

    @pytest.mark.parametrize("name", ["DTD", "dtd", "describable-textures", "DescribableTextures"])
    def test_names(self, name: str) -> None:
        found = find_benchmark(name)
        assert found is not None
        assert found.name == "DescribableTextures"


class TestReaders:
    def test_imagenet(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("ImageNet")
        class_folders(tmp_path / "imagenet/images/train", dict.fromkeys(WNIDS, 2))
        class_folders(tmp_path / "imagenet/images/val", dict.fromkeys(WNIDS, 1))
        data = load("ImageNet", tmp_path)
        assert (data.classnames, len(data.train), data.val) == (NAMES, 6, None)
        assert paths(data.test) == ["val/n01/0.png", "val/n02/0.png", "val/n03/0.png"]
        (tmp_path / "imagenet/images/val/n02/0.png").unlink()
        (tmp_path / "imagenet/images/val/n02").rmdir()
        refuses(DataError, ("ImageNet", "n02"), load, "ImageNet", tmp_path)

    def test_variants_to_test_on(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("ImageNetR")
        class_folders(tmp_path / "imagenet-rendition/imagenet-r", dict.fromkeys(WNIDS, 2))
        (tmp_path / "imagenet-rendition/imagenet-r/README.txt").write_text("x")
        data = load("imagenet_r", tmp_path)
        assert (len(data.train), len(data.test), data.classnames) == (0, 6, NAMES)

    def test_aircraft(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("FGVCAircraft")
        home = tmp_path / "fgvc_aircraft"
        for number in range(3):
            picture(home / f"images/{number}.jpg")
        (home / "variants.txt").write_text("ant\nbee two\nemu\n")
        for part, line in (("train", "0 bee two"), ("val", "1 emu"), ("test", "2 ant")):
            (home / f"images_variant_{part}.txt").write_text(line + "\n")
        data = load("fgvc_aircraft", tmp_path)
        assert data.val is not None
        assert [(paths(s), s.labels.tolist()) for s in (data.train, data.val, data.test)] == [
            (["0.jpg"], [1]), (["1.jpg"], [2]), (["2.jpg"], [0]),
        ]  # fmt: skip


class TestFetch:
    def test_into_coops_layout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def food(root: str, *, split: str, download: bool) -> None:
            assert (split, download) == ("train", True)
            picture(Path(root) / "food-101/images/pie/1.jpg")
            (Path(root) / "food-101/meta").mkdir()
            (Path(root) / "food-101.tar.gz").write_text("x")

        monkeypatch.setattr(torchvision.datasets, "Food101", food)
        result = fetch(benchmarks()["Food101"], tmp_path)
        assert (result.fetched, result.why) == (["images", "meta"], None)
        assert [line for line in result.by_hand if "split_zhou_Food101.json" in line] == result.by_hand
        assert sorted(path.name for path in (tmp_path / "food-101").iterdir()) == ["images", "meta"]
        assert "already exists" in (fetch(benchmarks()["Food101"], tmp_path).why or "")

    def test_the_words_of_an_error_say_nothing_of_the_images(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **_options: object) -> None:
            raise RuntimeError("port already in use")

        monkeypatch.setattr(torchvision.datasets, "Food101", fail)
        result = fetch(benchmarks()["Food101"], tmp_path)
        assert "already" in (result.why or "")
        assert result.by_hand == [*benchmarks()["Food101"].by_hand]
