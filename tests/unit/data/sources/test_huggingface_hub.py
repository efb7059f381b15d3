"""Data sets of a hub that may be forged, and Parquet files that ask for more than they hold."""

import itertools
import json
import os
import random
import resource
import shutil
import sys
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.data.dataset import Dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources import arrow, huggingface
from dear.data.sources.arrow import _arrays
from dear.data.sources.huggingface_hub import choose
from dear.errors import DataError, DearError
from dear.limits import LimitError
from dear.reading.files import size_on_disk
from tests.standin_hub import StandIn
from tests.unit.data.photos import refused
from tests.unit.data.sources.conftest import CONVERTED

datasets: Any = pytest.importorskip("datasets")
pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")
Pictures = Callable[..., bytes]


def load(name: str, settings: DataSettings) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_dataset(name, settings)


def levels(images: Any) -> list[int]:
    return [int(images.load(images.labels.new_tensor([at]))[0].max()) for at in range(len(images))]


def test_the_conversion_of_the_hub(
    forged: StandIn, settings: DataSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load("hf:someone/photos", settings)
    assert data.classnames == ("sea horse", "ant")
    assert (data.train.labels.tolist(), levels(data.train)) == ([0, 1, 0], [0, 1, 2])
    assert (data.test.labels.tolist(), levels(data.test)) == ([1, 0], [0, 1])
    assert "fetching the data set someone/photos (2 files) once from" in capsys.readouterr().err
    assert not [path for _, path, _ in forged.requests if "README" in path or "photos.py" in path]
    assert load("hf:someone/photos", settings).identity == data.identity
    assert len(forged.downloads()) == 2
    assert capsys.readouterr().err == ""


def test_without_the_hub_those_of_the_last_time(
    forged: StandIn, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = load("hf:someone/photos", settings).identity
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load("hf:someone/photos", settings).identity == identity
    with pytest.raises(DataError, match="cannot reach the hub for the data set someone/others"):
        load_dataset("hf:someone/others", settings)
    assert forged.files


def test_a_data_set_that_is_not_converted(
    forged: StandIn, settings: DataSettings, pictures: Pictures
) -> None:
    """As push_to_hub writes it, with the fingerprint of older versions too."""
    del forged.files[CONVERTED]
    with pytest.raises(DataError, match="someone/photos has no Parquet files by split"):
        load_dataset("hf:someone/photos", settings)
    forged.files["someone/photos"] |= {
        "data/train-00000-of-00002.parquet": pictures(0), "data/train-00001-of-00002.parquet": pictures(1),
        "data/validation-00000-of-00001-0123456789abcdef.parquet": pictures(1, 0),
    }  # fmt: skip
    data = load("hf:someone/photos", settings)
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1], [1, 0])


def test_what_there_is_not(forged: StandIn, settings: DataSettings) -> None:
    with pytest.raises(DataError, match=r"cannot load .* someone/others: .* Check the name"):
        load_dataset("hf:someone/others", settings)
    with pytest.raises(DataError, match="has no configuration 'small': it has default"):
        load_dataset("hf:someone/photos:small", settings)
    with pytest.raises(DearError, match="cannot load the Hugging Face data set"):
        load_dataset("hf:../photos", settings)
    assert forged.files


