"""Hugging Face data sets that were saved in a folder; the hub itself cannot be asked in a test."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from dear.limits import LimitError
from tests.unit.data.photos import load, picture, refused
from tests.unit.data.sources.saved import arrow_table, forge, levels, made

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")


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


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_folder_whose_name_is_not_in_utf_8(tmp_path: Path, settings: DataSettings) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    made([0, 1, 0, 1]).save_to_disk(tmp_path / "mine")
    (tmp_path / "mine").rename(folder)
    assert len(load(folder, settings).train) == 2
    for file in folder.iterdir():
        file.unlink()
    (folder / "data").mkdir()
    made([0, 1, 0, 1]).to_parquet(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").rename(folder / "data/train-00000-of-00001.parquet")
    assert len(load_dataset(f"hf:{folder}", settings).train) == 2


def test_two_splits_of_one_kind(tmp_path: Path, settings: DataSettings) -> None:
    """A data set of the hub cannot be changed, so the usual name counts."""
    parts = {"train": [0, 1], "validation": [0, 1, 1], "dev": [1, 0], "test": [1, 0]}
    datasets.DatasetDict({part: made(labels) for part, labels in parts.items()}).save_to_disk(
        tmp_path / "mine"
    )
    data = load(tmp_path / "mine", settings)
    assert data.val is not None
    assert data.val.labels.tolist() == [0, 1, 1]
    assert "its splits dev are left out" in data.notes


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
    by_level = replace(settings, label="level")
    data = load(tmp_path / "mine", by_level)
    assert (data.classnames, data.test.labels.tolist()) == (("3", "5"), [1, 0])
    numbers([1, -1, 1, -1]).save_to_disk(tmp_path / "signs")
    assert load(tmp_path / "signs", by_level).classnames == ("-1", "1")
    numbers([None, None]).save_to_disk(tmp_path / "none")
    refused(tmp_path / "none", by_level, "none: no image has a label in the column level")


def test_classes_without_images_where_a_split_is_made(tmp_path: Path, settings: DataSettings) -> None:
    """As after a filter: refused for good. Without training, an image may be taken for one of them."""
    made([1, 3] * 5, ["ant", "bee", "cat", "dog"]).save_to_disk(tmp_path / "mine")
    data = load(tmp_path / "mine", settings)
    assert (data.classnames, {*data.train.labels.tolist()}) == (("bee", "dog"), {0, 1})
    assert "2 classes without images are left out: ant, cat" in data.notes
    assert load(tmp_path / "mine", replace(settings, test_share=1.0)).classnames == (
        "ant",
        "bee",
        "cat",
        "dog",
    )


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


def test_without_the_library_or_the_hub(settings: DataSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"cannot reach the hub .* someone/photos .*save_to_disk") as caught:
        load_dataset("hf:someone/photos", settings)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(pyarrow, "__version__", "25.1.0")
    with pytest.raises(DataError, match=r"needs pyarrow 26 or newer, not 25\.1\.0, .*pip install"):
        load_dataset("hf:someone/photos", settings)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"pip install '\.\[datasets\]' in the clone"):
        load_dataset("hf:someone/photos", settings)


class TestLabels:
    """A row without a class, or with one that has no name, is neither dropped nor a class of its own."""

    def test_null(self, tmp_path: Path, settings: DataSettings) -> None:
        made([0, None, 1]).save_to_disk(tmp_path / "numbers")  # type: ignore[list-item]
        refused(tmp_path / "numbers", settings, r"numbers, all, row 2 has no label in the column label")
        made([0, 1], kind=["a", None]).save_to_disk(tmp_path / "texts")
        by_kind = DataSettings(cache=settings.cache, label="kind")
        refused(tmp_path / "texts", by_kind, r"texts, all, row 2 has no label in the column kind")

    def test_not_a_number(self, tmp_path: Path, settings: DataSettings) -> None:
        table = made([0, 1]).add_column("level", [1.5, float("nan")])
        datasets.DatasetDict(test=table).save_to_disk(tmp_path / "mine")
        refused(
            tmp_path / "mine",
            DataSettings(cache=settings.cache, label="level"),
            "mine, test, row 2 has no label in the column level",
        )

    def test_zeros_of_both_signs_are_one_class(self, tmp_path: Path, settings: DataSettings) -> None:
        parts = {"train": [-0.0, 1.0], "test": [1.0, 0.0]}
        tables = {part: made([0, 1]).add_column("level", levels) for part, levels in parts.items()}
        datasets.DatasetDict(tables).save_to_disk(tmp_path / "mine")
        data = load(tmp_path / "mine", DataSettings(cache=settings.cache, label="level"))
        assert data.classnames == ("0.0", "1.0")
        assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1], [1, 0])

    @pytest.mark.parametrize("label", [2, -2])
    def test_numbers_without_a_name(self, label: int, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1]).save_to_disk(tmp_path / "mine")
        table = arrow_table(tmp_path / "mine")
        column = table.column_names.index("label")
        forge(tmp_path / "mine", table.set_column(column, "label", pyarrow.array([0, label])))
        refused(tmp_path / "mine", settings, f"row 2 has the label {label} .*, which has 2 names")


def test_unpacked_images_that_were_changed(tmp_path: Path, settings: DataSettings) -> None:
    """They are found by their order: with one less and one more, labels would be those of others."""
    made([0, 1, 0]).save_to_disk(tmp_path / "mine")
    folder = load(tmp_path / "mine", settings).test.folder
    first = next((folder / "all").glob("000000000.*"))
    first.rename(folder / "all" / "000000003.png")
    refused(tmp_path / "mine", settings, rf"all holds other files than were unpacked: remove {folder},")
    shutil.rmtree(folder / "all")
    refused(tmp_path / "mine", settings, rf"all holds other files than were unpacked: remove {folder},")
    shutil.rmtree(folder)
    assert load(tmp_path / "mine", settings).test.folder == folder


def test_a_data_set_is_called_as_its_folder(
    tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made([0, 1]).save_to_disk(tmp_path / "mine")
    (tmp_path / "mine" / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "mine" / "inner")
    assert load(Path(".."), settings).name == "mine"


def test_a_folder_called_like_a_data_set_of_the_hub(
    tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a stranger's folder it would be taken for the hub's."""
    made([0, 1]).save_to_disk(tmp_path / "owner" / "mine")
    monkeypatch.chdir(tmp_path)
    for name, told in (("owner/mine", True), ("./owner/mine", False)):
        with pytest.warns(UserWarning, match="mine") as caught:
            load_dataset(f"hf:{name}", settings)
        notes = [str(warning.message) for warning in caught]
        assert any("owner/mine, no data set of the hub" in note for note in notes) == told


