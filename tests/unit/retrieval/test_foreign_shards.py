"""Shards of a stranger: what a query and a merge take from them."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dear.errors import DataError
from dear.retrieval import catalogue as module
from dear.retrieval.build import build_index
from dear.retrieval.catalogue import LONGEST_PATH, Catalogue
from dear.retrieval.database import FILE
from dear.retrieval.facts import Facts
from dear.retrieval.query import Shards, by_image
from dear.retrieval.scan import Shard
from dear.retrieval.shards import merge_index
from tests.unit.retrieval.solid import Plain, gallery, paint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return gallery(tmp_path / "images")


@pytest.fixture
def shards(tmp_path: Path, folder: Path) -> Path:
    return build(folder, tmp_path / "shards")


def build(folder: Path, out: Path) -> Path:
    for number in (1, 2):
        build_index(Plain(), folder, out, shard=Shard(number, 2))
    return out


def written(index: Path, change: str, *values: object) -> None:
    with closing(sqlite3.connect(index / FILE)) as database, database:
        database.execute(change, values)


def ask(index: Shards, tmp_path: Path, **options: Any) -> list[str]:
    query = paint(tmp_path / "query.png", "red", 60)
    return [hit.path for hit in by_image(index, Plain(), query, {"color": 1}, **options)]


def test_a_shard_that_is_replaced_is_noticed(tmp_path: Path, folder: Path, shards: Path) -> None:
    """Its hits would be told as files of another folder, or those of one shard twice."""
    index = Shards.open(shards)
    assert len(ask(index, tmp_path)) == 8
    second, first = (Shard(number, 2).folder(shards) for number in (2, 1))
    shutil.rmtree(second)
    shutil.copytree(first, second)
    with pytest.raises(DataError, match=r"shard-2-of-2 was replaced by one of other images: open it again"):
        ask(index, tmp_path)
    shutil.rmtree(second)
    others = shutil.copytree(folder, tmp_path / "others")
    build_index(Plain(), others, shards, shard=Shard(2, 2))
    with pytest.raises(DataError, match=r"shard-2-of-2 was replaced by one of other images: open it again"):
        ask(index, tmp_path)
    shutil.rmtree(second)
    build_index(Plain(), folder, shards, shard=Shard(2, 2))
    assert len(ask(index, tmp_path)) == 8


def test_a_hit_of_another_shard_is_refused(tmp_path: Path, folder: Path, shards: Path) -> None:
    second = Shard(2, 2)
    foreign = next(path.name for path in sorted(folder.glob("*.png")) if not second.has(path.name))
    change = "UPDATE files SET path = CAST(? AS BLOB) WHERE path = (SELECT MIN(path) FROM files)"
    written(second.folder(shards), change, foreign)
    with pytest.raises(DataError, match=rf"shard-2-of-2 is damaged \('{foreign}' does not belong to shard 2"):
        ask(Shards.open(shards), tmp_path)


def test_a_content_with_other_features_is_refused(tmp_path: Path, shards: Path) -> None:
    """A red picture of one shard is told as a copy of a blue one of the other."""
    entries = {number: [*Catalogue.open(Shard(number, 2).folder(shards)).entries(8)] for number in (1, 2)}
    hashes = {entry.path: (number, entry.sha256) for number in entries for entry in entries[number]}
    red = next(path for path in hashes if path.endswith("red.png"))
    blue = next(
        path
        for path in hashes
        if path.endswith(("blue.png", "green.png")) and hashes[path][0] != hashes[red][0]
    )
    number, _ = hashes[blue]
    change = "UPDATE files SET sha256 = ? WHERE path = CAST(? AS BLOB)"
    written(Shard(number, 2).folder(shards), change, hashes[red][1], blue)
    with pytest.raises(DataError, match=r"has the content of another shard's file, but not its features"):
        ask(Shards.open(shards), tmp_path)


def test_a_merge_takes_only_facts_of_a_build(tmp_path: Path, shards: Path) -> None:
    written(Shard(1, 2).folder(shards), "INSERT INTO facts VALUES ('note', '1')")
    merge_index(shards, tmp_path / "merged")
    with closing(Catalogue.open(tmp_path / "merged")) as merged:
        facts = merged.metadata()
    assert facts.keys() <= {*Facts.__annotations__, "schema"}
    assert facts["features"] == ["class", "color"]


@pytest.mark.parametrize(("sign", "most"), [("a", LONGEST_PATH), ("%41", LONGEST_PATH)])
def test_a_name_is_as_long_as_a_path_may_be(tmp_path: Path, folder: Path, sign: str, most: int) -> None:
    """One of 16 MB was printed whole."""
    out = tmp_path / "index"
    build_index(Plain(), folder, out)
    change = "UPDATE facts SET value = ? WHERE key = 'folder'"
    written(out, change, json.dumps(sign * most))
    with closing(Catalogue.open(out)) as catalogue:
        assert len(catalogue.metadata()["folder"]) == most
    written(out, change, json.dumps(sign * (most + 1)))
    with pytest.raises(DataError, match="is no name of a file") as told:
        Catalogue.open(out)
    assert len(str(told.value)) < 500


def test_facts_are_taken_apart_once(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 490,000 means it takes a second; a merge asks eight times. What changes is seen."""
    build_index(Plain(), folder, tmp_path / "index")
    parsed, original = list[str](), module.parse_json

    def counted(text: str, where: str) -> Any:
        parsed.append(where)
        return original(text, where)

    monkeypatch.setattr(module, "parse_json", counted)
    with closing(Catalogue.open(tmp_path / "index")) as catalogue:
        catalogue.metadata()["rows"] = -1
        assert catalogue.metadata()["rows"] == 8
        assert parsed.count("its rows") == 1
        with catalogue.change():
            catalogue.set(rows=9)
        assert catalogue.metadata()["rows"] == 9
        assert parsed.count("its rows") == 2