class TestNames:
    def test_configurations(self) -> None:
        names = ["b/train/0000.parquet", "a/partial-train/0001.parquet", "a/partial-train/0000.parquet"]
        with pytest.raises(DataError, match="has the configurations a, b: give one, as in x:NAME"):
            choose(names, "", "x")
        chosen = choose([*names, "a/README.md", "c.parquet"], "a", "x")
        assert chosen.splits == {"train": [names[2], names[1]]}
        assert chosen.partial
        assert not choose(names, "b", "x").partial
        assert choose([*names, "default/test/0000.parquet"], "", "x").splits.keys() == {"test"}

    def test_files_that_are_missing(self) -> None:
        with pytest.raises(DataError, match="x has 1 of 2 files of the split train"):
            choose(["data/train-00001-of-00002.parquet"], "", "x")
        two = "data/train-0000{}-of-00002-{}.parquet"
        whole, twice = ([two.format(number, 16 * "a") for number in numbers] for numbers in ((0, 1), (0, 0)))
        assert len(choose(whole, "", "x").splits["train"]) == 2
        twice[1] = two.format(0, 16 * "b")
        for names in (twice, ["default/train/0000.parquet", "default/train/0002.parquet"]):
            with pytest.raises(DataError, match="files of the split train that are missing or doubled"):
                choose(names, "", "x")
        with pytest.raises(DataError, match="files of the split train of several conversions"):
            choose([*whole, "default/train/0000.parquet"], "", "x")

    @pytest.mark.parametrize("name", [
        "../train/0000.parquet", "a/../0000.parquet", "/a/train/0000.parquet", "a/train/b/0000.parquet",
        ".a/train/0000.parquet", "a\\b/train/0000.parquet", "a\n/train/0000.parquet", "train/0000.parquet",
        "data/../train-00000-of-00001.parquet", "~/.x/0000.parquet", f"{'a' * 300}/train/0000.parquet",
    ])  # fmt: skip
    def test_what_is_no_file_of_a_split(self, name: str) -> None:
        with pytest.raises(DataError, match="has no Parquet files"):
            choose([name], "", "x")


def test_a_folder_as_a_repository_has_it(tmp_path: Path, settings: DataSettings, pictures: Pictures) -> None:
    (tmp_path / "mine/data").mkdir(parents=True)
    (tmp_path / "mine/data/train-00000-of-00001.parquet").write_bytes(pictures(*[0, 1] * 5))
    data = load(f"hf:{tmp_path}/mine", settings)
    assert (len(data.train), len(data.test)) == (8, 2)
    assert load(f"hf:{tmp_path}/mine:default", settings).identity == data.identity
    shutil.move(tmp_path / "mine/data/train-00000-of-00001.parquet", tmp_path / "x.parquet")
    (tmp_path / "mine/data/train-00000-of-00001.parquet").symlink_to(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"00001\.parquet: it is a link out of its folder"):
        load_dataset(f"hf:{tmp_path}/mine", settings)


