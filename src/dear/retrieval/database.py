"""The SQLite files of an index, which may be a stranger's: which there are, how they are opened, and what
they may define.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dear.errors import OutputError
from dear.reading.files import ReadingError
from dear.retrieval.pages import Pages, PagesError
from dear.retrieval.results import damaged

FILE, LOCK = "index.sqlite", "lock.sqlite"
DATABASES = [f"{name}{ending}" for name in (FILE, LOCK) for ending in ("", "-journal", "-wal", "-shm")]
LARGEST_LOCK = {f"{LOCK}-journal": 512}
"""Bytes of the files of a lock, 0 for others: SQLite makes the head of a journal, without a page."""
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")  # sqlite.org/fileformat2.html#the_rollback_journal
JOURNAL_HEAD = 28  # bytes: the last are the pages that the database had, a sector's size, and a page's
PAGE_SIZES = [2**power for power in range(9, 17)]
MOST_FACTS = 100
LARGEST_FACTS = 32 * 2**20  # bytes of the facts of an index
LARGEST_ROW = 2**16  # bytes of a file's row: its path has 4,096 at most, an older reason 10,000 characters
TABLES = {
    "facts": ("table", "facts", "CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL)"),
    "files": (
        "table",
        "files",
        """CREATE TABLE files (
        path BLOB PRIMARY KEY, size INTEGER NOT NULL, mtime INTEGER NOT NULL,
        sha256 TEXT, row INTEGER, reason TEXT
    )""",
    ),
    "sqlite_autoindex_facts_1": ("index", "facts", None),
    "sqlite_autoindex_files_1": ("index", "files", None),
    "by_content": ("index", "files", "CREATE INDEX by_content ON files (sha256)"),
    "by_row": ("index", "files", "CREATE INDEX by_row ON files (row)"),
}
"""All that a catalogue's file defines, tables first: kind, table and SQL of each name. Readers would execute
views, triggers and computed columns, and SQLite reads tables of its own, such as sqlite_stat1, unasked. It
makes the indexes of primary keys itself, without SQL.
"""
LARGEST_KEYS = {
    "sqlite_autoindex_facts_1": 1000, "sqlite_autoindex_files_1": 4200, "by_content": 128, "by_row": 32,
}  # fmt: skip
"""Bytes of an entry of an index: SQLite reads several for each that it seeks."""
DEFINITIONS = [sql for _, _, sql in TABLES.values() if sql is not None]


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a folder (created if missing) against a second `dear index build`; the lock ends with the process.
    Raises OutputError.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            require_own_files(folder)
            lock = sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)
            stack.enter_context(closing(lock)).execute("BEGIN EXCLUSIVE")
        except OSError as error:
            raise unwritable(folder, error) from error
        except sqlite3.Error as error:
            locked = "locked" in str(error)
            why = "another process is writing it, wait for it to finish" if locked else str(error)
            raise OutputError(f"cannot change the index {folder}: {why}.") from error
        yield


def unwritable(folder: Path, error: Exception) -> OutputError:
    return OutputError(f"cannot write an index to {folder}: {error}. Choose another folder.")


class Database(sqlite3.Connection):
    """A connection to a catalogue, and its file: closing that would end the locks of the connection.

    Attributes:
        has_tables: False for a file that a build has created and not filled yet.
    """

    pages: Pages | None = None
    has_tables = False

    def close(self) -> None:
        super().close()
        if self.pages is not None:
            self.pages.close()


def state_of(folder: Path) -> tuple[object, ...]:
    """What changes with the file of a catalogue and with those beside it that SQLite obeys at the next
    question, such as a journal. Raises OSError if there is no catalogue.
    """
    state = list[object]()
    for name in filter(lambda name: name.startswith(FILE), DATABASES):
        try:
            facts = (folder / name).lstat()
            state += [name, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]
        except FileNotFoundError:
            if name == FILE:
                raise
    return (*state,)


def connect(path: Path) -> Database:
    """Open a catalogue, which need not exist, for questions and changes. Raises DataError for one that is
    damaged, sqlite3.Error for one that is locked.
    """
    require_own_files(path.parent)
    # Only `change` begins transactions; a server reads from several threads, one at a time.
    database = sqlite3.connect(
        path, timeout=30, isolation_level=None, check_same_thread=False, factory=Database
    )
    try:
        database.execute("PRAGMA trusted_schema = OFF")  # nothing that the file defines is executed
        _require_own_trees(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _require_own_trees(database: Database, path: Path) -> None:
    """Raise DataError unless the file has the tables of a catalogue or none, and each page in one of them."""
    database.execute("BEGIN")
    # Locks the file against changes, and undoes one that was interrupted, but reads no table.
    database.execute("PRAGMA user_version").fetchone()
    try:
        database.pages = pages = Pages(path)
        roots = _roots(pages)
        largest = {"files": LARGEST_ROW, "facts": LARGEST_FACTS} | LARGEST_KEYS
        sizes = {name: pages.tree(root, largest[name]) for name, root in roots.items()}
        pages.require_own_free_pages()
        for name, size in sizes.items():
            # The entries of an index each name a row, which is read again for each.
            table = TABLES[name][1]
            if size.entries != (rows := sizes[table].entries):
                raise PagesError(f"{name!r} has {size.entries} entries for {rows} rows")
            if table == "facts" and rows > MOST_FACTS:
                raise PagesError(f"it has more than {MOST_FACTS} facts")
        database.has_tables = bool(roots)
    except PagesError as error:
        raise damaged(path.parent, f"{path.name}: {error}") from error
    finally:
        database.rollback()


def _roots(pages: Pages) -> dict[str, int]:
    """The roots of a catalogue's trees by their names, tables first; none of a file without tables. Raises
    PagesError for a file that defines anything else, or only some of them.
    """
    missing, roots = dict(TABLES), dict[str, int]()
    for definition in pages.definitions:
        if missing.pop(definition.name, None) != (definition.kind, definition.table, definition.sql):
            raise PagesError(f"it has more than the tables of an index: {definition.name[:40]!r}")
        roots[definition.name] = definition.root
    if roots and missing:
        raise PagesError(f"it lacks tables of an index: {', '.join(missing)}")
    return {name: roots[name] for name in TABLES if name in roots}


def require_own_files(folder: Path) -> None:
    """Raise DataError for a file of an index that is a link, a pipe or a device: SQLite and a build would
    write to it. So too for a journal that ends with the name of a second one: SQLite would delete the file of
    that name while it recovers. A build writes one database, so its journals never have one. Raises OSError
    for a folder that cannot be listed: what is in it may be opened all the same.
    """
    for path in _own_files(folder):
        try:
            with suppress(FileNotFoundError):  # or another process has just removed it
                if path.name in DATABASES and not stat.S_ISREG(path.stat().st_mode):
                    raise ReadingError(path, "it is not a regular file")
                if path.name in DATABASES and path.name.endswith("-journal"):
                    with path.open("rb") as journal:
                        journal.seek(max(0, path.stat().st_size - len(JOURNAL_MAGIC)))
                        if journal.read(len(JOURNAL_MAGIC)) == JOURNAL_MAGIC:
                            raise ReadingError(path, "it names another file")
                        _require_small_database(path, journal)
                if path.name.startswith(LOCK) and path.stat().st_size > LARGEST_LOCK.get(path.name, 0):
                    raise ReadingError(path, "a build writes nothing to it")
                if path.name.endswith(("-wal", "-shm")):
                    raise ReadingError(path, "an index has no such file")
        except ReadingError as error:
            raise damaged(folder, f"{path.relative_to(folder)}: {error.reason}") from error


def _own_files(folder: Path) -> Iterator[Path]:
    """The paths that a build writes to, whether or not they are there, but for folders."""
    yield from map(folder.joinpath, DATABASES)
    with os.scandir(folder) as entries:  # unlike `glob`, it raises if it may not
        generations = [folder / entry.name for entry in entries if entry.name.startswith("vectors-")]
    for generation in generations:
        yield generation
        if generation.is_dir() and not generation.is_symlink():
            with suppress(FileNotFoundError), os.scandir(generation) as entries:  # a build has removed it
                yield from (generation / entry.name for entry in entries if entry.name.endswith(".f16"))


def _require_small_database(path: Path, journal: BinaryIO) -> None:
    """Raise ReadingError for a journal of a database larger than itself and the one there: SQLite would
    extend that, by a hole of terabytes.
    """
    journal.seek(0)
    head = journal.read(JOURNAL_HEAD)
    if len(head) < JOURNAL_HEAD or not head.startswith(JOURNAL_MAGIC):
        return  # SQLite takes nothing of it
    pages, page = int.from_bytes(head[16:20], "big"), int.from_bytes(head[24:28], "big")
    if page not in PAGE_SIZES:  # 0 is that of the database
        raise ReadingError(path, f"its pages have {page:,} bytes")
    database = path.with_name(path.name.removesuffix("-journal"))
    present = database.stat().st_size if database.is_file() else 0
    if pages * page > present + path.stat().st_size:
        raise ReadingError(path, f"it is of a database of {pages * page:,} bytes, which is not there")
