"""A search compares all rows: the same as a slow loop over numbers says. Damage is told in one line."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dear.errors import DataError, OutputError
from dear.retrieval import index as index_module
from dear.retrieval.build import Entry, append, build_index, finish, open_to_write
from dear.retrieval.index import Index, are_units, best_rows, open_index
from tests.helpers.errors import refuses
from tests.unit.retrieval.solid import Plain, gallery

ROWS, EMBED, NAMES = 103, 11, ("class", "color", "shape")
REMOVED = (0, 7, 50, 102)
DOUBLE = ((3, 20), (3, 99), (41, 64))  # the second row of a pair repeats the first
FACTS = {"identity": "x", "features": [*NAMES], "embed": EMBED, "folder": "", "model": ""}


def unit(rows: np.ndarray) -> np.ndarray:
    units: np.ndarray = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return units


def drawn() -> tuple[np.ndarray, dict[str, Tensor]]:
    """Rows (row, feature, embed) and a query for each feature."""
    generator = np.random.default_rng(5)
    rows = unit(generator.standard_normal((ROWS, len(NAMES), EMBED))).astype(np.float32)
    for first, second in DOUBLE:
        rows[second] = rows[first]
    queries = unit(generator.standard_normal((len(NAMES), EMBED))).astype(np.float32)
    return rows, dict(zip(NAMES, map(torch.from_numpy, queries), strict=True))


def index_of(folder: Path, rows: np.ndarray) -> Index:
    """An index of these rows, without images; a row's file has its number."""
    with open_to_write(folder, FACTS) as store:
        files = (row for row in range(len(rows)) if row not in REMOVED)
        append(store, [Entry(str(row), 0, 0, f"{row:064x}", row) for row in files], torch.from_numpy(rows))
        finish(store)
    return open_index(folder)


def by_loops(
    rows: np.ndarray, queries: dict[str, Tensor], weights: dict[str, float]
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


@pytest.mark.parametrize("rows_at_once", [1, 17, 1000])
@pytest.mark.parametrize(
    "weights", [{"class": 1.0}, {"shape": 2.0, "class": 1.0, "color": 0.5}, {"color": 3.0, "shape": -2.0}]
)
@pytest.mark.parametrize("count", [1, 10, 500])
def test_a_search_is_exact(
    tmp_path: Path, weights: dict[str, float], rows_at_once: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "VALUES_AT_ONCE", rows_at_once * EMBED + 3)
    rows, queries = drawn()
    hits = index_of(tmp_path, rows).query(queries, weights, count=count)
    expected = by_loops(rows, queries, weights)[:count]
    assert [int(hit.path) for hit in hits] == [row for row, _ in expected]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-6)
    for name in weights:
        alone = dict(by_loops(rows, queries, {name: 1.0}))
        assert [hit.by[name] for hit in hits] == pytest.approx([alone[int(h.path)] for h in hits], abs=1e-6)


def test_equal_rows_have_equal_scores_wherever_they_are(tmp_path: Path) -> None:
    """Products of matrices round differently in the last rows of a block."""
    row, query = torch.nn.functional.normalize(torch.randn(2, 512), dim=-1)
    scores = []
    for rows in (1, 2, 7, 4099):
        with open_to_write(tmp_path / f"{rows}", FACTS | {"features": ["class"], "embed": 512}) as store:
            append(store, [], row.expand(rows, 1, 512))
        with Index(tmp_path / f"{rows}").transaction() as (_, snapshot):
            scores.append(snapshot.scores("class", query))
    assert len(torch.cat(scores).unique()) == 1


def test_the_best_rows_of_many_ties() -> None:
    scores = np.asarray([0.5, 0.9, 0.5, 0.5, 0.1, 0.5, 0.9])
    candidates = np.asarray([0, 1, 2, 4, 5, 6])
    expected = [1, 6, 0, 2, 5, 4]
    for count in range(1, 9):
        assert best_rows(scores, candidates, count).tolist() == expected[:count]
    assert best_rows(scores, np.zeros(0, dtype=int), 3).tolist() == []


def test_a_removed_half_goes_and_the_other_answers_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that was opened before sees the new rows, and the old ones if copying is cut off."""
    rows, queries = drawn()
    index = index_of(tmp_path, rows)
    removed = {row for row in range(ROWS) if row % 2}
    want = [hit for hit in index.query(queries, count=ROWS) if int(hit.path) not in removed]

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with open_to_write(tmp_path, FACTS) as store:
        with monkeypatch.context() as patch:
            patch.setattr(np, "array_split", kill)
            with pytest.raises(KeyboardInterrupt):
                finish(store, map(str, removed))
        assert [hit for hit in index.query(queries, count=ROWS) if int(hit.path) not in removed] == want
        finish(Index(tmp_path), map(str, removed))
    assert index.query(queries, count=ROWS) == want
    assert index.rows == len(want) == 49  # of 52 even numbers, but for those removed before
    assert [path.name for path in tmp_path.glob("vectors-*")] == ["vectors-2"]


def test_a_thread_that_reads_the_index_anew_takes_nothing_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both had begun after a build. What the first has read stays while the second reads the same again."""
    rows, queries = drawn()
    index = index_of(tmp_path, rows)
    want, before = index.query(queries), index._snapshot
    assert before is not None

    def read_anew(lengths: Tensor) -> bool:
        index._snapshot = replace(before, state="before the build")
        with index.transaction():
            return are_units(lengths)

    index._snapshot = replace(before, state="before the build")
    monkeypatch.setattr(index_module, "are_units", read_anew)
    assert index.query(queries) == want


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 0.94, 1.06])
def test_vectors_that_are_no_unit_vectors(tmp_path: Path, value: float) -> None:
    """Neither written nor, in a damaged file, compared; even those of a removed file."""
    rows, queries = drawn()
    index, path = index_of(tmp_path / "index", rows), tmp_path / "index" / "vectors-1" / "1.f16"
    np.memmap(path, "<f2", "r+", shape=(ROWS, EMBED))[102] *= value
    assert index.query(queries, {"class": 1.0})
    refuses(DataError, ("1.f16", "unit"), index.query, queries)
    rows[58, 1] *= value
    refuses(DataError, "length 1", index_of, tmp_path / "other", rows)


@pytest.mark.parametrize("name", ["index.sqlite", "vectors-1/0.f16"])
@pytest.mark.parametrize("keep", [None, 0.5, 1.0])
def test_a_damaged_file(tmp_path: Path, name: str, keep: float | None) -> None:
    """One that is gone, cut or, of the same size, something else."""
    index_of(tmp_path, drawn()[0])
    file, queries = tmp_path / name, drawn()[1]
    size = int(file.stat().st_size * (keep or 0))
    file.unlink() if keep is None else file.write_bytes(b"\xa5" * size)
    refuses(DataError, "dear index build", lambda: open_index(tmp_path).query(queries))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refuses(OutputError, "file", build_index, Plain(), gallery(tmp_path / "images"), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
