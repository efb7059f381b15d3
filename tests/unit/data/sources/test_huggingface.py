"""Hugging Face data sets that were saved in a folder; the hub itself cannot be asked in a test."""

import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.unit.data.photos import load, refused

datasets = pytest.importorskip("datasets")


def made(labels: list[int], names: list[str] | None = None, **columns: list[Any]) -> Any:
    """Image n has the level n; the classes are numbers with names, or texts."""
    pictures = [Image.new("RGB", (7, 5), (n, n, n)) for n in range(len(labels))]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names or ["sea horse", "ant"])}
    whole = {"image": pictures, "label": labels, **columns}
    features = datasets.Features({**kinds, **{one: datasets.Value("string") for one in columns}})
    return datasets.Dataset.from_dict(whole, features=features)


def levels(images: Any) -> list[int]:
    return [int(images.load(images.labels.new_tensor([at]))[0].max()) for at in range(len(images))]


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


def test_which_column(tmp_path: Path, settings: DataSettings) -> None:
    two = made([0, 1, 0, 1], kind=["b", "a", "a", "b"])
    two.save_to_disk(tmp_path / "two")
    named = DataSettings(cache=settings.cache, label="kind", test_share=1.0)
    data = load(tmp_path / "two", named)
    assert (data.classnames, data.test.labels.tolist()) == (("a", "b"), [1, 0, 0, 1])
    refused(
        tmp_path / "two", DataSettings(cache=settings.cache, label="sort"), "name one of image, label, kind"
    )
    two.add_column("coarse", [0, 0, 1, 1]).cast_column("coarse", datasets.ClassLabel(2)).save_to_disk(
        tmp_path / "three"
    )
    refused(
        tmp_path / "three", settings, "the columns label, coarse for the classes: .* with --dataset.label"
    )
    two.remove_columns("image").save_to_disk(tmp_path / "none")
    refused(tmp_path / "none", settings, "has no column of images")


def test_the_hub_in_one_line(settings: DataSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_args: Any) -> None:
        raise ConnectionError("Couldn't reach 'someone/photos' on the Hub (LocalEntryNotFoundError)\nmore")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        DataError, match=r"cannot load .* someone/photos: Couldn't reach .* save_to_disk"
    ) as told:
        load_dataset("hf:someone/photos", settings)
    assert "\n" not in str(told.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'dear-vlm\[datasets\]'"):
        load_dataset("hf:someone/photos", settings)
