"""Indexes in shards: searched together or merged, they are the index of the whole folder."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dear.errors import DataError, OutputError, SettingsError
from dear.retrieval.build import build_index
from dear.retrieval.catalogue import Catalogue, Entry
from dear.retrieval.database import FILE
from dear.retrieval.query import Index, Shards, by_image, by_text, open_index
from dear.retrieval.results import Hit
from dear.retrieval.scan import Shard, Stamp
from dear.retrieval.shards import all_shards, merge_index
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
        build_index(Plain(), folder, out, shard=Shard(number, COUNT))
    return out


def near(hits: list[Hit]) -> list[tuple[str, tuple[str, ...]]]:
    return [(hit.path, hit.copies) for hit in hits]


def files(index: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(index / FILE)) as database:
        return database.execute("SELECT * FROM files ORDER BY path").fetchall()


def facts_of(index: Path) -> dict[str, object]:
    with closing(Catalogue.open(index)) as catalogue:
        return catalogue.metadata()


def test_a_file_stays_in_its_shard() -> None:
    files = dict.fromkeys((f"{n}.png" for n in range(100)), Stamp(1, 1))
    parts = [Shard(number, 4).of(files) for number in (1, 2, 3, 4)]
    assert sorted(path for part in parts for path in part) == sorted(files)
    assert max(map(len, parts)) < 40
    # CRC-32 of "123456789" is 0xCBF43926, the check value of the algorithm: 3421780262 = 2 mod 4.
    assert [*Shard(3, 4).of({"123456789": Stamp(1, 1)})] == ["123456789"]
    assert Shard.parse("3/8") == Shard(3, 8)
    assert str(Shard(3, 8)) == "3/8"
    for text in ("0/8", "9/8", "3", "3/8/1", "-1/8", "a/b", ""):
        with pytest.raises(SettingsError, match=r"shard '.*': give its number"):
            Shard.parse(text)


@pytest.mark.parametrize("count", [1, 5, 80])
def test_shards_answer_as_the_whole_index(tmp_path: Path, folder: Path, count: int) -> None:
    build_index(Plain(), folder, tmp_path / "whole")
    whole, shards = Index.open(tmp_path / "whole"), open_index(build(folder, tmp_path / "shards"))
    assert isinstance(shards, Shards)
    assert (shards.folder, shards.features, shards.offered) == (whole.folder, whole.features, whole.offered)
    assert len(near(by_text(whole, Plain(), "red", {"color": 1}, count=80))) == 56  # copies share one
    for query in ("25-red.png", "wide/blue.png", "30-orange.png"):
        for weights in ({"color": 1.0}, {"class": 3.0, "color": 1.0}, {"class": 1.0, "color": -0.5}):
            want = by_image(whole, Plain(), folder / query, weights, count=count)
            found = by_image(shards, Plain(), folder / query, weights, count=count)
            # Sums of products in another order: the last bits of float32 may differ.
            assert [hit.score for hit in found] == pytest.approx([hit.score for hit in want], abs=1e-6)
            assert sorted(near(found)) == sorted(near(want)) or count < 80  # ties at the end of a short list
            assert {(hit.path, hit.sha256) for hit in found} <= {
                (hit.path, hit.sha256) for hit in by_image(whole, Plain(), folder / query, weights, count=80)
            }
    (mine,) = (
        hit for hit in by_text(shards, Plain(), "red", {"color": 1}, count=80) if hit.path == "25-red.png"
    )
    assert mine.copies == ("copy.png", "wide/copy.png")


@pytest.mark.parametrize("emptied", ["never had a file", "lost its files", "has a broken file"])
def test_a_shard_may_be_empty(tmp_path: Path, emptied: str) -> None:
    """The others are found all the same: a user whose folder shrinks need not make other shards."""
    folder, shards = gallery(tmp_path / "images"), tmp_path / "shards"
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*.png")]
    of_second = [folder / path for path in paths if Shard(2, COUNT).has(path)]
    assert 0 < len(of_second) < len(paths)
    if emptied == "lost its files":
        build(folder, shards)
    for path in of_second:
        path.write_bytes(b"no image") if emptied == "has a broken file" else path.unlink()
    build(folder, shards)
    build_index(Plain(), folder, tmp_path / "whole")
    whole = by_text(Index.open(tmp_path / "whole"), Plain(), "red", {"color": 1}, count=80)
    assert len(whole) == len(paths) - len(of_second)  # all have contents of their own
    merged = merge_index(shards, tmp_path / "merged")
    assert merged.files == len(paths) - len(of_second)
    for index in (open_index(shards), Index.open(tmp_path / "merged")):
        assert sorted(near(by_text(index, Plain(), "red", {"color": 1}, count=80))) == sorted(near(whole))
    assert by_text(Index.open(Shard(2, COUNT).folder(shards)), Plain(), "red", {"color": 1}) == []
    paint(of_second[0], "red", 77)
    assert build_index(Plain(), folder, shards, shard=Shard(2, COUNT)).encoded == 1
    assert len(by_text(open_index(shards), Plain(), "red", {"color": 1}, count=80)) == len(whole) + 1


def test_all_shards_may_not_be_empty(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "broken.png").write_bytes(b"no image")
    build(tmp_path / "images", tmp_path / "shards")
    for call in (Shards.open, lambda place: merge_index(place, tmp_path / "merged")):
        with pytest.raises(DataError, match=r"the shards in .*shards have no readable image"):
            call(tmp_path / "shards")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(("numbers", "at_once"), [(2**23, 1000), (20, 7)])
def test_merged_they_are_the_whole_index(
    tmp_path: Path, folder: Path, numbers: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if four rows are copied, and seven files written, at a time."""
    monkeypatch.setattr("dear.retrieval.shards.NUMBERS", numbers)
    monkeypatch.setattr("dear.retrieval.shards.WRITTEN_AT_ONCE", at_once)
    whole, out = tmp_path / "whole", tmp_path / "merged"
    built = build_index(Plain(), folder, whole)
    merged = merge_index(build(folder, tmp_path / "shards"), out)
    assert (merged.files, merged.rows, merged.encoded) == (built.files, built.rows, 0)
    assert [*merged.broken] == [*built.broken] == ["broken.png"]
    assert (files(out), facts_of(out)) == (files(whole), facts_of(whole))
    for feature in range(2):
        paths = [index / "vectors-1" / f"{feature}.f16" for index in (out, whole)]
        assert np.array_equal(*(np.fromfile(path, dtype="<f2") for path in paths))
    paint(folder / "new.png", "green", 50)
    again, encoder = build_index(Plain(), folder, out), Plain()
    assert (again.added, again.encoded, again.unchanged) == (1, 1, built.files + 1)
    assert len(Shards.open(tmp_path / "shards").shards) == COUNT  # they stay
    with pytest.raises(OutputError, match="is an index already"):
        merge_index(tmp_path / "shards", out)
    assert encoder.seen == 0


