"""Data sets of a hub that is forged: what it answers leads to no file outside of the cache."""

import json
import re
import resource
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError, DearError
from dear.limits import LimitError
from tests.standin_hub import StandIn
from tests.unit.data.photos import picture, refused

datasets: Any = pytest.importorskip("datasets")
pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("fault", ["etag", "commit", "missing", "sha"])
def test_what_it_answers_is_no_path(
    fault: str, forged: StandIn, tmp_path: Path, settings: DataSettings
) -> None:
    """The hub's client joins the ETag, the commit and the revision to the path of its cache."""
    precious, new = tmp_path / "precious", tmp_path / "new"
    precious.write_text("x")
    for path in (str(precious), str(new), "../../../precious", "../../../new"):
        if fault == "etag":
            forged.faults.etag = path
        elif fault == "sha":
            forged.files["someone/photos"] = {"photos.py": b"pass"}
            forged.faults.sha = path
        else:
            forged.faults.commit, forged.faults.missing = path, fault == "missing"
        with pytest.raises(DataError, match=r"states no (hash|commit) of a file of someone/photos") as caught:
            load_dataset("hf:someone/photos", settings)
        assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"precious", "cache"}
    assert precious.read_text() == "x"


def card(configuration: str) -> bytes:
    return f"---\nconfigs:\n- config_name: default\n  {configuration}\n---\n".encode()


def photos() -> dict[str, bytes]:
    """Files of a data set of two classes."""
    files = {}
    for number in range(6):
        image = BytesIO()
        Image.new("RGB", (7, 5), (40 * number, 9, 9)).save(image, "PNG")
        files[f"data/train/{('red', 'blue')[number % 2]}/{number}.png"] = image.getvalue()
    return files


def test_pictures_of_a_hub(forged: StandIn, settings: DataSettings) -> None:
    forged.files["someone/photos"] = photos() | {"README.md": card("data_files: data/**")}
    dataset = load_dataset("hf:someone/photos", settings)
    assert dataset.classnames == ("blue", "red")
    assert len(dataset.train) + len(dataset.test) == 6


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize(("configuration", "reason"), [
    ("version: OUTSIDE/new", "is no version"),
    ("version: ../../../../../new", "is no version"),
    ("data_files: OUTSIDE/**", "is no path in the data set"),
    ("data_files: [{split: train, path: [data/**, HOST/x.csv]}]", "is no path in the data set"),
    ("data_files: {train: 'zip://*.csv::HOST/x.zip'}", "is no path in the data set"),
    ("data_files: 'data/../../x'", "is no path in the data set"),
    ("data_files: ~/**", "is no path in the data set"),
    ("data_files: file:OUTSIDE/x.csv", "is no path in the data set"),
    ("data_dir: OUTSIDE", "is no path in the data set"),
    ("data_files: 'data/*a*a*a*a.png'", "more wildcards"),
    ("data_files: '**/a/**/b/**'", "more wildcards"),
    ("data_files: [" + "x," * 1001 + "]", "above the limit"),
    ("data_files: [" * 70 + "]" * 70, "levels"),
])  # fmt: skip
def test_what_its_card_names_is_of_its_own(
    file: str, configuration: str, reason: str, forged: StandIn, tmp_path: Path, settings: DataSettings
) -> None:
    """The library writes below the version, and lists and asks whatever a pattern names."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "x.csv").write_text("image,label")
    configuration = configuration.replace("OUTSIDE", str(precious)).replace("HOST", forged.cdn)
    description = card(configuration)
    if file == ".huggingface.yaml":
        description = description.removeprefix(b"---\n").removesuffix(b"---\n")
    forged.files["someone/photos"] = photos() | {file: description}
    with pytest.raises(DearError, match=f"{re.escape(file)} of someone/photos.*{reason}") as caught:
        load_dataset("hf:someone/photos", settings)
    assert "\n" not in str(caught.value)
    assert [path.name for path in precious.iterdir()] == ["x.csv"]
    assert not {"/x.csv", "/x.zip"} & {path for _, path, _ in forged.requests}


def test_aliases_of_aliases_in_its_card(forged: StandIn, settings: DataSettings) -> None:
    """The library quotes a configuration without a name, which takes gigabytes."""
    levels = "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    text = f"---\na0: &a0 [{'x,' * 10}]\n{levels}configs:\n- name: *a8\n---\n"
    forged.files["someone/photos"] = {"README.md": text.encode()}
    with pytest.raises(LimitError, match="values in a YAML file"):
        load_dataset("hf:someone/photos", settings)


@pytest.mark.parametrize(("name", "content"), [("a.csv", b"image,label\nx,1\n"), ("a.h5", b"x")])
def test_a_format_without_images(name: str, content: bytes, forged: StandIn, settings: DataSettings) -> None:
    forged.files["someone/photos"] = {name: content}
    with pytest.raises(DataError, match="only imagefolder, parquet, webdataset are read from the hub"):
        load_dataset("hf:someone/photos", settings)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metadata.csv", b"file_name,label" + b"," * 6000 + b"\n0.png,red\n"),
        ("metadata.csv", b'file_name,"' + b'\n","' * 6000 + b'"\n0.png,red\n'),
        ("metadata.csv", b"file_name,label\n0.png" + b",red" * 6000 + b"\n"),
        (
            "metadata.jsonl",
            b"".join(b'{"file_name": "0.png", "x%d": 1}\n' % n for n in range(6000)),
        ),
    ],
)
def test_a_table_beside_its_images_has_few_columns(
    name: str, content: bytes, forged: StandIn, settings: DataSettings
) -> None:
    """A file of 300 kB was not read in four minutes."""
    image = next(content for name, content in photos().items() if name.endswith(".png"))
    forged.files["someone/photos"] = {"train/0.png": image, f"train/{name}": content}
    with pytest.raises(LimitError, match=rf"{name} of someone/photos: [56],\d{{3}} columns"):
        load_dataset("hf:someone/photos", settings)


@pytest.mark.usefixtures("forged")
def test_a_format_of_the_library_is_no_data_set(
    tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would take the files of the current folder."""
    picture(tmp_path / "red" / "0.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="imagefolder is no data set of the hub"):
        load_dataset("hf:imagefolder", settings)


def test_labels_that_python_cannot_hold(tmp_path: Path, settings: DataSettings) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("timestamp[s]")})
    rows = {"image": [Image.new("RGB", (7, 5))] * 2, "label": [1, 2]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "mine")
    labelled = DataSettings(cache=settings.cache, label="label")
    refused(tmp_path / "mine", labelled, r"the column label holds timestamp\[s\], not texts, numbers")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux only")
