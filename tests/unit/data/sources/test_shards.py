"""Tars and Parquet files that hold the pictures: WebDataset's samples, packed folders, tables of the hub."""

import io
import json
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from dear.adapters.by_group import read_groups
from dear.cli.predict import _paths
from dear.data.check import check_dataset
from dear.data.loading import read_listing
from dear.data.settings import DataSettings
from dear.data.sources import archive
from dear.data.sources.corrections import corrections_file
from dear.errors import DataError
from dear.limits import LimitError
from tests.helpers.errors import refuses
from tests.unit.data.photos import COUNTS, class_folders, load, paths, picture, refused
from tests.unit.data.sources.saved import levels

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")


def png(tmp_path: Path, level: int) -> bytes:
    return picture(tmp_path / "pictures" / f"{level}.png", level).read_bytes()


def tar(path: Path, members: Mapping[str, bytes | str | tarfile.TarInfo]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                file.addfile(content)
                continue
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def shard(tmp_path: Path, name: str, labels: Mapping[int, str], kind: str = "cls") -> Path:
    """A tar of samples: pictures of these levels, each with the text beside it."""
    members: dict[str, bytes | str] = {}
    for level, text in labels.items():
        members |= {f"{level:05}.png": png(tmp_path, level), f"{level:05}.{kind}": text}
    return tar(tmp_path / "shards" / name, members)


def table(path: Path, columns: Mapping[str, Any], features: Mapping[str, Any] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrow = pa.table(dict(columns))
    if features is not None:
        arrow = arrow.replace_schema_metadata(
            {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
        )
    pq.write_table(arrow, path)
    return path


def images(tmp_path: Path, *pictures: int) -> list[dict[str, Any]]:
    return [{"bytes": png(tmp_path, level), "path": f"{level}.png"} for level in pictures]


def names(data: Any) -> list[str]:
    """The class of each image, by its level."""
    pairs = [
        (level, data.classnames[label])
        for part in (data.train, data.test)
        for level, label in zip(levels(part), part.labels.tolist(), strict=True)
    ]
    return [name for _, name in sorted(pairs)]


ANIMALS = {0: "ant", 1: "bee", 2: "ant", 3: "bee", 4: "ant", 5: "bee"}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("cls", "{}\n"),
        ("txt", "{}"),
        ("json", '{{"label": "{}", "site": 7, "boxes": [1]}}'),
        ("json", '{{"class_name": "{}"}}'),
    ],
)
def test_a_sample_has_its_class_beside_it(
    tmp_path: Path, settings: DataSettings, kind: str, text: str
) -> None:
    labels = {level: text.format(name) for level, name in ANIMALS.items()}
    data = load(shard(tmp_path, "animals.tar", labels, kind), settings)
    assert (data.name, data.classnames) == ("animals", ("ant", "bee"))
    assert names(data) == [*ANIMALS.values()]


def test_the_class_comes_before_facts_and_they_before_a_text(tmp_path: Path, settings: DataSettings) -> None:
    """The .cls wins over label of a .json, and that over a caption; a mask of the sample is no image."""
    members: dict[str, bytes | str] = {}
    for level, name in ANIMALS.items():
        members |= {f"a/{level}.txt": "a caption", f"a/{level}.json": json.dumps({"label": name, "of": "x"})}
        members |= {f"a/{level}.png": png(tmp_path, level), f"a/{level}.mask.png": png(tmp_path, 99)}
    data = load(tar(tmp_path / "a.tar", members), settings)
    assert names(data) == [*ANIMALS.values()]
    members |= {f"a/{level}.cls": str(level % 3) for level in ANIMALS}
    packed = tar(tmp_path / "b.tar", members)
    assert names(load(packed, settings)) == ["0", "1", "2", "0", "1", "2"]
    assert names(load(packed, replace(settings, columns="label=label"))) == [*ANIMALS.values()]
    assert load(packed, replace(settings, columns="label=of")).classnames == ("x",)


def test_shards_are_one_data_set_in_each_spelling(tmp_path: Path, settings: DataSettings) -> None:
    """A pattern, what a shell makes of it, their folder and a folder around that: the same images, unpacked
    once for each spelling at most.
    """
    files = [
        shard(tmp_path, f"animals-{number:03}.tar", {level: name})
        for number, (level, name) in enumerate(ANIMALS.items())
    ]
    pattern = tmp_path / "shards" / "animals-{000..005}.tar"
    data = load(pattern, settings)
    assert (data.name, names(data)) == ("animals", [*ANIMALS.values()])
    for other in ([*map(str, files)], files[0].parent, tmp_path):
        again = load(other, settings) if other != tmp_path else None
        assert again is None or again.train.identity == data.train.identity
        assert again is None or paths(again) == paths(data)
    assert len([*(tmp_path / "cache/archives").iterdir()]) == 1
    assert corrections_file(str(pattern)) == files[0].with_name("corrections.csv")
    files[3].unlink()
    refused(pattern, replace(settings, cache=tmp_path / "other"), r"animals-003\.tar does not exist")


def test_shards_called_by_splits(tmp_path: Path, settings: DataSettings) -> None:
    """In their names, or in their folders; of train and validation the latter is for testing."""
    shard(tmp_path, "animals-train-0.tar", {0: "ant", 1: "bee"})
    shard(tmp_path, "animals-train-1.tar", {2: "ant"})
    shard(tmp_path, "animals-validation-0.tar", {3: "bee", 4: "ant"})
    data = load(tmp_path / "shards", settings)
    assert (levels(data.train), levels(data.test)) == ([0, 1, 2], [3, 4])
    for split, part in {"train": {0: "ant", 1: "bee"}, "test": {2: "ant"}}.items():
        shard(tmp_path, f"../wds/{split}/0.tar", part)
    data = load(tmp_path / "wds", settings)
    assert (levels(data.train), levels(data.test), data.name) == ([0, 1], [2], "wds")
    shard(tmp_path, "more-0.tar", {5: "ant"})
    refuses(DataError, "more-0.tar", load, tmp_path / "shards", settings)


def test_a_packed_folder_is_that_folder(tmp_path: Path, settings: DataSettings) -> None:
    """With files of other kinds beside, and a dot in a name."""
    folder = class_folders(tmp_path / "d", COUNTS)
    (folder / "ant" / "0.png").rename(folder / "ant" / "0.v2.png")
    (folder / "run.py").write_text("no image, no list")
    plain = load(folder, settings)
    with tarfile.open(tmp_path / "d.tar", "w") as file:
        file.add(folder, "within")
    data = load(tmp_path / "d.tar", settings)
    assert (data.name, paths(data), data.classnames) == ("d", paths(plain), plain.classnames)
    assert data.train.identity == plain.train.identity


def test_a_tar_for_each_class(tmp_path: Path, settings: DataSettings) -> None:
    """As ImageNet's training images come."""
    for name, pictures in {"ant": (0, 2), "bee": (1, 3)}.items():
        tar(tmp_path / "d" / f"{name}.tar", {f"{level}.png": png(tmp_path, level) for level in pictures})
    assert names(load(tmp_path / "d", settings)) == ["ant", "bee", "ant", "bee"]


def test_images_without_a_label_are_left_out_and_told(tmp_path: Path, settings: DataSettings) -> None:
    packed = shard(tmp_path, "a.tar", ANIMALS | {6: " "})
    for _ in range(2):  # unpacked, and as it is in the cache
        check = check_dataset(str(packed), settings)
        assert sum(check.counts.values()) == 6
        assert any("1 image has no label" in note and "00006.png" in note for note in check.notes)


def link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("ant/1.png")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        *[({name: b"x"}, "leads out of") for name in ("../out.png", "/out.png", "a/../../out.png", "..\\o")],
        ({"ant/1.png": link(tarfile.SYMTYPE)}, "is a link"),
        ({"ant/1.png": link(tarfile.LNKTYPE)}, "is a link"),
        ({"ant/1.png": link(tarfile.FIFOTYPE)}, "neither a file nor a folder"),
        ({"ant/1.png": b"x", "./ant/1.png": b"y"}, "is in the tar twice"),
    ],
)  # fmt: skip
def test_members_that_are_refused(
    tmp_path: Path, settings: DataSettings, members: Mapping[str, Any], reason: str
) -> None:
    refused(tar(tmp_path / "bad.tar", {"ant/0.png": png(tmp_path, 0)} | dict(members)), settings, reason)
    assert not [*tmp_path.rglob("out.png")]


