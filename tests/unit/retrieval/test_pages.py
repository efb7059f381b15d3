"""Pages of SQLite files: good ones of every shape pass, and none in which something is part of two values."""

import random
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dear.retrieval import pages as module
from dear.retrieval.pages import Definition, Pages, PagesError

TABLES = ("CREATE TABLE items (name BLOB PRIMARY KEY, value TEXT)", "CREATE INDEX by_value ON items (value)")


def write(path: Path, page: int = 4096, rows: int = 300, longest: int = 40, seed: int = 0) -> list[int]:
    """A file with a table of so many rows, a third of them deleted; the roots of its trees."""
    rng = random.Random(seed)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA page_size = {page}")
        for table in TABLES:
            database.execute(table)
        values = (
            (rng.randbytes(rng.randint(1, longest)) + b"%d" % n, "x" * rng.randint(0, longest))
            for n in range(rows)
        )
        database.executemany("INSERT INTO items VALUES (?, ?)", values)
        database.execute("DELETE FROM items WHERE rowid % 3 = 0")
        database.executemany(
            "INSERT INTO items VALUES (?, ?)", [(b"new%d" % n, "y" * longest) for n in range(rows // 9)]
        )
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [root for (root,) in database.execute("SELECT rootpage FROM sqlite_master")]


def check(path: Path, roots: list[int]) -> None:
    pages = Pages(path)
    for root in roots:
        pages.tree(root)
    pages.require_own_free_pages()


@pytest.mark.parametrize("page", [512, 1024, 4096, 65_536])
@pytest.mark.parametrize(("rows", "longest"), [(0, 1), (7, 40), (3000, 40), (300, 3000), (40, 100_000)])
def test_good_files(
    page: int, rows: int, longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own check says that they are; many cells are taken in parts."""
    if (rows, longest) == (3000, 40):
        parts = Pages._parts
        monkeypatch.setattr(Pages, "_parts", staticmethod(lambda count: parts(count, 100)))
    check(tmp_path / "x", write(tmp_path / "x", page, rows, longest))


def test_the_pages_that_are_seen_are_all_but_free_ones(tmp_path: Path) -> None:
    """SQLite's own count is the reference."""
    roots = write(tmp_path / "x", 512, 2000, 700)
    with closing(sqlite3.connect(tmp_path / "x")) as database:
        ((count,),), ((free,),) = (
            database.execute(f"PRAGMA {name}").fetchall() for name in ("page_count", "freelist_count")
        )
    pages = Pages(tmp_path / "x")
    for root in roots:
        pages.tree(root)
    assert free > 0
    assert 1 + pages.taken.sum() == count - free
    pages.require_own_free_pages()
    assert 1 + pages.taken.sum() == count


@pytest.mark.parametrize(("page", "rows", "longest"), [(512, 2000, 700), (4096, 3000, 40), (1024, 0, 1)])
def test_the_entries_of_trees(page: int, rows: int, longest: int, tmp_path: Path) -> None:
    """As many as SQLite counts; the largest takes its values and a few bytes more."""
    roots = write(tmp_path / "x", page, rows, longest)
    pages = Pages(tmp_path / "x")
    trees = [pages.tree(root) for root in roots]
    with closing(sqlite3.connect(tmp_path / "x")) as database:
        question = "SELECT COUNT(*), COALESCE(MAX(LENGTH(name) + LENGTH(value)), 0) FROM items"
        ((count, largest),) = database.execute(question).fetchall()
    assert [tree.entries for tree in trees] == [count] * 3
    assert largest <= trees[0].largest <= largest + 9


@pytest.mark.parametrize(
    ("page", "blob"), [(512, 1), (512, 100_000), (512, 20_000_000), (4096, 1), (65_536, 1)]
)
def test_the_list_of_tables(page: int, blob: int, tmp_path: Path) -> None:
    """As SQLite reads it, with numbers of pages of one, two and three bytes, and of views, which have 0."""
    with closing(sqlite3.connect(tmp_path / "x")) as database, database:
        database.execute(f"PRAGMA page_size = {page}")
        database.execute("CREATE TABLE a (value BLOB PRIMARY KEY)")
        database.execute("INSERT INTO a VALUES (zeroblob(?))", (blob,))
        database.execute('CREATE TABLE "caf\xe9" (value)')
        database.execute("CREATE VIEW c AS SELECT 1")
        listed = database.execute("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master").fetchall()
    assert Pages(tmp_path / "x").definitions == [Definition(*row) for row in listed]
    assert [row[3] for row in listed][::3] == [2, 0]


@pytest.mark.parametrize(("value", "why"), [
    (0.5, "values of another type"), (b"x", "values of another type"), (2**40, "values of another type"),
    (None, "rows of another form"), ("2x", "rows of another form"), (7, None),
])  # fmt: skip
def test_rows_of_another_form_in_the_list_of_tables(value: object, why: str | None, tmp_path: Path) -> None:
    """SQLite would take the text for a number."""
    with closing(sqlite3.connect(tmp_path / "x")) as database, database:
        database.execute("CREATE TABLE a (value)")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET rootpage = ?", (value,))
    if why is None:
        assert [definition.root for definition in Pages(tmp_path / "x").definitions] == [value]
        return
    with pytest.raises(PagesError, match=f"its list of tables has {why}"):
        Pages(tmp_path / "x")


@pytest.mark.parametrize(("at", "value", "why"), [
    (0, b"\x80\x80", "a number of another length"), (5, b"\xff\xff", "a number of another length"),
    (0, b"\x00", "not all of its values"), (0, b"\x05", "not all of its values"),
    (0, b"\x07", "values of another type"), (1, b"\x19", "not all of its values"),
])  # fmt: skip
def test_changed_bytes_in_the_list_of_tables(at: int, value: bytes, why: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x")) as database, database:
        database.execute("CREATE TABLE a (value)")
    content = bytearray((tmp_path / "x").read_bytes())
    header = content.index(b"tableaa") - 6
    content[header + at : header + at + len(value)] = value
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(PagesError, match=why):
        Pages(tmp_path / "x")


def test_text_of_another_encoding(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x")) as database, database:
        database.execute("PRAGMA encoding = 'UTF-16le'")
        database.execute("CREATE TABLE a (value)")
    with pytest.raises(PagesError, match="its text is not in UTF-8"):
        Pages(tmp_path / "x")


@pytest.mark.parametrize("length", [
    b"\x90\x80\x80\x80\x66",  # 2^32 + 102
    b"\x80\x80\x80\x80\x80\x80\x80\x80\xe6",  # 230 of nine bytes
    b"\xc0\x82\x00",  # 2^20 + 256
])  # fmt: skip
def test_lengths_that_sqlite_reads_as_others(length: bytes, tmp_path: Path) -> None:
    """It takes the first two for 102, and looks elsewhere than here for where a value goes on."""
    with closing(sqlite3.connect(tmp_path / "x")) as database, database:
        database.execute("CREATE TABLE items (value TEXT)")
        database.execute("INSERT INTO items VALUES (?)", ("a" * 99,))
    content = bytearray((tmp_path / "x").read_bytes())
    cell = length + content[-103:]  # after a length of one byte
    content[-len(cell) :] = cell
    struct.pack_into(">H", content, 4096 + 8, 4096 - len(cell))
    (tmp_path / "x").write_bytes(content)
    if len(length) > 3:
        with closing(sqlite3.connect(tmp_path / "x")) as database:
            assert database.execute("SELECT value FROM items").fetchall() == [("a" * 99,)]
    with pytest.raises(PagesError, match="one of its values claims to be larger than the file"):
        check(tmp_path / "x", [2])


def cells(content: bytes, number: int, page: int) -> Iterator[int]:
    """Where in a file the pointers of a page's cells stand."""
    start = (number - 1) * page
    kind, count = content[start], struct.unpack_from(">H", content, start + 3)[0]
    return iter(
        range(start + (12 if kind in (2, 5) else 8), start + (12 if kind in (2, 5) else 8) + 2 * count, 2)
    )


def chains(content: bytes, number: int, page: int) -> list[int]:
    """Where the first pages of the overflowing values of a table's leaf are named: the last 4 bytes of cells
    that fill the page but for SQLite's share.
    """
    start = (number - 1) * page
    ends = sorted({struct.unpack_from(">H", content, at)[0] for at in cells(content, number, page)} | {page})
    return [start + end - 4 for end in ends[1:]]


def overflowing(path: Path, page: int = 4096) -> tuple[bytearray, list[int], list[int]]:
    """A file whose table has two rows in one leaf, each with a value of several pages."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA page_size = {page}")
        database.execute("CREATE TABLE items (value TEXT)")
        database.executemany("INSERT INTO items VALUES (?)", [("a" * 9000,), ("b" * 9000,)])
    content = bytearray(path.read_bytes())
    return content, chains(bytes(content), 2, page), [2]


def test_two_values_that_share_their_pages(tmp_path: Path) -> None:
    content, places, roots = overflowing(tmp_path / "x")
    check(tmp_path / "x", roots)
    content[places[0] : places[0] + 4] = content[places[1] : places[1] + 4]
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(PagesError, match="several of its pages name the same one"):
        check(tmp_path / "x", roots)


@pytest.mark.parametrize("target", ["itself", "the other value's", "a leaf", "the list of tables", "beyond"])
def test_a_value_that_goes_on_where_it_must_not(target: str, tmp_path: Path) -> None:
    content, places, roots = overflowing(tmp_path / "x")
    first, second = (struct.unpack_from(">I", content, at)[0] for at in places)
    number = {
        "itself": first,
        "the other value's": second,
        "a leaf": 2,
        "the list of tables": 1,
        "beyond": 99,
    }
    struct.pack_into(">I", content, (first - 1) * 4096, number[target])
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(PagesError, match=r"name the same one|that it does not have"):
        check(tmp_path / "x", roots)


def test_cells_that_overlap(tmp_path: Path) -> None:
    roots = write(tmp_path / "x", 1024, 20)
    good = (tmp_path / "x").read_bytes()
    leaf = next(number for number in range(2, len(good) // 1024) if good[(number - 1) * 1024] == 13)
    first, second, *_ = cells(good, leaf, 1024)
    for moved in (struct.unpack_from(">H", good, first)[0], 3, 1023):
        content = bytearray(good)
        struct.pack_into(">H", content, second, moved)
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(PagesError):
            check(tmp_path / "x", roots)


def test_more_levels_than_sqlite_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = write(tmp_path / "x", 512, 5000)
    check(tmp_path / "x", roots)
    monkeypatch.setattr(module, "LEVELS", 2)
    with pytest.raises(PagesError, match="too many levels"):
        check(tmp_path / "x", roots)


@pytest.mark.parametrize(("at", "value"), [
    (0, b"X"), (16, b"\0\0"), (16, b"\x10\1"), (16, b"\x20\0"), (18, b"\2"), (19, b"\2"), (20, b"\1"),
    (27, b"\xff"), (31, b"\1"), (51, b"\1"), (55, b"\1"), (100, b"\5"), (103, b"\xff\xff"), (4096, b"\0"),
])  # fmt: skip
def test_headers(at: int, value: bytes, tmp_path: Path) -> None:
    """Of another page size, with a log, reserved bytes, pages to keep or to move, and wrong pages."""
    roots = write(tmp_path / "x", 4096, 100)
    content = bytearray((tmp_path / "x").read_bytes())
    content[at : at + len(value)] = value
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(PagesError):
        check(tmp_path / "x", roots)


def test_a_file_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 GB of holes, where a process may take less."""
    roots = write(tmp_path / "x")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(module, "mmap", refuse)
    with pytest.raises(PagesError, match=r"its [\d,]+ bytes cannot be read .*Cannot allocate memory"):
        check(tmp_path / "x", roots)


def test_lists_of_tables_of_several_pages(tmp_path: Path) -> None:
    for name, definitions in {
        "long": [f"CREATE TABLE x (a TEXT DEFAULT '{'a' * 5000}')"],
        "many": [f"CREATE TABLE x{n} (a)" for n in range(300)],
    }.items():
        with closing(sqlite3.connect(tmp_path / name)) as database, database:
            for definition in definitions:
                database.execute(definition)
        with pytest.raises(PagesError, match="its list of tables has more than a page"):
            check(tmp_path / name, [])


@pytest.mark.parametrize("seed", range(40))
def test_changed_bytes_are_refused_or_sqlite_reads_no_more_than_the_file(seed: int, tmp_path: Path) -> None:
    """The total of all values of a table never exceeds the size of a file that passes."""
    rng = random.Random(seed)
    roots = write(tmp_path / "x", 512, 200, 600, seed)
    good = (tmp_path / "x").read_bytes()
    for _ in range(30):
        content = bytearray(good)
        for _ in range(rng.choice((1, 2, 8))):
            at = (
                rng.randrange(512, len(content))
                if rng.random() < 0.5
                else rng.randrange(1, len(content) // 512) * 512
            )
            content[at : at + 4] = rng.choice(
                (rng.randbytes(4), struct.pack(">I", rng.randint(1, len(good) // 512)))
            )
        (tmp_path / "x").write_bytes(content[: len(good)])
        try:
            check(tmp_path / "x", roots)
        except PagesError:
            continue
        total = 0
        with closing(sqlite3.connect(tmp_path / "x")) as database:
            try:
                for name, value in database.execute(
                    "SELECT CAST(name AS BLOB), CAST(value AS BLOB) FROM items NOT INDEXED"
                ):
                    total += len(name or b"") + len(value or b"")
            except sqlite3.DatabaseError:
                pass
        assert total <= len(good)


def test_a_value_has_no_more_pages_than_it_fills(tmp_path: Path) -> None:
    """Each further one is looked at: 50,000 of them took 1.3 s."""
    path = tmp_path / "x"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA page_size = 512")
        database.execute("CREATE TABLE items (value TEXT)")
        database.execute("INSERT INTO items VALUES (?)", ("x" * 5000,))
    pages = Pages(path)
    root = pages.definitions[0].root
    assert pages.tree(root).largest == 5003  # with the head: its length and the type, of two bytes
    (last,) = Pages(path)._read(np.array([root])).overflows
    content = bytearray(path.read_bytes())
    while following := int.from_bytes(content[512 * (last - 1) :][:4], "big"):
        last = following
    count = len(content) // 512
    content[512 * (last - 1) : 512 * (last - 1) + 4] = (count + 1).to_bytes(4, "big")
    content[28:32] = (count + 2).to_bytes(4, "big")
    path.write_bytes(bytes(content) + (count + 2).to_bytes(4, "big") + bytes(508) + bytes(512))
    with pytest.raises(PagesError, match="one of its values has more pages than it fills"):
        Pages(path).tree(root)


@pytest.mark.parametrize("listed", ["root", "itself", "twice", "next", "many", "beyond"])
def test_free_pages_that_are_in_use(listed: str, tmp_path: Path) -> None:
    """SQLite would write to them: an update then made a tree whose pages have several parents."""
    path = tmp_path / "x"
    roots = write(path, 512, 2000, 700)
    content = bytearray(path.read_bytes())
    trunk = int.from_bytes(content[32:36], "big")
    at = 512 * (trunk - 1)
    _, count, first = struct.unpack_from(">III", content, at)
    assert count > 1
    at, value = {
        "root": (at + 8, roots[0]),
        "itself": (at + 8, trunk),
        "twice": (at + 12, first),
        "next": (at, trunk),
        "many": (at + 4, 127),
        "beyond": (at + 8, len(content) // 512 + 1),
    }[listed]
    struct.pack_into(">I", content, at, value)
    path.write_bytes(content)
    with pytest.raises(PagesError, match=r"several of its pages|does not have|free pages lists more"):
        check(path, roots)


def test_a_large_entry_is_not_followed(tmp_path: Path) -> None:
    roots = write(tmp_path / "x", 512, 40, 3000)
    with pytest.raises(PagesError, match=r"it has a row of \d,\d{3} bytes"):
        Pages(tmp_path / "x").tree(roots[0], 1000)