def test_an_interrupted_merge_starts_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, out = build(folder, tmp_path / "shards"), tmp_path / "merged"
    for at in ("dear.retrieval.shards._gathered", "dear.retrieval.shards.finish"):
        with monkeypatch.context() as patch:
            patch.setattr(at, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                merge_index(place, out)
        with pytest.raises(DataError, match="empty or incomplete"):
            Index.open(out)
    merged, built = merge_index(place, out), build_index(Plain(), folder, tmp_path / "whole")
    assert (merged.rows, merged.files) == (built.rows, built.files)
    assert files(out) == files(tmp_path / "whole")
    assert by_text(Index.open(out), Plain(), "red", {"color": 1}, count=1)[0].score == pytest.approx(1)


def test_nothing_of_an_interrupted_merge_of_others_stays(tmp_path: Path, folder: Path) -> None:
    """Neither a fact that these shards lack, nor a size, nor a file."""
    place, out = build(folder, tmp_path / "shards"), tmp_path / "merged"
    merge_index(place, tmp_path / "plain")
    with closing(Catalogue.open(tmp_path / "plain")) as plain:
        facts = plain.metadata()
    first = {name: facts[name] for name in ("identity", "folder", "model")} | {"merging": True}
    out.mkdir()
    with (
        closing(
            Catalogue.create(out, {**first, "features": ["a", "b"], "embed": 9, "shard": [1, 2]})
        ) as other,
        other.change(),
    ):
        other.put([Entry("no.png", Stamp(1, 1), "a" * 64, 0)])
        other.set(rows=1)
    merge_index(place, out)
    with closing(Catalogue.open(out)) as merged:
        assert {**merged.metadata(), "generation": 0} == {**facts, "generation": 0}
    assert files(out) == files(tmp_path / "plain")
    assert Index.open(out).rows == facts["rows"]


def test_a_shard_alone_is_updated_and_searched(tmp_path: Path, folder: Path) -> None:
    place = build(folder, tmp_path / "shards")
    before = len(files(Shard(2, COUNT).folder(place)))
    for n in range(20):
        paint(folder / f"more-{n}.png", "blue", 60 + n)
    built = build_index(Plain(), folder, place, shard=Shard(2, COUNT))
    assert 0 < built.added < 20
    assert built.unchanged == before
    alone = open_index(Shard(2, COUNT).folder(place))
    assert isinstance(alone, Index)
    blue = {hit.path for hit in by_text(alone, Plain(), "blue", {"color": 1}, count=200)}
    assert sum(path.startswith("more") for path in blue) == built.added


def test_what_is_refused(tmp_path: Path, folder: Path) -> None:
    place, whole = tmp_path / "shards", tmp_path / "whole"
    with pytest.raises(DataError, match="holds no shards of an index"):
        merge_index(place, tmp_path / "merged")
    build_index(Plain(), folder, place, shard=Shard(2, COUNT))
    for call in (Shards.open, open_index, lambda place: merge_index(place, tmp_path / "merged")):
        with pytest.raises(DataError, match=r"lacks 2 of its 3 shards \(1/3, 3/3\): .* --shard 1/3"):
            call(place)
    assert not (tmp_path / "merged").exists()
    with pytest.raises(DataError, match="holds shards of 3, not of 4"):
        build_index(Plain(), folder, place, shard=Shard(1, 4))
    with pytest.raises(DataError, match="holds shards of an index: give --shard"):
        build_index(Plain(), folder, place)
    with pytest.raises(DataError, match="is shard 2/3 of an index: build it as such"):
        build_index(Plain(), folder, Shard(2, COUNT).folder(place))
    build_index(Plain(), folder, whole)
    with pytest.raises(DataError, match="is a whole index, not a folder of shards"):
        build_index(Plain(), folder, whole, shard=Shard(1, COUNT))
    for number in (1, 3):
        build_index(Plain("another"), folder, place, shard=Shard(number, COUNT))
    for call in (Shards.open, lambda place: merge_index(place, tmp_path / "merged")):
        with pytest.raises(DataError, match=r"shard-1-of-3 and .*shard-2-of-3 were built with another model"):
            call(place)
    shutil.copytree(Shard(2, COUNT).folder(place), place / "shard-2-of-9")
    with pytest.raises(DataError, match="holds shards of 3 and of 9"):
        Shards.open(place)


def test_few_of_many_shards(tmp_path: Path) -> None:
    (tmp_path / "shard-3-of-999999").mkdir()
    with pytest.raises(DataError, match=r"lacks 999998 of its 999999 shards \(1/\d+, 2/\d+, 4/\d+, 5/"):
        Shards.open(tmp_path)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shard-2-of-3", r"shard-2-of-3 is a link, which is not followed: copy the shard there"),
        ("shard-4-of-3", r"holds shard 4/3, which there cannot be: remove it"),
    ],
)
def test_folders_that_are_no_shards_are_refused(tmp_path: Path, folder: Path, name: str, why: str) -> None:
    place = build(folder, tmp_path / "shards")
    if name == "shard-2-of-3":
        (place / name).rename(tmp_path / "mine")
        (place / name).symlink_to(tmp_path / "mine")
    else:
        shutil.copytree(place / "shard-1-of-3", place / name)
        written(place / name, "UPDATE facts SET value = '[4, 3]' WHERE key = 'shard'")
    for call in (Shards.open, lambda place: merge_index(place, tmp_path / "merged")):
        with pytest.raises(DataError, match=why):
            call(place)
    assert not (tmp_path / "merged").exists()


