"""Hugging Face data sets in folders; the hub itself cannot be asked in a test."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.helpers.data import pack
from tests.helpers.errors import refuses
from tests.unit.data.photos import load, refused
from tests.unit.data.sources.saved import levels, made

datasets: Any = pytest.importorskip("datasets")
pyarrow: Any = pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")


def test_splits_and_the_order_of_classes_are_kept(tmp_path: Path, settings: DataSettings) -> None:
    """Class 0 is the sea horse, though ant comes first by name."""
    datasets.DatasetDict(
        train=made([0, 1, 0]), validation=made([1]), test=made([1, 0]), unsupervised=made([0])
    ).save_to_disk(tmp_path / "mine")
    data = load(tmp_path / "mine", settings)
    assert (data.name, data.classnames) == ("mine", ("sea horse", "ant"))
    assert (data.train.labels.tolist(), levels(data.train)) == ([0, 1, 0], [0, 1, 2])
    assert (data.test.labels.tolist(), data.val is not None and len(data.val)) == ([1, 0], 1)
    assert any("its splits unsupervised are left out" in note for note in data.notes)
    again = load_dataset(f"hf:{tmp_path / 'mine'}", settings)
    assert again.identity == data.identity
    assert len([*(tmp_path / "cache/huggingface").iterdir()]) == 1  # unpacked once


def test_splits_that_order_their_classes_differently(tmp_path: Path, settings: DataSettings) -> None:
    """Class 0 of the test split is the ant, 1 the sea horse: classes are in the order of the first split."""
    parts = datasets.DatasetDict(train=made([0, 1, 0]), test=made([1, 0, 2], ["ant", "sea horse", "owl"]))
    parts.save_to_disk(tmp_path / "mine")
    for data in (load(tmp_path / "mine", settings), load_dataset(parts, settings)):
        assert data.classnames == ("sea horse", "ant", "owl")
        assert data.train.labels.tolist() == [0, 1, 0]
        assert data.test.labels.tolist() == [0, 1, 2]


def test_without_a_split_one_is_made(tmp_path: Path, settings: DataSettings) -> None:
    made([0] * 10 + [1] * 10).save_to_disk(tmp_path / "mine")
    data = load(tmp_path / "mine", settings)
    assert (len(data.train), len(data.test)) == (14, 6)
    assert any("the data has no split" in note for note in data.notes)


def test_test_labels_that_are_kept_back(tmp_path: Path, settings: DataSettings) -> None:
    datasets.DatasetDict(train=made([0, 1]), validation=made([1, 0]), test=made([-1, -1])).save_to_disk(
        tmp_path / "mine"
    )
    data = load(tmp_path / "mine", settings)
    assert (data.val, data.test.labels.tolist()) == (None, [1, 0])
    assert "2 of its images have no label and are left out" in data.notes


@pytest.mark.parametrize("withheld", [-1, None])
def test_plain_labels_that_are_withheld(tmp_path: Path, settings: DataSettings, withheld: int | None) -> None:
    """-1 was a class, and all test images were of it: an accuracy of 100%. Beside others it is a class."""

    def numbers(values: list[int | None]) -> Any:
        return made([0] * len(values)).add_column("level", values, feature=datasets.Value("int64"))

    parts = {"train": [3, 5, 3, 5], "validation": [5, 3], "test": [withheld, withheld]}
    tables = {part: numbers(values) for part, values in parts.items()}
    datasets.DatasetDict(tables).save_to_disk(tmp_path / "mine")
    by_level = replace(settings, columns="label=level")
    data = load(tmp_path / "mine", by_level)
    assert (data.classnames, data.test.labels.tolist()) == (("3", "5"), [1, 0])
    numbers([1, -1, 1, -1]).save_to_disk(tmp_path / "signs")
    assert load(tmp_path / "signs", by_level).classnames == ("-1", "1")
    numbers([None, None]).save_to_disk(tmp_path / "none")
    refused(tmp_path / "none", by_level, "none: no image has a label in the column level")


def test_classes_without_images_where_a_split_is_made(tmp_path: Path, settings: DataSettings) -> None:
    """As after a filter: they are classes by name alone, as an empty folder is."""
    made([1, 3] * 5, ["ant", "bee", "cat", "dog"]).save_to_disk(tmp_path / "mine")
    data = load(tmp_path / "mine", settings)
    assert (data.classnames, {*data.train.labels.tolist()}) == (("ant", "bee", "cat", "dog"), {1, 3})
    assert "classes by name alone, without an image: ant, cat" in data.notes


def test_a_name_of_the_hub(settings: DataSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is asked for it and for nothing else, such as code of the data set."""
    asked = list[tuple[Any, ...]]()

    def give(*words: Any, **options: Any) -> Any:
        asked.append((*words, options))
        return datasets.DatasetDict(train=made([0, 1, 0]), test=made([1, 0]))

    monkeypatch.setattr(datasets, "load_dataset", give)
    data = load_dataset("hf:someone/photos", settings)
    assert (data.name, data.classnames, len(data.test)) == ("photos", ("sea horse", "ant"), 2)
    assert load_dataset("hf:someone/photos:small", settings).name == "photos-small"
    assert asked == [("someone/photos", None, {}), ("someone/photos", "small", {})]

    def only_converted(*words: Any, **options: Any) -> Any:
        if not options:
            raise RuntimeError("Dataset scripts are no longer supported, but found photos.py")
        return give(*words, **options)

    monkeypatch.setattr(datasets, "load_dataset", only_converted)
    assert len(load_dataset("hf:someone/photos:small", settings).test) == 2
    assert asked[2:] == [("someone/photos", {"data_dir": "small", "revision": "refs/convert/parquet"})]

    def fail(*_: Any) -> Any:
        raise ValueError("Config name is missing.\nPlease pick one among: ['a', 'b']")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    refuses(DataError, ("someone/photos", "['a', 'b']"), load_dataset, "hf:someone/photos", settings)
    monkeypatch.setitem(sys.modules, "datasets", None)
    refuses(DataError, ".[datasets]", load_dataset, "hf:someone/photos", settings)


