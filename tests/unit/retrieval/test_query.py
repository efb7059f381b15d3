"""An opened index while builds change it, and questions at the edge of what is allowed."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dear.errors import DataError, SettingsError
from dear.retrieval import approximate, vectors
from dear.retrieval.build import build_index
from dear.retrieval.query import Index, by_image, weights_of
from tests.unit.retrieval.solid import Plain, gallery, paint

pytest.importorskip("faiss", reason="the extra `retrieval` is not installed")
KINDS = ["flat", "hnsw", "ivf"]


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
    assert told == [
        ("encoding images", everything),  # the new one is in no FAISS index yet
        ("index of class", remaining),
        ("index of color", remaining),
    ]
    assert [place.name for place in out.glob("vectors-*")] == ["vectors-2"]
    assert found(index, query) == remaining | {"new.png"}


def test_an_opened_index_that_is_removed_and_made_anew(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    index, query = Index.open(out), paint(tmp_path / "query.png", "red", 60)
    shutil.rmtree(out)
    with pytest.raises(DataError, match="index is damaged"):
        found(index, query)
    (folder / "blue.png").unlink()
    build_index(Plain(), folder, out)
    assert found(index, query) == {str(path.relative_to(folder)) for path in folder.rglob("*.png")}
    shutil.rmtree(out)
    build_index(Plain("other"), folder, out)
    with pytest.raises(DataError, match="rebuilt with another bundle"):
        found(index, query)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_and_efforts_beyond_the_index(tmp_path: Path, kind: str) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out, kind=kind)  # type: ignore[arg-type]
    index = Index.open(out)
    for options in ({"count": 300_000_000}, {"effort": 1e30}, {"effort": 1e308}):
        assert len(found(index, folder / "red.png", **options)) == 7
    for effort in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SettingsError, match="it must be above 0"):
            found(index, folder / "red.png", effort=effort)


def test_no_feature_is_not_all_features() -> None:
    with pytest.raises(SettingsError, match="no feature to compare by"):
        weights_of([], None)


@pytest.mark.parametrize("kind", KINDS)
def test_another_distance_is_one_place(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The score alone decides the order in a flat index; one of another metric is built again."""
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out, kind=kind)  # type: ignore[arg-type]
    red = folder / "red.png"
    before = by_image(Index.open(out), Plain(), red, {"color": 1})
    assert (before[0].path, before[0].score) == ("wide/red.png", pytest.approx(1))
    monkeypatch.setattr(approximate, "METRIC", "METRIC_L2")

    def negative_square(rows: np.ndarray, _lengths: object, query: np.ndarray) -> np.ndarray:
        squares: np.ndarray = ((rows - query) ** 2).sum(axis=1)
        return -squares

    monkeypatch.setattr(vectors, "similarity", negative_square)
    with pytest.raises(DataError, match="run `dear index build` again"):
        by_image(Index.open(out), Plain(), red, {"color": 1})
    build_index(Plain(), folder, out, kind=kind)  # type: ignore[arg-type]
    hits = {hit.path: hit.score for hit in by_image(Index.open(out), Plain(), red, {"color": 1})}
    # Unit vectors of red and of green, blue are a right angle apart: their squared distance is 2.
    assert hits["wide/red.png"] == pytest.approx(0, abs=1e-5)
    assert hits["green.png"] == hits["wide/blue.png"] == pytest.approx(-2, abs=2e-3)