def test_a_folder_with_another_name_for_a_shard_is_none(tmp_path: Path, folder: Path) -> None:
    """One of the two would be taken in silence, by chance."""
    place = build(folder, tmp_path / "shards")
    shutil.copytree(place / "shard-1-of-3", place / "shard-01-of-3")
    assert [path.name for path in all_shards(place).values()] == [f"shard-{n}-of-3" for n in (1, 2, 3)]


def written(shard: Path, change: str, *values: object) -> None:
    with closing(sqlite3.connect(shard / FILE)) as database, database:
        database.execute(change, values)


def overwritten(shard: Path, content: bytes) -> None:
    """The first row of the feature "color"."""
    file = shard / "vectors-1" / "1.f16"
    file.write_bytes(content * 5 + file.read_bytes()[10:])


FIRST = "WHERE path = (SELECT MIN(path) FROM files WHERE row IS NOT NULL)"
FORGERIES = {
    "another width": ("UPDATE facts SET value = '32' WHERE key = 'embed'", "another width each"),
    "other features": (
        "UPDATE facts SET value = '[\"class\", \"evil\"]' WHERE key = 'features'", "features each",
    ),
    "another number": ("UPDATE facts SET value = '[3, 3]' WHERE key = 'shard'", "it is not shard 2/3"),
    "a row beyond": (f"UPDATE files SET row = 9000000000000000000 {FIRST}", "its entry of .* is wrong"),
    "a row below": (f"UPDATE files SET row = -1 {FIRST}", "its entry of .* is wrong"),
    "a path in text": (f"UPDATE files SET path = CAST(path AS TEXT) {FIRST}", "is no path in its folder"),
    "a path above": (f"UPDATE files SET path = CAST('../../passwd' AS BLOB) {FIRST}", "is no path in its"),
    "a path of the root": (f"UPDATE files SET path = CAST('/passwd' AS BLOB) {FIRST}", "is no path in its"),
    "a path with a dot": (
        f"UPDATE files SET path = CAST('./' || path AS BLOB) {FIRST}", "is no path in its",
    ),
    "an empty path": (f"UPDATE files SET path = X'' {FIRST}", "is no path in its"),
    "a stray path": (f"UPDATE files SET path = CAST('5.png' AS BLOB) {FIRST}", "not belong to shard"),
    "a hash that is none": (f"UPDATE files SET sha256 = 'x' {FIRST}", "its entry of .* is wrong"),
    "a size that is none": (f"UPDATE files SET size = 'x' {FIRST}", "its entry of .* is wrong"),
    "many facts": (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) "
        "INSERT INTO facts SELECT i, '1' FROM n", "it has more than 100 facts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_shard_is_refused(tmp_path: Path, folder: Path, name: str) -> None:
    place = build(folder, tmp_path / "shards")
    change, why = FORGERIES[name]
    written(Shard(2, COUNT).folder(place), change)
    with pytest.raises(DataError, match=why) as told:
        merge_index(place, tmp_path / "merged")
    assert len(str(told.value)) < 1000
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("content", [b"\0\x7e", b"\0\x7c", b"\0\0", b"\0\x44"])  # NaN, infinity, 0, 4
def test_forged_vectors_are_not_merged(tmp_path: Path, folder: Path, content: bytes) -> None:
    place = build(folder, tmp_path / "shards")
    overwritten(Shard(2, COUNT).folder(place), content)
    with pytest.raises(DataError, match=r"shard-2-of-3 is damaged \(vectors-1/1.f16 holds rows that are not"):
        merge_index(place, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("name", ["another width", "other features", "another number", "many facts"])
def test_forged_shards_are_not_searched(tmp_path: Path, folder: Path, name: str) -> None:
    place = build(folder, tmp_path / "shards")
    change, why = FORGERIES[name]
    written(Shard(2, COUNT).folder(place), change)
    with pytest.raises(DataError, match=f"{why}|truncated"):
        Shards.open(place)


def test_a_content_has_the_same_features_in_every_shard(tmp_path: Path, folder: Path) -> None:
    """Its hash may be forged, as no image is read; two shards' vectors of one content are compared."""
    names = [name for name in ("25-red.png", "copy.png", "wide/copy.png") if (folder / name).exists()]
    place = build(folder, tmp_path / "shards")
    shards = {name: next(n for n in (1, 2, 3) if Shard(n, COUNT).has(name)) for name in names}
    assert len({*shards.values()}) > 1
    shutil.rmtree(folder)
    folder.mkdir()
    os.mkfifo(folder / "copy.png")  # which no merge opens
    forged = Shard(shards["copy.png"], COUNT).folder(place)
    with closing(sqlite3.connect(forged / FILE)) as database:
        ((row,),) = database.execute("SELECT row FROM files WHERE path = CAST('copy.png' AS BLOB)").fetchall()
    vectors = np.memmap(forged / "vectors-1" / "1.f16", dtype="<f2", mode="r+").reshape(-1, 5)
    vectors[row] = [0, 0, 0, 0, 1]
    vectors.flush()
    with pytest.raises(DataError, match=r"has the content of a file in .*, but not its features"):
        merge_index(place, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.skipif(os.name == "nt", reason="names are UTF-16 there")
def test_any_name_and_any_date(tmp_path: Path) -> None:
    """Names that are not UTF-8, of a file, of a class and of the folder itself; the years 2300 and 1906."""
    folder = tmp_path / os.fsdecode(b"bl\xe9u")
    odd = [os.fsdecode(name) for name in (b"caf\xe9.png", b"gr\xfcn/1.png", b"new\nline.png", b"100%.png")]
    for width, name in enumerate([*odd, "a.png", "b.png"], start=20):
        paint(tmp_path / "images" / str(width) / "x.png", "red", width)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(tmp_path / "images" / str(width) / "x.png", folder / name)
    (folder / os.fsdecode(b"br\xf6ken.png")).write_bytes(b"no image")
    os.utime(folder / "a.png", (10_413_792_000, 10_413_792_000))
    os.utime(folder / "b.png", (-2_000_000_000, -2_000_000_000))
    built = build_index(Plain(), folder, tmp_path / "whole")
    assert (built.files, [*built.broken]) == (6, [os.fsdecode(b"br\xf6ken.png")])
    again = build_index(Plain(), folder, tmp_path / "whole")
    assert (again.changed, again.encoded, again.unchanged) == (0, 0, 7)
    place = tmp_path / "shards"
    for number in (1, 2):
        build_index(Plain(), folder, place, shard=Shard(number, 2))
    merge_index(place, tmp_path / "merged")
    assert files(tmp_path / "merged") == files(tmp_path / "whole")
    for index in (open_index(tmp_path / "whole"), open_index(place), open_index(tmp_path / "merged")):
        hits = by_image(index, Plain(), folder / odd[0], {"class": 1.0}, itself=True)
        assert {hit.path for hit in hits} == {*odd, "a.png", "b.png"}
        assert index.folder == folder
    (folder / odd[0]).unlink()
    assert build_index(Plain(), folder, tmp_path / "whole").removed == 1
