"""Damaged indexes: one line that says what to do, and what it says helps."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from dear.errors import DataError, OutputError
from dear.retrieval.build import build_index
from dear.retrieval.catalogue import Catalogue
from dear.retrieval.database import FILE
from dear.retrieval.query import Index, by_image
from dear.retrieval.scan import Shard
from dear.retrieval.vectors import Vectors
from tests.unit.retrieval.solid import Plain, gallery


def cut(out: Path) -> None:
    (out / "vectors-1" / "0.f16").write_bytes(b"\0" * 79)  # of 80: eight rows of five float16


def scramble(out: Path) -> None:
    """Every page but the first, which holds the header and the schema."""
    data = (out / FILE).read_bytes()
    (out / FILE).write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))


def fact(key: str, value: str | None) -> Callable[[Path], None]:
    def change(out: Path) -> None:
        with closing(sqlite3.connect(out / FILE)) as database, database:
            if value is None:
                database.execute("DELETE FROM facts WHERE key = ?", (key,))
            else:
                database.execute("UPDATE facts SET value = ? WHERE key = ?", (value, key))

    return change


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda out: (out / "vectors-1" / "0.f16").unlink(), "vectors-1/0.f16 is missing"),
        (lambda out: shutil.rmtree(out / "vectors-1"), "vectors-1/0.f16 is missing"),
        (cut, "vectors-1/0.f16 is truncated"),
        (scramble, "malformed"),
        (
            lambda out: (out / FILE).write_bytes(b"no database" * 999),
            "not a database",
        ),
        (fact("rows", "8,"), "not JSON"),
        (fact("rows", "-8"), "rows is -8"),
        (fact("searchable_rows", '"8"'), "searchable_rows is '8'"),
        (fact("searchable_rows", "9"), "more rows are searchable than there are"),
        (fact("embed", None), "lacks the key 'embed'"),
        (fact("embed", "7"), "truncated|of width 7"),
        (fact("embed", "9" * 5000), "not readable J"),
        (fact("features", "[" * 50_000), "nested too deeply"),
        (fact("folder", "NaN"), "NaN is not a finite number"),
        (fact("features", '["class", 7]'), r"features\[1\] is 7: it must be text"),
        (fact("embed", "3"), "of width 3"),
        (fact("features", '["class", "shape"]'), "features .'class', 'shape'."),
    ],
)
def test_damage_that_a_build_cannot_mend(tmp_path: Path, damage: Callable[[Path], None], why: str) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    damage(out)
    encoder = Plain()

    def ask() -> None:
        index = Index.open(out)
        index.check(encoder)
        by_image(index, encoder, folder / "red.png", {"class": 1})

    for work in (ask, lambda: build_index(encoder, folder, out)):
        with pytest.raises(DataError, match=rf"the index .*index is damaged \(.*({why}).*remove it") as told:
            work()
        assert "\n" not in str(told.value)
    shutil.rmtree(out)
    assert build_index(encoder, folder, out).files == 8


def test_a_build_that_was_killed_in_its_first_moments_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has made its file; the tables and first facts are there together or not at all."""
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"

    def full(_self: Catalogue, **_facts: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "set", full)
        with pytest.raises(OutputError, match="disk is full"):
            build_index(Plain(), folder, out)
    assert (out / FILE).stat().st_size == 0
    with pytest.raises(DataError, match="is not an index of images: `dear index build` makes one"):
        Index.open(out)
    assert build_index(Plain(), folder, out).files == 8


@pytest.mark.parametrize("content", [b"\0\x7e", b"\0\x7c", b"\0\0", b"\0\x44"])  # NaN, infinity, 0, 4
def test_vectors_that_are_no_unit_vectors_are_refused(tmp_path: Path, content: bytes) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    file = out / "vectors-1" / "1.f16"
    file.write_bytes(content * (file.stat().st_size // 2))
    with pytest.raises(DataError, match=r"vectors-1/1\.f16 holds rows that are not unit vectors.*remove it"):
        by_image(Index.open(out), Plain(), folder / "red.png", {"class": 1, "color": 1})


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    rows = torch.eye(3).unsqueeze(1)  # three rows of one feature
    there, here = (Vectors(tmp_path / name, 1, 3) for name in ("file", "here"))
    here.write(0, rows)
    with pytest.raises(OutputError, match=r"cannot write the vectors to .*file"):
        there.write(0, rows)
    with pytest.raises(OutputError, match=r"cannot write the vectors to .*file"):
        here.copy(np.arange(3), 3, there)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "here"]


def test_a_shard_is_built_in_no_folder_elsewhere(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "shards"
    (tmp_path / "mine").mkdir()
    out.mkdir()
    (out / "shard-1-of-2").symlink_to(tmp_path / "mine")
    with pytest.raises(DataError, match=r"shard-1-of-2 is a link, which is not followed"):
        build_index(Plain(), folder, out, shard=Shard(1, 2))
    assert not [*(tmp_path / "mine").iterdir()]
