"""A search compares all rows: the same as a slow loop over numbers says."""

import math
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from dear.errors import DataError
from dear.retrieval.build import build_index
from dear.retrieval.catalogue import Catalogue, Entry
from dear.retrieval.database import FILE
from dear.retrieval.query import Index, best_rows, by_image
from dear.retrieval.scan import Stamp
from dear.retrieval.vectors import Vectors
from tests.unit.retrieval.solid import Plain, gallery, paint

ROWS, EMBED, NAMES = 103, 11, ("class", "color", "shape")
REMOVED = (0, 7, 50, 102)
DOUBLE = ((3, 20), (3, 99), (41, 64))  # the second row of a pair repeats the first


def unit(rows: np.ndarray) -> np.ndarray:
    units: np.ndarray = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return units


def drawn() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows (row, feature, embed) and a query for each feature."""
    generator = np.random.default_rng(5)
    rows = unit(generator.standard_normal((ROWS, len(NAMES), EMBED))).astype(np.float32)
    for first, second in DOUBLE:
        rows[second] = rows[first]
    queries = unit(generator.standard_normal((len(NAMES), EMBED))).astype(np.float32)
    return rows, dict(zip(NAMES, queries, strict=True))


def index_of(folder: Path, rows: np.ndarray) -> Index:
    """An index of these rows, without images; a row's file has its number."""
    facts = {"identity": "x", "features": [*NAMES], "embed": EMBED, "folder": "", "model": ""}
    catalogue = Catalogue.create(folder, facts)
    Vectors(folder / "vectors-1", len(NAMES), EMBED).write(0, torch.from_numpy(rows))
    alive = [row for row in range(len(rows)) if row not in REMOVED]
    with catalogue.change():
        catalogue.put(Entry(str(row), Stamp(0, 0), f"{row:064x}", row) for row in alive)
        catalogue.set(rows=len(rows), searchable_rows=len(rows))
    return Index(catalogue)


def by_loops(
    rows: np.ndarray, queries: dict[str, np.ndarray], weights: dict[str, float]
) -> list[tuple[int, float]]:
    """Rows and scores, best first, of equal ones the first row: number by number, in double precision."""
    stored = rows.astype(np.float16).tolist()
    total = sum(abs(weight) for weight in weights.values())
    scored = []
    for row in range(len(rows)):
        if row in REMOVED:
            continue
        score = 0.0
        for name, weight in weights.items():
            vector, query = stored[row][NAMES.index(name)], queries[name].tolist()
            dot = sum(a * b for a, b in zip(vector, query, strict=True))
            score += weight / total * dot / math.sqrt(sum(a * a for a in vector))
        scored.append((row, score))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("rows_at_once", [1, 17, 103, 1000])
@pytest.mark.parametrize(
    "weights", [{"class": 1.0}, {"shape": 2.0, "class": 1.0, "color": 0.5}, {"color": 3.0, "shape": -2.0}]
)
@pytest.mark.parametrize("count", [1, 10, 500])
def test_a_search_is_exact(
    tmp_path: Path, weights: dict[str, float], rows_at_once: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dear.retrieval.vectors.NUMBERS", rows_at_once * EMBED + 3)
    rows, queries = drawn()
    hits = index_of(tmp_path, rows).query(
        {name: torch.from_numpy(query) for name, query in queries.items()}, weights, count=count
    )
    expected = by_loops(rows, queries, weights)[:count]
    assert [int(hit.path) for hit in hits] == [row for row, _ in expected]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-6)
    for name in weights:
        alone = dict(by_loops(rows, queries, {name: 1.0}))
        assert [hit.by[name] for hit in hits] == pytest.approx([alone[int(h.path)] for h in hits], abs=1e-6)


def test_equal_rows_have_equal_scores_wherever_they_are(tmp_path: Path) -> None:
    """Products of matrices round differently in the last rows of a block."""
    vectors, row = Vectors(tmp_path / "vectors-1", 1, 512), torch.randn(1, 1, 512)
    vectors.write(0, (row / row.norm()).expand(4099, 1, 512))
    query = torch.nn.functional.normalize(torch.randn(512), dim=0)
    scores = [vectors.scores(0, rows, query) for rows in (1, 2, 7, 4099)]
    assert len(torch.cat([*scores, vectors.scores_of(0, np.asarray([5, 4098]), query)]).unique()) == 1