def test_a_sparse_member_is_refused(tmp_path: Path, settings: DataSettings) -> None:
    """Of 512 bytes that say of themselves that they are 8 GB."""
    info = tarfile.TarInfo("ant/0.png")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"00000000000\0" + b"00000001000\0"  # one piece of data at the beginning
    header[483:495] = f"{2**33 - 1:011o}\0".encode()  # and the size with its holes
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    (tmp_path / "bad.tar").write_bytes(bytes(header) + bytes(512) + bytes(1024))
    with tarfile.open(tmp_path / "bad.tar") as file:
        assert file.getmembers()[0].size == 2**33 - 1
    refused(tmp_path / "bad.tar", settings, "has holes")


def test_damage_leaves_nothing(tmp_path: Path, settings: DataSettings) -> None:
    whole = shard(tmp_path, "a.tar", ANIMALS)
    whole.write_bytes(whole.read_bytes()[:-10752])
    refused(whole, settings, r"a\.tar is damaged")
    (tmp_path / "b.tar").write_text("words")
    refused(tmp_path / "b.tar", settings, r"b\.tar is damaged")
    (tmp_path / "b.parquet").write_text("words")
    refused(tmp_path / "b.parquet", settings, r"b\.parquet is damaged")
    bad = shard(tmp_path, "c.tar", ANIMALS | {9: "[1"}, "json")
    refused(bad, settings, r"c\.tar, '00000\.png', \.json")
    refused(
        shard(tmp_path, "d.tar", {0: '{"label": ["ant"]}'}, "json"), settings, "is not a text or a number"
    )
    refused(shard(tmp_path, "e.tar", {0: "an ant\nand a bee"}, "txt"), settings, "several lines")


