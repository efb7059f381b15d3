"""Catalogues that a stranger made: what they define is compared first, and a row is read once."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dear.errors import DataError, OutputError
from dear.retrieval import shards as module
from dear.retrieval.build import finish
from dear.retrieval.catalogue import LONGEST_REASON, Catalogue, Entry
from dear.retrieval.database import FILE
from dear.retrieval.facts import LAST_GENERATION
from dear.retrieval.scan import Shard, Stamp
from dear.retrieval.shards import merge_index
from dear.retrieval.vectors import Vectors

FACTS = {"identity": "0" * 64, "features": ["class"], "embed": 4, "folder": "/nowhere", "model": "none"}
CONTENT = "a" * 64


def catalogue_of(folder: Path, entries: list[Entry], rows: int = 1, **facts: object) -> Path:
    """An index of these files, whose vectors are all the same."""
    folder.mkdir(parents=True)
    with closing(Catalogue.create(folder, FACTS)) as catalogue, catalogue.change():
        catalogue.put(entries)
        catalogue.set(rows=rows, searchable_rows=rows, **facts)
    vectors = Vectors.of(folder, {**FACTS, "generation": 1} | facts)
    vectors.folder.mkdir()
    for feature in range(vectors.features):
        vectors.path(feature).write_bytes(np.eye(1, vectors.embed, dtype="<f2").tobytes() * rows)
    return folder


def image(path: str, row: int = 0, content: str = CONTENT) -> Entry:
    return Entry(path, Stamp(1, 1), content, row)


def written(folder: Path, *changes: str) -> None:
    """Statements that change the list of tables or a table."""
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema = ON")
        for change in changes:
            database.execute(change)


RENAMED = "UPDATE sqlite_master SET {} WHERE name = '{}'".format
MORE = "it has more than the tables of an index: "


IMAGES, OTHERS = ([f"{number}.png" for number in numbers] for numbers in (range(100, 400), range(400, 700)))


def test_of_many_files_of_a_row_some_are_read(tmp_path: Path) -> None:
    """A stranger's index of 800,000 copies took 1.8 s for each search, in which all others waited."""
    catalogue_of(tmp_path / "index", [image(name, 0, CONTENT) for name in "dcebaf"], 1)
    with closing(Catalogue.open(tmp_path / "index")) as catalogue, catalogue.change():
        assert catalogue.files_of(0, 3) == (["c", "d", "e"], 3, CONTENT)
        catalogue.remove("def")
        assert catalogue.files_of(0, 3) == (["a", "b", "c"], 0, CONTENT)


def test_reasons_are_short(tmp_path: Path) -> None:
    """Those of older indexes may have any length; the end says what is wrong with the file that it names."""
    reason = f"cannot read {'long/' * 2000}a.png: it has 0 bytes"
    folder = catalogue_of(
        tmp_path / "index", [image("a.png"), Entry("b.png", Stamp(1, 1), None, None, reason)]
    )
    short = f"cannot read {'long/' * 46}lon ... {reason[-250:]}"
    assert len(short) == LONGEST_REASON == 500
    with closing(sqlite3.connect(folder / FILE)) as database:
        question = "SELECT reason FROM files WHERE reason IS NOT NULL"
        assert database.execute(question).fetchall() == [(short,)]
    written(folder, f"UPDATE files SET reason = '{reason}' WHERE reason IS NOT NULL")
    with closing(Catalogue.open(folder)) as catalogue:
        assert catalogue.broken() == {"b.png": short}
        assert [entry.reason for entry in catalogue.entries(1)] == [None, short]


def test_no_room_to_sort(tmp_path: Path) -> None:
    """The files are sorted in the temporary folder."""
    with closing(Catalogue.open(catalogue_of(tmp_path / "index", [image("a.png")]))) as catalogue:

        class Full:
            def execute(self, *_: object) -> None:
                raise sqlite3.OperationalError("database or disk is full")

        opened, catalogue.database = catalogue.database, Full()  # type: ignore[assignment]
        with pytest.raises(OutputError, match=r"disk is full. Set SQLITE_TMPDIR to a folder with room."):
            [*catalogue.entries(1)]
        catalogue.database = opened


def shards_with_copies(folder: Path, copies: int) -> Path:
    """Two shards of one content: one file in the first, so many in the second."""
    for shard, count in ((Shard(1, 2), 1), (Shard(2, 2), copies)):
        names = [name for name in (f"{n}.png" for n in range(10 * copies)) if shard.has(name)][:count]
        facts = {"shard": (shard.number, shard.count), "features": ["class", "color", "shape"]}
        catalogue_of(shard.folder(folder), [image(name) for name in names], **facts)
    return folder


def test_a_content_of_many_files_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each file a merge opened two files of each feature."""
    opened, read = list[int](), Vectors.read

    def recorded(vectors: Vectors, feature: int, rows: int) -> object:
        opened.append(feature)
        return read(vectors, feature, rows)

    monkeypatch.setattr(Vectors, "read", recorded)
    for copies in (3, 60):
        opened.clear()
        merged = merge_index(shards_with_copies(tmp_path / f"{copies}", copies), tmp_path / f"out-{copies}")
        assert (merged.files, merged.rows) == (copies + 1, 1)
        # Of each feature: the two rows that are compared, and the one that is copied.
        assert opened == [0, 0, 1, 1, 2, 2, 0, 1, 2]


def test_parts_of_a_merge_are_bounded_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMBERS", 1000)
    assert module._parts(7, 300) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert module._parts(2, 5000) == [slice(0, 1), slice(1, 2)]
    assert module._parts(0, 300) == []


def test_generations_have_an_end(tmp_path: Path) -> None:
    """A build wrote 2^63, which no build can read."""
    beyond = catalogue_of(tmp_path / "beyond", [image("a.png")], generation=2**63 - 1)
    with pytest.raises(DataError, match=r"its generation is 9223372036854775807: it must be a whole number"):
        Catalogue.open(beyond)
    last = catalogue_of(tmp_path / "last", [image("a.png", 2)], rows=3, generation=LAST_GENERATION)
    with closing(Catalogue.open(last)) as catalogue:
        assert finish(catalogue).rows == 1
    with closing(Catalogue.open(last)) as catalogue:
        assert catalogue.metadata()["generation"] == 1
        assert catalogue.files_of(0) == (["a.png"], 0, CONTENT)
    assert [path.name for path in last.glob("vectors-*")] == ["vectors-1"]