def test_a_folder_of_parquet_files(tmp_path: Path, settings: DataSettings) -> None:
    """As `hf download` leaves it, with a script of the data set, which is not run."""
    (tmp_path / "mine/data").mkdir(parents=True)
    made([0, 1] * 5).to_parquet(tmp_path / "mine/data/train-00000-of-00001.parquet")
    (tmp_path / "mine/README.md").write_text("---\nlicense: mit\n---\n")
    data = load_dataset(f"hf:{tmp_path}/mine", settings)
    assert (data.classnames, len(data.train), len(data.test)) == (("sea horse", "ant"), 8, 2)
    made([1, 0]).to_parquet(tmp_path / "mine/data/test-00000-of-00001.parquet")
    (tmp_path / "mine/mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    refuses(DataError, "scripts", load_dataset, f"hf:{tmp_path}/mine", settings)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "mine/mine.py").unlink()
    data = load_dataset(f"hf:{tmp_path}/mine", settings)
    assert (len(data.train), data.test.labels.tolist(), levels(data.test)) == (10, [1, 0], [0, 1])


def test_a_damaged_data_set(tmp_path: Path, settings: DataSettings) -> None:
    made([0, 1]).save_to_disk(tmp_path / "mine")
    (tmp_path / "mine/state.json").write_text("{")
    refused(tmp_path / "mine", settings, "cannot load the Hugging Face data set .*mine")


def test_a_row_without_a_class_is_neither_dropped_nor_a_class(tmp_path: Path, settings: DataSettings) -> None:
    made([0, 1], kind=["a", None]).save_to_disk(tmp_path / "texts")
    by_kind = DataSettings(cache=settings.cache, columns="label=kind")
    refused(tmp_path / "texts", by_kind, r"texts, all, row 2 has no label in the column kind")


def test_in_a_zip(tmp_path: Path, settings: DataSettings) -> None:
    datasets.DatasetDict(train=made([0, 1, 0]), test=made([1])).save_to_disk(tmp_path / "mine")
    data = load(pack(tmp_path / "mine.zip", tmp_path / "mine"), settings)
    assert (data.name, data.classnames, len(data.train)) == ("mine", ("sea horse", "ant"), 3)