@pytest.mark.parametrize("cell", ["struct", "binary"])
@pytest.mark.parametrize("label", ["text", "number", "named"])
def test_a_parquet_table_with_the_bytes(
    tmp_path: Path, settings: DataSettings, cell: str, label: str
) -> None:
    """Numbers have names in the schema; class 0 is the bee there, though ant comes first by name."""
    pictures: list[Any] = images(tmp_path, *ANIMALS)
    if cell == "binary":
        pictures = [picture["bytes"] for picture in pictures]
    numbers = [["bee", "ant"].index(name) for name in ANIMALS.values()]
    features = {"image": {"_type": "Image"}, "kind": {"_type": "ClassLabel", "names": ["bee", "ant"]}}
    columns = {"image": pictures, "label" if label != "named" else "kind": numbers}
    if label == "text":
        columns["label"] = [*ANIMALS.values()]
    data = load(table(tmp_path / "a.parquet", columns, features if label == "named" else None), settings)
    assert names(data) == ([*map(str, numbers)] if label == "number" else [*ANIMALS.values()])


def test_parquet_files_of_the_hub(tmp_path: Path, settings: DataSettings) -> None:
    """A downloaded repository: files of splits in data/; -1 is a withheld label, null is none."""
    features = {"label": {"_type": "ClassLabel", "names": ["ant", "bee"]}}
    parts = {
        "train-00000-of-00002": [0, 1],
        "train-00001-of-00002": [1, None],
        "validation-00000-of-00001": [0, 1],
    }
    first = 0
    for name, labels in (parts | {"test-00000-of-00001": [-1, -1]}).items():
        pictures = images(tmp_path, first, first + 1)
        table(tmp_path / "hub/data" / f"{name}.parquet", {"image": pictures, "label": labels}, features)
        first += 2
    (tmp_path / "hub/README.md").write_text("a card")
    data = load(tmp_path / "hub", settings)
    assert (levels(data.train), levels(data.test)) == ([0, 1, 2], [4, 5])
    assert (data.name, data.train.labels.tolist()) == ("hub", [0, 1, 1])
    assert any("3 images have no label" in note for note in data.notes)


