"""The SQLite files of an index, which may be a stranger's: which there are, how they are opened, and what
they may define.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain
from pathlib import Path

from dear.errors import OutputError, first_line
from dear.reading.files import ReadingError, require_plain
from dear.retrieval.pages import Pages, PagesError
from dear.retrieval.results import damaged

FILE, LOCK = "index.sqlite", "lock.sqlite"
DATABASES = [f"{name}{ending}" for name in (FILE, LOCK) for ending in ("", "-journal", "-wal", "-shm")]
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")  # sqlite.org/fileformat2.html#the_rollback_journal
LARGEST_ROW = 2**16  # bytes of a file's row: its path has 4,096 at most, a reason 10,000 characters
DEFINITIONS = (
    "CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE files (
        path BLOB PRIMARY KEY, size INTEGER NOT NULL, mtime INTEGER NOT NULL,
        sha256 TEXT, row INTEGER, reason TEXT
    )""",
    "CREATE INDEX by_content ON files (sha256)",
    "CREATE INDEX by_row ON files (row)",
)
"""All that a catalogue's file may define: readers would execute views, triggers and computed columns."""


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
        if pages.size:
            question = "SELECT type, name, tbl_name, sql, rootpage FROM sqlite_master ORDER BY type DESC"
            rows = dict[str, int]()
            for kind, name, table, sql, root in database.execute(question).fetchall():  # tables come first
                # SQLite's own index, of a primary key, has no definition.
                if (sql not in DEFINITIONS and (kind, sql) != ("index", None)) or not isinstance(root, int):
                    raise PagesError(f"it has more than the tables of an index: {str(name)[:40]!r}")
                tree = pages.tree(root)
                # The entries of an index each name a row, which is read again for each.
                if rows.setdefault(table, tree.entries) != tree.entries:
                    raise PagesError(f"{str(name)[:40]!r} has {tree.entries} entries for {rows[table]} rows")
                if table == "files" and tree.largest > LARGEST_ROW:
                    raise PagesError(f"it has a row of {tree.largest:,} bytes")
            database.has_tables = bool(rows)
    except (PagesError, sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        raise damaged(path.parent, f"{path.name}: {first_line(error)}") from error
    finally:
        database.rollback()


def require_own_files(folder: Path) -> None:
    """Raise DataError for a file of an index that is a link, a pipe or a device: SQLite and a build would
    write to it. So too for a journal that ends with the name of a second one: SQLite would delete the file of
    that name while it recovers. A build writes one database, so its journals never have one.
    """
    for path in chain(
        map(folder.joinpath, DATABASES), folder.glob("vectors-*"), folder.glob("vectors-*/*.f16")
    ):
        try:
            with suppress(FileNotFoundError):  # or another process has just removed it
                if path.name in DATABASES or path.is_symlink() or not path.is_dir():
                    require_plain(path, links=False)
                if path.name in DATABASES and path.name.endswith("-journal"):
                    with path.open("rb") as journal:
                        journal.seek(max(0, path.stat().st_size - len(JOURNAL_MAGIC)))
                        if journal.read(len(JOURNAL_MAGIC)) == JOURNAL_MAGIC:
                            raise ReadingError(path, "it names another file")
                if path.name.endswith(("-wal", "-shm")):
                    raise ReadingError(path, "an index has no such file")
        except ReadingError as error:
            raise damaged(folder, f"{path.relative_to(folder)}: {error.reason}") from error