def test_the_best_rows_of_many_ties() -> None:
    scores = np.asarray([0.5, 0.9, 0.5, 0.5, 0.1, 0.5, 0.9])
    candidates = np.asarray([True, True, True, False, True, True, True])
    expected = [1, 6, 0, 2, 5, 4]
    for count in range(1, 9):
        assert best_rows(scores, candidates, count).tolist() == expected[:count]
    assert best_rows(scores, np.zeros(7, dtype=bool), 3).tolist() == []


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 0.94, 1.06])
@pytest.mark.parametrize("row", [0, 58, 102])
def test_a_row_that_is_no_unit_vector_is_refused(
    tmp_path: Path, value: float, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of a removed file, or far from the query."""
    monkeypatch.setattr("dear.retrieval.vectors.NUMBERS", 10 * EMBED)
    rows, queries = drawn()
    rows[row, 1] *= value
    index = index_of(tmp_path, rows)
    asked = {name: torch.from_numpy(query) for name, query in queries.items()}
    assert index.query(asked, {"class": 1.0})
    with pytest.raises(DataError, match=r"vectors-1/1\.f16 holds rows that are not unit vectors"):
        index.query(asked, {"class": 1.0, "color": 1.0})
    with pytest.raises(DataError, match="are not finite numbers"):
        index.query({"class": torch.full((EMBED,), math.nan)})


def test_a_row_that_becomes_wrong_is_refused(tmp_path: Path) -> None:
    rows, queries = drawn()
    index, query = index_of(tmp_path, rows), {"class": torch.from_numpy(queries["class"])}
    assert index.query(query)
    file = tmp_path / "vectors-1" / "0.f16"
    content = bytearray(file.read_bytes())
    content[-2:] = b"\0\x7e"  # NaN
    file.write_bytes(content)
    with pytest.raises(DataError, match="not unit vectors"):
        index.query(query)
    file.write_bytes(content[:-2])
    with pytest.raises(DataError, match="truncated"):
        index.query(query)


def of_faiss(out: Path) -> None:
    """What a build left when FAISS searched."""
    with closing(sqlite3.connect(out / FILE)) as database, database:
        database.execute("DELETE FROM facts WHERE key = 'searchable_rows'")
        facts = [("trained", "8"), ("kind", '"ivf"'), ("storage", '"int8"')]
        database.executemany("INSERT INTO facts VALUES (?, ?)", facts)
    for name in ("0.faiss", "1.faiss", "1.faiss.part"):
        (out / "vectors-1" / name).write_bytes(b"old")


@pytest.mark.parametrize("kind", ["file", "link", "pipe", "folder"])
def test_an_index_that_faiss_searched(tmp_path: Path, kind: str) -> None:
    """It opens as it is. Nothing opens its FAISS files, or what is in their place; a build removes them."""
    folder, out, mine = gallery(tmp_path / "images"), tmp_path / "index", tmp_path / "mine"
    build_index(Plain(), folder, out)
    of_faiss(out)
    mine.write_text("precious")
    old = out / "vectors-1" / "0.faiss"
    old.unlink()
    if kind == "link":
        old.symlink_to(mine)
    elif kind == "pipe":
        os.mkfifo(old)
    elif kind == "folder":
        old.mkdir()
    else:
        old.write_bytes(b"old")
    old_index = Index.open(out)
    [hit] = by_image(old_index, Plain(), folder / "red.png", {"color": 1}, count=1)
    assert hit.path == "wide/red.png"
    paint(folder / "new.png", "red", 60)
    during: list[set[str]] = []

    def ask(_step: str, _done: int, _of: int) -> None:
        hits = by_image(old_index, Plain(), folder / "red.png", {"color": 1}, count=99)
        during.append({hit.path for hit in hits})

    assert build_index(Plain(), folder, out, progress=ask).rows == 9
    assert [len(paths) for paths in during] == [7]
    left = {path.name for path in (out / "vectors-1").iterdir()}
    assert left == {"0.f16", "1.f16"} | ({"0.faiss"} if kind == "folder" else set())
    assert mine.read_text() == "precious"
    hits = by_image(old_index, Plain(), folder / "red.png", {"color": 1}, count=99)
    assert "new.png" in {hit.path for hit in hits}


def test_a_first_build_that_was_cut_off_is_incomplete(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"

    def interrupt(_step: str, _done: int, _of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(Plain(), folder, out, progress=interrupt)
    with pytest.raises(DataError, match="empty or incomplete"):
        Index.open(out)
    assert build_index(Plain(), folder, out).encoded == 0
    assert Index.open(out).rows == 8


def test_a_build_refuses_new_rows_that_are_no_unit_vectors(tmp_path: Path) -> None:
    class Overflowing(Plain):
        def images(self, pictures: object) -> torch.Tensor:
            return super().images(pictures) * math.nan  # type: ignore[arg-type]

    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    with pytest.raises(DataError, match="not unit vectors"):
        build_index(Overflowing(), folder, out)
    with pytest.raises(DataError, match="empty or incomplete"):
        Index.open(out)
