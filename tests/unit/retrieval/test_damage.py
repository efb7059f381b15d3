"""Damaged indexes: one line that says what to do, and what it says helps."""

import errno
import gc
import shutil
import sqlite3
import struct
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dear.errors import DataError, OutputError
from dear.reading.files import ReadingError
from dear.retrieval.build import build_index
from dear.retrieval.catalogue import Catalogue
from dear.retrieval.database import FILE, LOCK, only_writer
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


def view(out: Path) -> None:
    """The facts become what whoever asks must compute."""
    with closing(sqlite3.connect(out / FILE)) as database, database:
        database.execute("ALTER TABLE facts RENAME TO hidden")
        database.execute("CREATE VIEW facts AS SELECT * FROM hidden")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda out: (out / "vectors-1" / "0.f16").unlink(), "vectors-1/0.f16 is missing"),
        (lambda out: shutil.rmtree(out / "vectors-1"), "vectors-1/0.f16 is missing"),
        (cut, "vectors-1/0.f16 is truncated"),
        (scramble, "names a page that is none of a tree"),
        (view, "more than the tables of an index: 'facts'|has more than"),
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


def test_a_journal_that_names_another_file_is_refused(tmp_path: Path) -> None:
    """SQLite deletes the file whose name ends a journal: its length, a checksum and a magic follow."""
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (out / f"{FILE}-journal").write_bytes(journal_that_names(victim))
    with pytest.raises(DataError, match="names another file"):
        Index.open(out)
    with pytest.raises(DataError, match="names another file"):
        build_index(Plain(), folder, out)
    assert victim.read_text() == "precious"


def journal_that_names(victim: Path) -> bytes:
    name, page = str(victim).encode(), 2**30 // 4096 + 1
    journal = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(4) + bytes(4) + (1).to_bytes(4, "big")
    journal += (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    journal = journal.ljust(512, b"\0") + page.to_bytes(4, "big") + name + len(name).to_bytes(4, "big")
    journal += (sum(name) & 0xFFFFFFFF).to_bytes(4, "big") + b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
    return journal


def test_a_shard_is_built_in_no_folder_elsewhere(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "shards"
    (tmp_path / "mine").mkdir()
    out.mkdir()
    (out / "shard-1-of-2").symlink_to(tmp_path / "mine")
    with pytest.raises(DataError, match=r"shard-1-of-2 is a link, which is not followed"):
        build_index(Plain(), folder, out, shard=Shard(1, 2))
    assert not [*(tmp_path / "mine").iterdir()]


def test_a_journal_of_a_database_that_is_not_there(tmp_path: Path) -> None:
    """SQLite would make it as large as its head says: a hole of 8.8 TB of two files of 66 kB."""
    build_index(Plain(), gallery(tmp_path / "images"), tmp_path / "index")
    journal = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", 1, 7, 2**27 - 1, 512, 65_536)
    (tmp_path / "index" / f"{FILE}-journal").write_bytes(journal.ljust(512, b"\0"))
    with pytest.raises(DataError, match=r"-journal: it is of a database of 8,796,092,956,672 bytes"):
        Catalogue.open(tmp_path / "index")


def test_a_journal_whose_pages_have_no_size(tmp_path: Path) -> None:
    """SQLite takes the size from the database: the hole is as large."""
    build_index(Plain(), gallery(tmp_path / "images"), tmp_path / "index")
    journal = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", 1, 7, 2**31, 512, 0)
    for name in (FILE, LOCK):
        (tmp_path / "index" / f"{name}-journal").write_bytes(journal.ljust(512, b"\0"))
        with pytest.raises(DataError, match=r"-journal: its pages have 0 bytes"):
            build_index(Plain(), tmp_path / "images", tmp_path / "index")
        (tmp_path / "index" / f"{name}-journal").unlink()


def test_a_system_that_opens_no_more_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for hundreds of shards: the index is not damaged, and nothing is left to close."""
    build_index(Plain(), gallery(tmp_path / "images"), tmp_path / "index")
    few = OSError(errno.EMFILE, "Too many open files")
    unread = ReadingError("0.f16", few.strerror)
    unread.__cause__ = few
    for name, error in (("pages.os.open", few), ("pages.mmap", few), ("vectors.opened", unread)):
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("error")
            patch.setattr(f"dear.retrieval.{name}", Mock(side_effect=error))
            with pytest.raises(DataError, match=r"Too many open files\. Raise .* `ulimit -n`") as caught:
                by_image(Index.open(tmp_path / "index"), Plain(), tmp_path / "images/red.png", {"color": 1})
            del caught
            gc.collect()  # an error in `__del__` would be a warning


def test_a_trigger_with_the_name_of_an_index_of_sqlites_own_is_refused(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    with closing(sqlite3.connect(out / FILE, isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema = ON")
        trigger = "CREATE TRIGGER sqlite_autox AFTER INSERT ON facts BEGIN DELETE FROM files; END"
        database.execute(
            "INSERT INTO sqlite_master VALUES ('trigger', 'sqlite_autox', 'facts', 0, ?)", (trigger,)
        )
    for work in (lambda: Index.open(out), lambda: build_index(Plain(), folder, out)):
        with pytest.raises(DataError, match="more than the tables of an index: 'sqlite_autox'"):
            work()


@pytest.mark.parametrize("name", [LOCK, f"{LOCK}-journal"])
def test_a_lock_of_a_stranger_is_not_read(name: str, tmp_path: Path) -> None:
    """Its list of tables may have no end, or it has the form with a write-ahead log. A build fills none."""
    out, sizes = tmp_path / "index", list[int]()
    build_index(Plain(), gallery(tmp_path / "images"), out)
    with only_writer(out):
        sizes += [file.stat().st_size for file in sorted(out.glob(f"{LOCK}*"))]
    assert sizes == [0, 512]
    (out / name).write_bytes((out / FILE).read_bytes())
    with pytest.raises(DataError, match=rf"{name}: a build writes nothing to it"):
        build_index(Plain(), tmp_path / "images", out)
    (out / name).write_bytes(b"")
    build_index(Plain(), tmp_path / "images", out)


def test_a_row_that_is_named_again_and_again(tmp_path: Path) -> None:
    """An index of a table may have any number of entries for one row, which is read for each."""
    out = tmp_path / "index"
    build_index(Plain(), gallery(tmp_path / "images"), out)
    with closing(sqlite3.connect(out / FILE, isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema = ON")  # the index stays as it is while rows are removed
        ((definition,),) = database.execute("SELECT sql FROM sqlite_master WHERE name = 'by_row'").fetchall()
        ((root,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'by_row'").fetchall()
        database.execute("DELETE FROM sqlite_master WHERE name = 'by_row'")
    with closing(sqlite3.connect(out / FILE, isolation_level=None)) as database:
        database.execute("DELETE FROM files WHERE row > 3")
        database.execute("PRAGMA writable_schema = ON")
        added = ("index", "by_row", "files", root, definition)
        database.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", added)
    with pytest.raises(DataError, match=r"'by_row' has \d+ entries for \d+ rows"):
        Catalogue.open(out)


def test_rows_of_files_are_small(tmp_path: Path) -> None:
    out = tmp_path / "index"
    build_index(Plain(), gallery(tmp_path / "images"), out)
    with closing(sqlite3.connect(out / FILE)) as database, database:
        database.execute("UPDATE files SET mtime = zeroblob(70000) WHERE row = 0")
    with pytest.raises(DataError, match=r"it has a row of 70,\d{3} bytes"):
        Catalogue.open(out)