def test_columns_of_a_parquet_table(tmp_path: Path, settings: DataSettings) -> None:
    """The user names that of the labels, or one by which images belong together."""
    pictures = [picture["bytes"] for picture in images(tmp_path, *ANIMALS)]
    columns = {"photo": pictures, "species": [*ANIMALS.values()], "site": list("aabbcc")}
    columns |= {"clip": [0, 0, 0, 1, 1, 1]}
    file = table(tmp_path / "a.parquet", columns)
    told = refuses(DataError, ("a.parquet", "label=COLUMN", "species, site, clip"), load, file, settings)
    assert str(settings.cache) not in told.replace(str(file), "")
    named = replace(settings, columns="label=species")
    assert names(load(file, named)) == [*ANIMALS.values()]
    for column, groups in (("site", "aabbcc"), ("clip", "000111")):
        assert [*read_listing(str(file), replace(named, group=column)).groups.values()] == list(groups)
    data = load(file, named)
    assert {*read_groups(str(file), data.train, "site", named)} <= {*"abc"}
    settings = replace(settings, cache=tmp_path / "other")
    refused(file, replace(settings, columns="label=absent"), "has no column 'absent'")
    refused(file, replace(settings, columns="path=species"), "has no column of images")
    refused(table(tmp_path / "b.parquet", {"a": [1]}), settings, "has no column of images: it has a")
    lists = table(tmp_path / "c.parquet", {"image": pictures, "label": [["ant"]] * 6})
    refused(lists, settings, "the column label holds list")


def test_a_bomb_of_one_picture_many_times(
    tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dictionary holds the picture once, so that the file and what it says of itself are small."""
    monkeypatch.setattr(archive, "MODEST", 2**16)
    big = png(tmp_path, 0) + bytes(50_000)
    file = table(tmp_path / "a.parquet", {"image": [big] * 500, "label": ["ant", "bee"] * 250})
    assert file.stat().st_size < 100_000
    refuses(LimitError, "a.parquet", load, file, settings)
    assert [*(tmp_path / "cache/archives").iterdir()] == []


def test_without_pyarrow_one_line_says_what_to_install(
    tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = table(tmp_path / "a.parquet", {"image": images(tmp_path, 0), "label": ["ant"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(file, settings, "needs the library pyarrow: pip install")


def test_shards_at_an_address(tmp_path: Path, settings: DataSettings) -> None:
    """One by one, by a pattern, and as a folder; their size is limited before they are unpacked."""
    local = [shard(tmp_path, f"a-{number}.tar", {number: name}) for number, name in ANIMALS.items()]
    system, top = fsspec.filesystem("memory"), f"/{uuid4().hex}"
    for file in local:
        system.pipe(f"{top}/{file.name}", file.read_bytes())
    here = load(local[0].parent, settings)
    for source in (f"memory:/{top}", f"memory:/{top}/a-{{0..5}}.tar"):
        data = load(source, replace(settings, cache=tmp_path / f"cache{len(source)}"))
        assert (names(data), data.train.identity) == ([*ANIMALS.values()], here.train.identity)
    system.rm(top, recursive=True)


@pytest.mark.filterwarnings("error")
def test_predict_takes_the_images_of_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    packed = shard(tmp_path, "a.tar", {level: "" for level in ANIMALS})
    found = [*_paths([str(packed)], None)]  # without a warning of what else is unpacked
    assert [Path(path).name for path in found] == [f"{level:05}.png" for level in ANIMALS]
    assert Path(found[3]).read_bytes() == png(tmp_path, 3)
    assert [*_paths([str(packed.parent)], None)] == found