@pytest.mark.parametrize(("repeats", "groups", "reason"), [
    (500, 1, "more than 128 MiB of memory to unpack"),
    (100, 4, "times the size of the data set when it is unpacked"),
])  # fmt: skip
def test_what_parquet_unpacks_to_is_bounded(
    repeats: int, groups: int, reason: str, forged: StandIn, settings: DataSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A value that is stored once may be that of any number of rows."""
    picture = pyarrow.DictionaryArray.from_arrays([0] * repeats, pyarrow.array([bytes(10**6)]))
    table = pyarrow.table({"image": picture, "label": [0] * repeats})
    file, options = BytesIO(), {"compression": "zstd", "dictionary_pagesize_limit": 2**24}
    with parquet.ParquetWriter(file, table.schema, store_schema=False, **options) as writer:
        for _ in range(groups):
            writer.write_table(table)
    features = b"[{name: image, dtype: image}, {name: label, dtype: int64}]"
    description = b"---\ndataset_info: {features: " + features + b"}\n---\n"
    forged.files["someone/photos"] = {"README.md": description, "a.parquet": file.getvalue()}
    monkeypatch.setenv("DEAR_LIMIT_UNPACKING_BYTES", str(2**27 if groups == 1 else 2**30))
    with pytest.raises(LimitError, match=f"someone/photos.*{reason}"):
        load_dataset("hf:someone/photos", settings)
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("where", ["dataset_info.json", "the Arrow file"])
def test_class_names_are_counted_before_the_library_takes_them(
    where: str, tmp_path: Path, settings: DataSettings
) -> None:
    """Of three million it made tables for more than a minute."""
    names = [f"n{number}" for number in range(25_001)]
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    rows = {"image": [Image.new("RGB", (7, 5))] * 2, "label": [0, 1]}
    few = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    datasets.Dataset.from_dict(rows, features=few).save_to_disk(tmp_path / "mine")
    info, file = tmp_path / "mine" / "dataset_info.json", next((tmp_path / "mine").glob("*.arrow"))
    if where == "dataset_info.json":
        info.write_text(json.dumps(json.loads(info.read_text()) | {"features": features}))
    else:
        table = pyarrow.ipc.open_stream(file.read_bytes()).read_all()
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(LimitError, match=r"25,001 class names, above the limit"):
        load_dataset(f"hf:{tmp_path / 'mine'}", settings)
