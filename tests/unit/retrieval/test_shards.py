"""An index in shards, which are searched together, is the index of the whole folder."""

import os
import shutil
from pathlib import Path

import pytest

from dear.errors import DataError, SettingsError
from dear.retrieval.build import build_index, parse_shard
from dear.retrieval.index import open_index
from dear.retrieval.results import Hit
from tests.unit.retrieval.solid import SHADES, Plain, gallery, paint

COUNT = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of many sides, three with the same bytes, and a file that cannot be read."""
    folder = gallery(tmp_path / "images")
    for width in range(21, 33):
        for color in SHADES:
            paint(folder / f"{width}-{color}.png", color, width)
    for name in ("copy.png", "wide/copy.png"):
        shutil.copy(folder / "25-red.png", folder / name)
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def build(folder: Path, out: Path) -> Path:
    for number in range(COUNT, 0, -1):
        build_index(Plain(), folder, out, shard=f"{number}/{COUNT}")
    return out


def near(hits: list[Hit]) -> list[tuple[str, tuple[str, ...]]]:
    return sorted((hit.path, hit.copies) for hit in hits)


@pytest.mark.parametrize("count", [1, 5, 80])
def test_shards_answer_as_the_whole_index(tmp_path: Path, folder: Path, count: int) -> None:
    build_index(Plain(), folder, tmp_path / "whole")
    whole, shards = open_index(tmp_path / "whole"), open_index(build(folder, tmp_path / "shards"))
    assert len(shards.stores) == COUNT
    assert (shards.folder, shards.features) == (whole.folder, whole.features)
    assert len(whole.query_text(Plain(), "red", {"color": 1}, count=80)) == 56  # copies share one
    for query in ("25-red.png", "wide/blue.png", "30-orange.png"):
        for weights in ({"color": 1.0}, {"class": 3.0, "color": 1.0}, {"class": 1.0, "color": -0.5}):
            want = whole.query_image(Plain(), folder / query, weights, count=count)
            found = shards.query_image(Plain(), folder / query, weights, count=count)
            assert [hit.score for hit in found] == [hit.score for hit in want]
            assert near(found) == near(want) or count < 80  # ties at the end of a short list
    hits = shards.query_text(Plain(), "red", {"color": 1}, count=80)
    (mine,) = (hit for hit in hits if hit.path == "25-red.png")
    assert mine.copies == ("copy.png", "wide/copy.png")


@pytest.mark.parametrize("shards", [1, 3])
def test_a_hit_names_as_many_copies_as_are_asked_for(shards: int, tmp_path: Path) -> None:
    """Those of all shards together; the others are counted."""
    folder, encoder = gallery(tmp_path / "images"), Plain()
    paths = ("copy.png", "red.png", "wide/copy.png")
    for path in paths:
        paint(folder / path, "red", 20)
    for number in range(1, shards + 1):
        shard = f"{number}/{shards}" if shards > 1 else None
        build_index(encoder, folder, tmp_path / "index", shard=shard)
    index = open_index(tmp_path / "index")
    vectors = dict(zip(encoder.features, encoder.texts(["red"])[0], strict=True))
    for most in range(4):
        (hit,) = (hit for hit in index.query(vectors, count=80, copies=most) if hit.path in paths)
        assert (len(hit.copies), hit.more_copies) == (min(2, most), 2 - min(2, most))


@pytest.mark.parametrize("emptied", ["never had a file", "lost its files", "has a broken file"])
def test_a_shard_may_be_empty(tmp_path: Path, emptied: str) -> None:
    """The others are found all the same: a user whose folder shrinks need not make other shards."""
    folder, shards, apart = gallery(tmp_path / "images"), tmp_path / "shards", tmp_path / "apart"
    build_index(Plain(), folder, apart, shard=f"2/{COUNT}")
    hits = open_index(apart / f"shard-2-of-{COUNT}").query_text(Plain(), "red", {"color": 1}, count=80)
    if emptied == "lost its files":
        build(folder, shards)
    for hit in hits:
        (folder / hit.path).write_bytes(b"no image") if "broken" in emptied else (folder / hit.path).unlink()
    build(folder, shards)
    left = open_index(shards).query_text(Plain(), "red", {"color": 1}, count=80)
    assert 0 < len(left) == 8 - len(hits)
    paint(folder / hits[0].path, "red", 77)
    assert build_index(Plain(), folder, shards, shard=f"2/{COUNT}").encoded == 1
    assert len(open_index(shards).query_text(Plain(), "red", {"color": 1}, count=80)) == len(left) + 1


def test_shards_that_are_refused(tmp_path: Path, folder: Path) -> None:
    for text in ("0/8", "9/8", "3", "3/8/1", "-1/8", "a/b", ""):
        with pytest.raises(SettingsError):
            parse_shard(text)
    place, whole = build(folder, tmp_path / "shards"), tmp_path / "whole"
    build_index(Plain(), folder, whole)
    for out, shard in ((place, None), (place, "1/4"), (whole, "1/3")):
        with pytest.raises(DataError, match="choose another folder with --out"):
            build_index(Plain(), folder, out, shard=shard)
    shutil.rmtree(place / "shard-2-of-3")
    with pytest.raises(DataError, match=r"lacks 1 of its 3 shards.*--shard 2/3"):
        open_index(place)
    build_index(Plain("other"), folder, place, shard="2/3")
    with pytest.raises(DataError, match=r"shard-1-of-3 and .*shard-2-of-3 are of different models"):
        open_index(place)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="is empty"):
        open_index(build(tmp_path / "broken", tmp_path / "none"))


@pytest.mark.skipif(os.name == "nt", reason="names are UTF-16 there")
@pytest.mark.parametrize("shards", [1, 2])
def test_any_name_and_any_date(tmp_path: Path, shards: int) -> None:
    """Names that are not UTF-8, of a file, of a class and of the folder itself; the years 2300 and 1906."""
    folder, place = tmp_path / os.fsdecode(b"bl\xe9u"), tmp_path / "index"
    odd = [os.fsdecode(name) for name in (b"caf\xe9.png", b"gr\xfcn/1.png", b"new\nline.png", b"100%.png")]
    for width, name in enumerate([*odd, "a.png", "b.png"], start=20):
        paint(tmp_path / "images" / str(width) / "x.png", "red", width)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(tmp_path / "images" / str(width) / "x.png", folder / name)
    (folder / os.fsdecode(b"br\xf6ken.png")).write_bytes(b"no image")
    os.utime(folder / "a.png", (10_413_792_000, 10_413_792_000))
    os.utime(folder / "b.png", (-2_000_000_000, -2_000_000_000))
    parts = [f"{number}/{shards}" for number in range(1, shards + 1)]
    built = [build_index(Plain(), folder, place, shard=part) for part in parts]
    assert sum(part.files for part in built) == 6
    assert [name for part in built for name in part.broken] == [os.fsdecode(b"br\xf6ken.png")]
    again = [build_index(Plain(), folder, place, shard=part) for part in parts]
    assert [(part.changed, part.encoded) for part in again] == [(0, 0)] * shards
    index = open_index(place)
    hits = index.query_image(Plain(), folder / odd[0], {"class": 1.0}, itself=True)
    assert {hit.path for hit in hits} == {*odd, "a.png", "b.png"}
    assert index.folder == folder
    (folder / odd[0]).unlink()
    assert sum(build_index(Plain(), folder, place, shard=part).removed for part in parts) == 1
