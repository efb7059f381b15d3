"""An opened index while builds change it, and questions at the edge of what is allowed."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from torch import Tensor

from dear.errors import DataError, SettingsError
from dear.retrieval import vectors
from dear.retrieval.build import build_index
from dear.retrieval.database import FILE
from dear.retrieval.query import Index, by_image, open_index, weights_of
from dear.retrieval.scan import Shard
from tests.unit.retrieval.solid import Plain, gallery, paint


def found(index: Index, query: Path, **options: object) -> set[str]:
    options = {"count": 100} | options
    return {hit.path for hit in by_image(index, Plain(), query, {"color": 1}, **options)}  # type: ignore[arg-type]


def test_an_opened_index_follows_builds(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    index, query = Index.open(out), paint(tmp_path / "query.png", "red", 60)
    everything = {str(path.relative_to(folder)) for path in folder.rglob("*.png")}
    assert found(index, query) == everything
    (folder / "blue.png").unlink()  # too few to be thrown out
    assert build_index(Plain(), folder, out).rows == 8
    everything.remove("blue.png")
    assert found(index, query) == everything

    paint(folder / "new.png", "orange", 60)
    (folder / "green.png").unlink()
    told = list[tuple[str, set[str]]]()

    def ask(step: str, _done: int, _of: int) -> None:  # in the middle of a build
        told.append((step, found(index, query)))

    assert build_index(Plain(), folder, out, progress=ask).rows == 7  # a new generation
    remaining = everything - {"green.png"}
    assert told == [("encoding images", everything)]  # as after the last build
    assert [place.name for place in out.glob("vectors-*")] == ["vectors-2"]
    assert found(index, query) == remaining | {"new.png"}


def test_an_opened_index_that_is_removed_and_made_anew(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    index, query = Index.open(out), paint(tmp_path / "query.png", "red", 60)
    shutil.rmtree(out)
    with pytest.raises(DataError, match="index is no longer there: build it again"):
        found(index, query)
    (folder / "blue.png").unlink()
    build_index(Plain(), folder, out)
    assert found(index, query) == {str(path.relative_to(folder)) for path in folder.rglob("*.png")}
    shutil.rmtree(out)
    build_index(Plain("other"), folder, out)
    with pytest.raises(DataError, match="rebuilt with another bundle"):
        found(index, query)


def test_counts_beyond_the_index(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    index = Index.open(out)
    assert len(found(index, folder / "red.png", count=300_000_000)) == 7
    for count in (0, -1):
        with pytest.raises(SettingsError, match="it must be at least 1"):
            found(index, folder / "red.png", count=count)


def test_no_feature_is_not_all_features() -> None:
    with pytest.raises(SettingsError, match="no feature to compare by"):
        weights_of([], None)


def test_another_distance_is_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    red = folder / "red.png"
    before = by_image(Index.open(out), Plain(), red, {"color": 1})
    assert (before[0].path, before[0].score) == ("wide/red.png", pytest.approx(1))

    def negative_square(rows: Tensor, _lengths: object, query: Tensor) -> Tensor:
        return -((rows - query) ** 2).sum(dim=1)

    monkeypatch.setattr(vectors, "similarity", negative_square)
    hits = {hit.path: hit.score for hit in by_image(Index.open(out), Plain(), red, {"color": 1})}
    # Unit vectors of red and of green, blue are a right angle apart: their squared distance is 2.
    assert hits["wide/red.png"] == pytest.approx(0, abs=1e-5)
    assert hits["green.png"] == hits["wide/blue.png"] == pytest.approx(-2, abs=2e-3)


VICTIM = "victim.txt"


@pytest.mark.parametrize(("name", "value"), [("features", '["color", "class"]'), ("embed", "1")])
def test_an_opened_index_keeps_its_features(tmp_path: Path, name: str, value: str) -> None:
    """They are compared with the model once. Swapped ones gave other images, without a word."""
    out = tmp_path / "index"
    build_index(Plain(), gallery(tmp_path / "images"), out)
    index, query = Index.open(out), paint(tmp_path / "query.png", "red", 60)
    with closing(sqlite3.connect(out / FILE)) as database, database:
        database.execute("UPDATE facts SET value = ? WHERE key = ?", (value, name))
    with pytest.raises(DataError, match="was rebuilt with another bundle: open it again"):
        found(index, query)


def test_an_index_that_was_refused_is_loaded_again(tmp_path: Path) -> None:
    """A copy with too short vectors took its place for a while; its rows stayed."""
    out, query = tmp_path / "index", paint(tmp_path / "query.png", "red", 60)
    folder = gallery(tmp_path / "images")
    build_index(Plain(), folder, out)
    index = Index.open(out)
    assert len(found(index, query)) == 8
    shutil.copytree(out, tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "copy" / FILE)) as database, database:
        database.execute("UPDATE facts SET value = '4' WHERE key IN ('rows', 'searchable_rows')")
    (tmp_path / "copy" / "vectors-1" / "1.f16").write_bytes(b"")
    out.rename(tmp_path / "old")
    (tmp_path / "copy").rename(out)
    with pytest.raises(DataError, match=r"1\.f16 is truncated"):
        found(index, query)
    shutil.rmtree(out)
    (tmp_path / "old").rename(out)
    assert len(found(index, query)) == 8


@pytest.mark.parametrize("most", [0, 1, 2, 3])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_hit_names_as_many_copies_as_are_asked_for(shards: int, most: int, tmp_path: Path) -> None:
    """Those of all shards together; the others are counted."""
    folder, encoder = gallery(tmp_path / "images"), Plain()
    paths = ("copy.png", "red.png", "wide/copy.png")
    for path in paths:
        paint(folder / path, "red", 20)
    parts = [Shard(number, shards) for number in range(1, shards + 1)]
    assert sum(any(map(part.has, paths)) for part in parts) == min(2, shards)
    for part in parts:
        build_index(encoder, folder, tmp_path / "index", shard=part if shards > 1 else None)
    index = open_index(tmp_path / "index")
    vectors = dict(zip(encoder.features, encoder.texts(["red"])[0], strict=True))
    (hit,) = (hit for hit in index.query(vectors, count=80, copies=most) if hit.path in paths)
    assert (len(hit.copies), hit.more_copies) == (min(2, most), 2 - min(2, most))
    with pytest.raises(SettingsError, match="copies is -1"):
        index.query(vectors, copies=-1)