def test_a_folder_of_the_hubs_cache(tmp_path: Path, settings: DataSettings, pictures: Pictures) -> None:
    """`hf download` prints it: its files are links to the blobs of their repository."""
    repository = tmp_path / "datasets--own--set"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs" / ("a" * 64)).write_bytes(pictures(*[0, 1] * 5))
    data = repository / "snapshots" / ("c" * 40) / "data"
    data.mkdir(parents=True)
    (data / "train-00000-of-00001.parquet").symlink_to(Path("../../../blobs", "a" * 64))
    assert len(load(f"hf:{data.parent}", settings).train) == 8
    (tmp_path / "x.parquet").write_bytes(pictures(0, 1))
    (data / "test-00000-of-00001.parquet").symlink_to(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"test-00000-of-00001\.parquet: it is a link out of its folder"):
        load_dataset(f"hf:{data.parent}", settings)


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_file_of_many_names_counts_once(
    link: Callable[[Path, Path], None], tmp_path: Path, settings: DataSettings, pictures: Pictures,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A folder of 1.1 MB with 100 links unpacked to 2.5 GB, and one with 24 took 51 s of 49 allowed."""
    names = [tmp_path / f"mine/data/train-0000{number}-of-00009.parquet" for number in range(9)]
    names[0].parent.mkdir(parents=True)
    names[0].write_bytes(pictures(0, 1))
    for name in names[1:]:
        link(names[0], name)
    modest, sizes = huggingface.require_modest, list[int]()

    def counted(name: object, unpacked: int, size: int) -> None:
        sizes.append(size)
        modest(name, unpacked, size)

    def unlimited(read: Callable[[], Any], _: str, *, seconds: int, **__: object) -> Any:
        sizes.append(seconds - huggingface.SECONDS)
        return read()

    monkeypatch.setattr(huggingface, "require_modest", counted)
    monkeypatch.setattr(huggingface, "isolated", unlimited)
    monkeypatch.setattr(huggingface, "BYTES_A_SECOND", 1)
    data = load(f"hf:{tmp_path}/mine", settings)
    assert len(data.train) + len(data.test) == 18
    assert {*sizes} == {size_on_disk(names[0])}


def write(folder: Path, table: Any, **options: Any) -> str:
    """A folder with a Parquet file of a table; its name as a data set."""
    (folder / "mine/data").mkdir(parents=True, exist_ok=True)
    file = folder / "mine/data/test-00000-of-00001.parquet"
    with parquet.ParquetWriter(file, table.schema, **options) as writer:
        writer.write_table(table)
    return f"hf:{folder}/mine"


def cells(*contents: bytes | None) -> Any:
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    return pyarrow.array([content and {"bytes": content, "path": None} for content in contents], type=kind)


class TestParquet:
    """A Parquet file of a stranger takes memory, disk and time within the limits."""

    @pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux only")
    @pytest.mark.parametrize(("megabytes", "repeats", "reason"), [
        # A process that has freed as much before has room for a value, and then counts them.
        (150, 2, "128 MiB of memory to read.* Set DEAR_LIMIT_UNPACKING_BYTES|times the size of the data set"),
        (1, 400, "times the size of the data set when it is unpacked"),
    ])  # fmt: skip
    def test_what_it_unpacks_to(
        self, megabytes: int, repeats: int, reason: str, tmp_path: Path, settings: DataSettings,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """A value that is stored once may be that of any number of rows."""
        table = pyarrow.table({"image": cells(*[bytes(megabytes * 10**6)] * repeats), "label": [0] * repeats})
        options = {"compression": "zstd", "dictionary_pagesize_limit": 2**29}
        name = write(tmp_path, table, **options)
        del table
        monkeypatch.setenv("DEAR_LIMIT_UNPACKING_BYTES", str(2**27))
        with pytest.raises(LimitError, match=reason):
            load_dataset(name, settings)
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
        assert not [*settings.cache_folder().rglob("*.part")]

    def test_a_group_of_rows_is_not_in_memory_at_once(self, tmp_path: Path) -> None:
        """All rows are one by default: an honest file of 658 MB took more than 2 GiB."""
        noise, before = random.Random(3), pyarrow.total_allocated_bytes()
        write(tmp_path, pyarrow.table({"image": cells(*[noise.randbytes(2**20) for _ in range(20)])}))
        file = tmp_path / "mine/data/test-00000-of-00001.parquet"
        plain = parquet.ParquetFile(file, pre_buffer=False).iter_batches(1, use_threads=False)
        next(plain)
        at_once = pyarrow.total_allocated_bytes() - before
        plain.close()
        ours = arrow._arrays(file, "image", 1, images=True)
        next(ours)
        assert pyarrow.total_allocated_bytes() - before < at_once - 10 * 2**20  # half of the file
        ours.close()

    def test_class_names_are_counted(self, tmp_path: Path, settings: DataSettings) -> None:
        names = [f"n{number}" for number in range(25_001)]
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        table = pyarrow.table({"image": cells(b"x"), "label": [0]})
        facts = {"huggingface": json.dumps({"info": {"features": features}})}
        with pytest.raises(LimitError, match=r"25,001 class names, above the limit"):
            load_dataset(write(tmp_path, table.replace_schema_metadata(facts)), settings)

    @pytest.mark.parametrize("features", [
        "no JSON", "[]", '{"info": 1}', '{"info": {"features": [1]}}',
        '{"info": {"features": {"label": {"_type": "ClassLabel", "names": 3}}}}',
        '{"info": {"features": {"label": {"_type": "ClassLabel", "names": ["a", 3]}}}}',
        '{"info": {"features": {"image": {"_type": "Audio"}}}}', "[" * 100 + "]" * 100,
    ])  # fmt: skip
    def test_what_it_says_of_its_columns(self, features: str, tmp_path: Path, settings: DataSettings) -> None:
        table = pyarrow.table({"image": cells(b"x"), "label": [0]})
        with pytest.raises(DearError) as caught:
            load_dataset(write(tmp_path, table.replace_schema_metadata({"huggingface": features})), settings)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("count", [1, 3])
    def test_columns_of_other_lengths(
        self, count: int, tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Pages may hold more or fewer values than the description says; then images get others' labels."""
        name = write(tmp_path, pyarrow.table({"image": cells(b"x", b"y"), "label": [0, 1]}))
        monkeypatch.setattr(arrow, "_arrays", lambda *_: iter([pyarrow.array([0] * count)]))
        with pytest.raises(DataError, match="its column 'label' has not one value in each row"):
            load_dataset(name, settings)

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these processes")
    @pytest.mark.parametrize(("attack", "reason"), [
        (lambda *_: itertools.repeat(pyarrow.array([], "int64")), "mine: it takes more than 1 s to read"),
        (lambda *_: os.abort(), "mine: it is damaged, or takes .*SIGABRT"),
    ])  # fmt: skip
    def test_what_arrow_may_do_with_it(
        self, attack: Callable[..., Any], reason: str, tmp_path: Path, settings: DataSettings,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """With row groups that name one page of zeros, or a schema whose fields are all its first."""
        name = write(tmp_path, pyarrow.table({"image": cells(b"x"), "label": [0]}))
        monkeypatch.setattr("dear.data.sources.huggingface.SECONDS", 1)
        monkeypatch.setattr(arrow, "_arrays", attack)
        with pytest.raises(DearError, match=reason):
            load_dataset(name, settings)
        arrays = _arrays
        monkeypatch.setattr(arrow, "_arrays", lambda *facts: (attack if facts[3] else arrays)(*facts))
        with pytest.raises(DearError, match=reason):
            load_dataset(name, settings)
        assert not [*settings.cache_folder().rglob("*.part")]

    def test_a_schema_of_many_levels(self, tmp_path: Path, settings: DataSettings) -> None:
        """Before version 26 of Arrow it ended the process."""
        kind = pyarrow.int64()
        for _ in range(150):
            kind = pyarrow.struct([("a", kind)])
        rows = {"image": cells(b"x"), "label": [0], "deep": pyarrow.nulls(1, kind)}
        with pytest.raises(DataError, match=r"its content is damaged .*nested"):
            load_dataset(write(tmp_path, pyarrow.table(rows)), settings)

    def test_columns_that_share_a_name(self, tmp_path: Path, settings: DataSettings) -> None:
        rows = [cells(b"x"), pyarrow.array([0]), pyarrow.array([1])]
        for names in (["image", "label", "label"], ["image", "label", "image"]):
            name = write(tmp_path, pyarrow.table(rows, names))
            with pytest.raises(DataError, match="two of its columns have the same name"):
                load_dataset(name, settings)

    def test_what_is_no_parquet(self, tmp_path: Path, settings: DataSettings, pictures: Pictures) -> None:
        name = write(tmp_path, pyarrow.table({"image": cells(b"x"), "label": [0]}))
        file, good = tmp_path / "mine/data/test-00000-of-00001.parquet", pictures(0, 1)
        footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
        for content, reason in (
            (b"", "not a complete Parquet file"),
            (good[:-1], "not a complete Parquet file"),
            (good[:-8] + (2**31).to_bytes(4, "little") + b"PAR1", "bytes of the description at the end"),
            (good[:-8] + (2**20).to_bytes(4, "little") + b"PAR1", "its content is damaged"),
            (good[:footer] + bytes(32) + good[footer + 32 :], "its content is damaged"),
        ):
            file.write_bytes(content)
            with pytest.raises(DearError, match=reason) as caught:
                load_dataset(name, settings)
            assert "\n" not in str(caught.value)

    def test_texts_as_labels(self, tmp_path: Path, settings: DataSettings) -> None:
        images = []
        for level in range(2):
            file = BytesIO()
            Image.new("RGB", (7, 5), (level,) * 3).save(file, "PNG")
            images.append(file.getvalue())
        table = pyarrow.table({"image": cells(*images), "label": ["b", "a"]})
        data = load(write(tmp_path, table), settings)
        assert (data.classnames, data.test.labels.tolist()) == (("a", "b"), [1, 0])
        dictionary = table.set_column(1, "label", table["label"].combine_chunks().dictionary_encode())
        with pytest.raises(DataError, match="the column label holds dictionary"):
            load_dataset(write(tmp_path, dictionary), settings)


def test_labels_that_python_cannot_hold(tmp_path: Path, settings: DataSettings) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("timestamp[s]")})
    rows = {"image": [Image.new("RGB", (7, 5))] * 2, "label": [1, 2]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "mine")
    labelled = DataSettings(cache=settings.cache, label="label")
    refused(tmp_path / "mine", labelled, r"the column label holds timestamp\[s\], not texts, numbers")
