"""Hugging Face data sets that were saved in a folder; the hub itself cannot be asked in a test."""

import json
import os
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


def naming(folder: Path, name: str) -> Path:
    """A saved data set of three images, the last of which is a path. Its library would copy a file of that
    name into it, so the cell is changed afterwards.
    """
    import pyarrow

    made([0, 1, 0]).save_to_disk(folder)
    (arrow,) = folder.glob("*.arrow")
    with pyarrow.memory_map(str(arrow)) as source:
        table = pyarrow.ipc.open_stream(source).read_all()
    field = table.schema.field("image")
    cells = [*table["image"].to_pylist()[:2], {"bytes": None, "path": name}]
    table = table.set_column(0, field, pyarrow.array(cells, type=field.type))
    forged = arrow.with_suffix(".forged")
    with pyarrow.OSFile(str(forged), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    forged.replace(arrow)
    return folder


class TestPaths:
    """A data set may name files below its own folder only."""

    @pytest.mark.parametrize("name", ["/etc/passwd", "/dev/zero", "../secret", "link.png", "a/../../secret"])
    def test_cells_that_name_what_is_outside(self, name: str, tmp_path: Path, settings: DataSettings) -> None:
        (tmp_path / "secret").write_text("mine")
        folder = naming(tmp_path / "mine", name)
        (folder / "link.png").symlink_to("../secret")
        refused(folder, settings, "all, row 3: .* is not a file of the data set")
        assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path, settings: DataSettings) -> None:
        folder = naming(tmp_path / "mine", "pipe.png")
        os.mkfifo(folder / "pipe.png")
        refused(folder, settings, r"pipe\.png: it is a pipe, not a regular file")

    def test_a_file_of_its_own_is_read(self, tmp_path: Path, settings: DataSettings) -> None:
        folder = naming(tmp_path / "mine", "images/2.png")
        (folder / "images").mkdir()
        Image.new("RGB", (7, 5), (2, 2, 2)).save(folder / "images/2.png")
        data = load(folder, DataSettings(cache=settings.cache, test_share=1.0))
        assert levels(data.test) == [0, 1, 2]

    @pytest.mark.parametrize("name", ["../other/data-00000-of-00001.arrow", "/dev/zero"])
    def test_arrow_files_outside(self, name: str, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1]).save_to_disk(tmp_path / "other")
        made([0, 1]).save_to_disk(tmp_path / "mine")
        state = json.loads((tmp_path / "mine/state.json").read_text())
        state["_data_files"] = [{"filename": name}]
        (tmp_path / "mine/state.json").write_text(json.dumps(state))
        refused(tmp_path / "mine", settings, "is not a file of the data set")

    def test_splits_outside(self, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1]).save_to_disk(tmp_path / "other")
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine/dataset_dict.json").write_text('{"splits": ["../other"]}')
        refused(tmp_path / "mine", settings, "'../other' is not a file of the data set")

    def test_labels_that_would_be_opened(self, tmp_path: Path, settings: DataSettings) -> None:
        table = made([0, 1])
        table.add_column("copy", table["label"]).rename_column("label", "old").rename_column(
            "image", "label"
        ).save_to_disk(tmp_path / "mine")
        labelled = DataSettings(cache=settings.cache, label="label")
        refused(tmp_path / "mine", labelled, "the column label holds Image, not classes")