def test_the_name_of_a_column_is_short(tmp_path: Path, settings: DataSettings) -> None:
    """It is told in a note."""
    made([0, 1]).rename_column("label", "l" * 301).save_to_disk(tmp_path / "mine")
    with pytest.raises(LimitError, match=r"a column of .*mine: 301 characters of a name"):
        load(tmp_path / "mine", settings)


class TestPaths:
    """A data set names no image, and Arrow files below its own folder only."""

    @pytest.mark.parametrize("name", ["/etc/passwd", "/dev/zero", "../secret", "own.png"])
    def test_cells_name_no_files(self, name: str, tmp_path: Path, settings: DataSettings) -> None:
        """Its library would copy a file of that name into it, so the cell is changed afterwards."""
        picture(tmp_path / "mine" / "own.png")
        (tmp_path / "secret").write_text("mine")
        made([0, 1, 0]).save_to_disk(tmp_path / "mine")
        table = arrow_table(tmp_path / "mine")
        field = table.schema.field("image")
        cells = [*table["image"].to_pylist()[:2], {"bytes": None, "path": name}]
        forge(tmp_path / "mine", table.set_column(0, field, pyarrow.array(cells, type=field.type)))
        refused(tmp_path / "mine", settings, r"000000002\.bin")  # an empty file
        forge(tmp_path / "mine", table.set_column(0, field, pyarrow.array(cells[2:] * 3, type=field.type)))
        refused(tmp_path / "mine", settings, "holds no image files, only their names at most")

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

    def test_names_that_are_too_long(self, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1]).save_to_disk(tmp_path / "mine")
        state = json.loads((tmp_path / "mine/state.json").read_text())
        state["_data_files"] = [{"filename": "x" * 300}]
        (tmp_path / "mine/state.json").write_text(json.dumps(state))
        refused(tmp_path / "mine", settings, "mine/x+: File name too long")
        (tmp_path / "splits").mkdir()
        (tmp_path / "splits/dataset_dict.json").write_text(json.dumps({"splits": ["y" * 400]}))
        refused(tmp_path / "splits", settings, "splits/y+: File name too long")

    @pytest.mark.parametrize("extra", ["state.json", "dataset_info.json"])
    def test_lists_of_both_kinds(self, extra: str, tmp_path: Path, settings: DataSettings) -> None:
        """Its library reads the state, whatever dataset_dict.json says."""
        made([0, 1]).save_to_disk(tmp_path / "other")
        datasets.DatasetDict(test=made([0, 1])).save_to_disk(tmp_path / "mine")
        assert len(load(tmp_path / "mine", settings).test) == 2
        (tmp_path / "mine/dataset_dict.json").write_text('{"splits": []}')
        refused(tmp_path / "mine", settings, "mine is empty")
        shutil.copy(tmp_path / "other" / extra, tmp_path / "mine")
        refused(tmp_path / "mine", settings, rf"mine has dataset_dict.json, .* and {extra}, .*: remove")

    def test_a_format_loads_no_library(self, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1]).save_to_disk(tmp_path / "mine")
        state = json.loads((tmp_path / "mine/state.json").read_text())
        state |= {"_format_type": "tensorflow", "_format_kwargs": {"sort": 1}, "_format_columns": ["none"]}
        (tmp_path / "mine/state.json").write_text(json.dumps(state))
        data = load(tmp_path / "mine", DataSettings(cache=settings.cache, test_share=1.0))
        assert data.test.labels.tolist() == [0, 1]

    def test_files_that_are_listed_twice(self, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1]).save_to_disk(tmp_path / "mine")
        state = json.loads((tmp_path / "mine/state.json").read_text())
        name = state["_data_files"][0]["filename"]
        state["_data_files"] += [{"filename": f"./{name}"}]
        (tmp_path / "mine/state.json").write_text(json.dumps(state))
        refused(tmp_path / "mine", settings, "is listed twice: save the data set again")

    def test_names_behind_links(self, tmp_path: Path, settings: DataSettings) -> None:
        """A chain of 600 links of 4 kB made each name take 2 s, before anything was limited."""
        made([0, 1]).save_to_disk(tmp_path / "mine")
        state = json.loads((tmp_path / "mine/state.json").read_text())
        name = state["_data_files"][0]["filename"]
        (tmp_path / "mine/inner").symlink_to(tmp_path / "mine")
        state["_data_files"] = [{"filename": f"inner/{name}"}]
        (tmp_path / "mine/state.json").write_text(json.dumps(state))
        refused(tmp_path / "mine", settings, f"inner/{name}' is not a file of the data set")

    def test_names_are_few(self, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1]).save_to_disk(tmp_path / "mine")
        state = json.loads((tmp_path / "mine/state.json").read_text())
        state["_data_files"] = [{"filename": str(number)} for number in range(10_001)]
        (tmp_path / "mine/state.json").write_text(json.dumps(state))
        with pytest.raises(LimitError, match="10,001 files of a Hugging Face data set"):
            load(tmp_path / "mine", settings)

    def test_names_of_many_levels(self, tmp_path: Path, settings: DataSettings) -> None:
        """200 of 480 levels, of which none was there, took 47 s."""
        (tmp_path / "mine").mkdir()
        names = ["/".join([str(number), *"a" * 64]) for number in range(200)]
        (tmp_path / "mine/dataset_dict.json").write_text(json.dumps({"splits": names}))
        with pytest.raises(LimitError, match=r"mine/dataset_dict\.json, splits: 65 levels of folders"):
            load(tmp_path / "mine", settings)

    def test_labels_that_would_be_opened(self, tmp_path: Path, settings: DataSettings) -> None:
        table = made([0, 1])
        table.add_column("copy", table["label"]).rename_column("label", "old").rename_column(
            "image", "label"
        ).save_to_disk(tmp_path / "mine")
        labelled = DataSettings(cache=settings.cache, label="label")
        refused(tmp_path / "mine", labelled, "the column label holds image, not texts")


