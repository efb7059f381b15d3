"""The indexes that SQLite keeps of an index's tables, where the file is a stranger's."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

from dear.retrieval.build import build_index
from dear.retrieval.catalogue import CACHE, Catalogue, Entry
from dear.retrieval.database import FILE
from dear.retrieval.scan import Stamp
from tests.unit.retrieval.solid import Plain, gallery


def test_an_update_makes_the_indexes_anew(tmp_path: Path) -> None:
    """One that lacks a file: its row could not be removed, and was there for ever."""
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    with closing(sqlite3.connect(out / FILE)) as database:
        ((root,),) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_files_1'"
        )
        ((page,),) = database.execute("PRAGMA page_size")
    content = bytearray((out / FILE).read_bytes())
    at = content.index(b"red.png", page * (root - 1), page * root)
    content[at : at + 7] = b"rad.png"
    (out / FILE).write_bytes(content)
    (folder / "red.png").unlink()
    assert build_index(Plain(), folder, out).removed == 1
    with closing(Catalogue.open(out)) as catalogue:
        assert "red.png" not in catalogue.stamps()


def test_files_are_removed_in_the_order_of_the_table(tmp_path: Path) -> None:
    """In that of their names a stranger's 85 MB were read and written again and again, for 30 s."""
    numbers = random.Random(7).sample(range(53), 53)
    with closing(Catalogue.create(tmp_path, {})) as catalogue:
        with catalogue.change():
            catalogue.put(Entry(f"{number}.png", Stamp(1, 1), None, None) for number in numbers)
        removed = list[str]()
        catalogue.database.set_trace_callback(removed.append)
        with catalogue.change():
            catalogue.remove([f"{number}.png" for number in sorted(numbers) if number != 11])
            assert [*catalogue.database.execute("PRAGMA cache_size")] == [(-CACHE,)]
        assert [*catalogue.stamps()] == ["11.png"]
    rows = [int(line.rpartition(" ")[2]) for line in removed if line.startswith("DELETE FROM files")]
    assert len(rows) == 52
    assert rows == sorted(rows)
