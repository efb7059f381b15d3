"""Hugging Face data sets that were saved in a folder; the hub itself cannot be asked in a test."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources import arrow
from dear.errors import DataError
from dear.limits import LimitError
from tests.unit.data.photos import load, picture, refused

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")


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

    @pytest.mark.parametrize("label", [2, -2])
    def test_numbers_without_a_name(self, label: int, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1]).save_to_disk(tmp_path / "mine")
        table = arrow_table(tmp_path / "mine")
        column = table.column_names.index("label")
        forge(tmp_path / "mine", table.set_column(column, "label", pyarrow.array([0, label])))
        refused(tmp_path / "mine", settings, f"row 2 has the label {label} .*, which has 2 names")


def arrow_table(folder: Path) -> Any:
    """The table of a saved data set."""
    (stream,) = folder.glob("*.arrow")
    return pyarrow.ipc.open_stream(stream.read_bytes()).read_all()


def forge(folder: Path, table: Any, **options: Any) -> Path:
    """Give a saved data set another table, which its library would not write."""
    (stream,) = folder.glob("*.arrow")
    options = {"options": pyarrow.ipc.IpcWriteOptions(**options)}
    with pyarrow.OSFile(str(stream), "wb") as sink:  # noqa: SIM117 (the schema is in the second)
        with pyarrow.ipc.new_stream(sink, table.schema, **options) as writer:
            writer.write_table(table)
    return folder


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

    def test_labels_that_would_be_opened(self, tmp_path: Path, settings: DataSettings) -> None:
        table = made([0, 1])
        table.add_column("copy", table["label"]).rename_column("label", "old").rename_column(
            "image", "label"
        ).save_to_disk(tmp_path / "mine")
        labelled = DataSettings(cache=settings.cache, label="label")
        refused(tmp_path / "mine", labelled, "the column label holds image, not texts")


def beyond_limit(folder: Path, settings: DataSettings, message: str) -> None:
    with pytest.raises(LimitError, match=message):
        load(folder, settings)
    assert not [file for file in settings.cache_folder().rglob("*") if file.is_file()]


class TestSize:
    """A data set takes no more memory and disk than a multiple of its own size."""

    @pytest.mark.parametrize("compression", ["zstd", "lz4"])
    def test_compressed_batches(
        self, compression: str, tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made([0, 1]).save_to_disk(tmp_path / "mine")
        table = arrow_table(tmp_path / "mine")
        content = [{"bytes": bytes(10**6), "path": None}] * 2
        field = table.schema.field("image")
        images = pyarrow.array(content, type=field.type)
        forge(tmp_path / "mine", table.set_column(0, field, images), compression=compression)
        (stream,) = (tmp_path / "mine").glob("*.arrow")
        assert stream.stat().st_size < 10**4
        monkeypatch.setattr("dear.data.sources.archive.MODEST", 0)
        beyond_limit(tmp_path / "mine", settings, "times the size of the data set when it is unpacked")

    def test_uncompressed_batches_of_an_older_format(self, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1]).save_to_disk(tmp_path / "mine")
        forge(
            tmp_path / "mine",
            arrow_table(tmp_path / "mine"),
            metadata_version=pyarrow.ipc.MetadataVersion.V4,
        )
        assert len(load(tmp_path / "mine", DataSettings(cache=settings.cache, test_share=1.0)).test) == 2

    @pytest.mark.parametrize("kind", ["string_view", "dictionary", "run_end_encoded", "struct"])
    def test_other_columns_are_of_any_type(self, kind: str, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1], note=["a", "b"]).save_to_disk(tmp_path / "mine")
        table = arrow_table(tmp_path / "mine")
        view = table["note"].combine_chunks().cast(pyarrow.string_view())
        columns = {
            "string_view": view,
            "dictionary": view.cast(pyarrow.string()).dictionary_encode(),
            "run_end_encoded": pyarrow.RunEndEncodedArray.from_arrays([2], ["a"]),
            "struct": pyarrow.StructArray.from_arrays([view], ["text"]),
        }
        forge(
            tmp_path / "mine",
            table.set_column(table.column_names.index("note"), "note", columns[kind]),
        )
        assert len(load(tmp_path / "mine", DataSettings(cache=settings.cache, test_share=1.0)).test) == 2

    def test_columns(self, tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those that are not read may share their bytes, so their values are not visited."""
        values, log = arrow.ArrowFiles.values, tmp_path / "log"

        def logged(table: arrow.ArrowFiles, column: str, rows: int) -> Any:
            with log.open("a") as file:  # from a process of its own
                file.write(f"{column} ")
            return values(table, column, rows)

        monkeypatch.setattr(arrow.ArrowFiles, "values", logged)
        made([0, 1] * 9, note=["a"] * 18, more=["b"] * 18).save_to_disk(tmp_path / "mine")
        load(tmp_path / "mine", settings)
        assert log.read_text() == "label image "
        many = {str(number): [""] for number in range(5000)}
        made([0], **many).save_to_disk(tmp_path / "wide")
        with pytest.raises(LimitError, match=r"5,00\d columns of a Hugging Face data set"):
            load(tmp_path / "wide", settings)

    def test_values_outside_of_the_file(self, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1] * 9).save_to_disk(tmp_path / "mine")
        file = tmp_path / "mine" / "data-00000-of-00001.arrow"
        table = pyarrow.ipc.open_stream(file.read_bytes()).read_all()
        starts = table.column("image").chunk(0).field("bytes").buffers()[1].to_pybytes()
        content = file.read_bytes()
        assert content.count(starts[:76]) == 1
        file.write_bytes(content.replace(starts[:76], starts[:72] + (2**30).to_bytes(4, "little")))
        refused(tmp_path / "mine", settings, r"its content is damaged \(")

    def test_files_with_other_columns(self, tmp_path: Path, settings: DataSettings) -> None:
        made([0, 1] * 9).save_to_disk(tmp_path / "mine", num_shards=2)
        file = tmp_path / "mine" / "data-00001-of-00002.arrow"
        table = pyarrow.ipc.open_stream(file.read_bytes()).read_all()
        texts = pyarrow.array(["a"] * 9)
        for other in (table.set_column(1, "label", texts), table.rename_columns(["image", "sort"])):
            with pyarrow.ipc.new_stream(str(file), other.schema) as writer:
                writer.write_table(other)
            refused(tmp_path / "mine", settings, "00001-of-00002.arrow has other columns than ")

    def test_what_the_list_says_of_the_columns(self, tmp_path: Path, settings: DataSettings) -> None:
        """Its library would cast them: of columns that share bytes, this fills the memory."""
        made([0, 1] * 5, note=["1", "2"] * 5).save_to_disk(tmp_path / "mine")
        (tmp_path / "mine/dataset_info.json").write_text('{"features": {"note": {"dtype": "int64"}}}')
        assert load(tmp_path / "mine", settings).classnames == ("sea horse", "ant")

    def test_rows(self, tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        datasets.DatasetDict(train=made([0, 1]), test=made([1, 0])).save_to_disk(tmp_path / "mine")
        monkeypatch.setenv("DEAR_LIMIT_TABLE_ROWS", "3")
        beyond_limit(tmp_path / "mine", settings, "mine: 4 rows of a table, above the limit of 3")

    def test_empty_cells_count_as_files(
        self, tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """40 empty files of 4096 bytes each are more than 25 times an Arrow file of a few kilobytes."""
        made([0, 1] * 20).save_to_disk(tmp_path / "mine")
        table = arrow_table(tmp_path / "mine")
        field = table.schema.field("image")
        forge(tmp_path / "mine", table.set_column(0, field, pyarrow.nulls(40, field.type)))
        (stream,) = (tmp_path / "mine").glob("*.arrow")
        assert stream.stat().st_size < 40 * 4096 / 25
        monkeypatch.setattr("dear.data.sources.archive.MODEST", 0)
        beyond_limit(tmp_path / "mine", settings, "times the size of the data set when it is unpacked")

    def test_a_sparse_file_counts_as_what_it_takes_on_the_disk(
        self, tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made([0, 1]).save_to_disk(tmp_path / "mine")
        table = arrow_table(tmp_path / "mine")
        field = table.schema.field("image")
        cells = [{"bytes": bytes(2**22), "path": None}] * 2
        forge(tmp_path / "mine", table.set_column(0, field, pyarrow.array(cells, type=field.type)))
        (stream,) = (tmp_path / "mine").glob("*.arrow")
        content = stream.read_bytes()
        with stream.open("wb") as file:  # its zeros are a hole
            file.write(content[:4096])
            file.seek(len(content) - 4096)
            file.write(content[-4096:])
        if stream.stat().st_blocks * 512 >= len(content) / 25:
            pytest.skip("this file system has no sparse files")
        monkeypatch.setattr("dear.data.sources.archive.MODEST", 0)
        beyond_limit(tmp_path / "mine", settings, "times the size of the data set when it is unpacked")

    def test_labels(self, tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        by_kind = DataSettings(cache=settings.cache, label="kind")
        made([0, 1], kind=["a", "x" * 1001]).save_to_disk(tmp_path / "long")
        beyond_limit(tmp_path / "long", by_kind, "1,001 characters of a class name")
        made([0, 1, 0], kind=["a", "b", "c"]).save_to_disk(tmp_path / "many")
        monkeypatch.setenv("DEAR_LIMIT_CLASSES", "2")
        beyond_limit(tmp_path / "many", by_kind, "class names, above the limit of 2")


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