def test_a_copied_fingerprint_gives_no_images_of_another(tmp_path: Path, settings: DataSettings) -> None:
    """state.json says which data set it is; that of another may be copied."""
    folder, whole = tmp_path / "mine", DataSettings(cache=settings.cache, test_share=1.0)
    made([0, 1, 0]).save_to_disk(folder)
    state = json.loads((folder / "state.json").read_text())
    assert levels(load(folder, whole).test) == [0, 1, 2]
    shutil.rmtree(folder)
    made([0, 0, 0, 1, 0, 1]).select([3, 4, 5]).flatten_indices().save_to_disk(folder)
    other = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(other | {"_fingerprint": state["_fingerprint"]}))
    data = load(folder, whole)
    assert levels(data.test) == [3, 4, 5]


def test_two_names_of_a_split(tmp_path: Path, settings: DataSettings) -> None:
    """The last one replaced the others."""
    datasets.DatasetDict(train=made([0, 1]), Train=made([0]), test=made([1])).save_to_disk(tmp_path / "mine")
    refused(tmp_path / "mine", settings, "mine: train and Train are both the train split: merge them")


def test_images_with_two_fields_of_one_name(tmp_path: Path, settings: DataSettings) -> None:
    """One was taken for their type, the other for their content."""
    made([0, 1]).save_to_disk(tmp_path / "mine")
    table = arrow_table(tmp_path / "mine")
    cells = table["image"].combine_chunks()
    texts, content = pyarrow.array(["a", "b"]), cells.field("bytes")
    for first, second in ((texts, content), (content, content)):
        double = pyarrow.StructArray.from_arrays([first, second], names=["bytes", "bytes"])
        forge(tmp_path / "mine", table.set_column(0, "image", double))
        refused(tmp_path / "mine", settings, "has no column of images: it has image, label")
