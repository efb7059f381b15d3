"""Hugging Face data sets that ask for far more than their size."""

from pathlib import Path
from typing import Any

import pytest

from dear.data.settings import DataSettings
from dear.data.sources import arrow
from dear.limits import LimitError
from tests.unit.data.photos import load, refused
from tests.unit.data.sources.saved import arrow_table, forge, made

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")


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
        with pytest.raises(LimitError, match=r"5,00\d columns of a table or a Hugging Face data set"):
            load(tmp_path / "wide", settings)

    @pytest.mark.parametrize("column", [0, 1])
    def test_batches_are_counted(
        self, column: int, tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also of what is not read: 20 MB, the same batch 5,411 times, took 47 s until it was ended."""
        made([0, 1] * 9).save_to_disk(tmp_path / "mine")
        table = arrow_table(tmp_path / "mine")
        field, texts = pyarrow.field("unread", pyarrow.string()), pyarrow.array(["a" * 2**17] * len(table))
        forge(tmp_path / "mine", table.add_column(column, field, texts), compression="zstd")
        monkeypatch.setattr("dear.data.sources.archive.MODEST", 2**20)
        if column:
            assert len(load(tmp_path / "mine", settings).train) == 12
            return
        with pytest.raises(
            LimitError, match=r"arrow: [\d,]+ times the size of the data set when it is unpacked"
        ):
            load(tmp_path / "mine", settings)

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
