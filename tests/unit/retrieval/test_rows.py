"""Rows that a stranger's index gives to its files, which no build writes."""

import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from dear.errors import DataError
from dear.retrieval.build import build_index
from dear.retrieval.database import FILE
from dear.retrieval.query import Index, by_image
from dear.retrieval.results import unopened
from tests.unit.retrieval.solid import Plain, gallery


@pytest.mark.parametrize("row", ["1000000000000", "-1", "'x'"])
def test_a_row_that_is_not_there(tmp_path: Path, row: str) -> None:
    """No query would find the file, and an update would say that it is unchanged."""
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    with closing(sqlite3.connect(out / FILE)) as database, database:
        database.execute(f"UPDATE files SET row = {row} WHERE path = ?", (b"red.png",))
    with pytest.raises(DataError, match=r"'red\.png' has a row that is not there"):
        build_index(Plain(), folder, out)


@pytest.mark.parametrize("row", ["'x'", "-1"])
def test_a_query_tells_what_is_no_row(tmp_path: Path, row: str) -> None:
    """The file was not found, without a word."""
    build_index(Plain(), gallery(tmp_path / "images"), tmp_path / "index")
    with closing(sqlite3.connect(tmp_path / "index" / FILE)) as database, database:
        database.execute(f"UPDATE files SET row = {row} WHERE path = ?", (b"red.png",))
    with pytest.raises(DataError, match=f"a file has the row {row}"):
        by_image(Index.open(tmp_path / "index"), Plain(), tmp_path / "images" / "blue.png", {"color": 1})


def test_rows_that_no_query_compares_are_told(tmp_path: Path) -> None:
    """As after a build that was interrupted, or in a stranger's index that hides them."""
    out = tmp_path / "index"
    rows = build_index(Plain(), gallery(tmp_path / "images"), out).rows
    with closing(sqlite3.connect(out / FILE)) as database, database:
        database.execute("UPDATE facts SET value = '2' WHERE key = 'searchable_rows'")
    with pytest.warns(UserWarning, match=f"{rows - 2} of {rows} contents of the index .* are not found yet"):
        index = Index.open(out)
    assert index.rows == 2
    with closing(sqlite3.connect(out / FILE)) as database, database:
        database.execute("UPDATE facts SET value = '3' WHERE key = 'searchable_rows'")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the build goes on, which was told
        by_image(index, Plain(), tmp_path / "images" / "blue.png", {"color": 1})
    assert index.rows == 3


def test_files_of_several_contents_on_one_row(tmp_path: Path) -> None:
    """An update took them over."""
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    with closing(sqlite3.connect(out / FILE)) as database, database:
        database.execute("UPDATE files SET row = 0 WHERE path = ?", (b"red.png",))
    with pytest.raises(DataError, match="files of one row have several sha256s"):
        build_index(Plain(), folder, out)


def test_a_locked_index_is_being_written() -> None:
    error = sqlite3.OperationalError("database is locked")
    assert "is being written: try again soon" in str(unopened(Path("index"), error))
    assert "is damaged" in str(unopened(Path("index"), sqlite3.DatabaseError("malformed")))
