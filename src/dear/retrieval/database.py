"""The SQLite file of an index, and the lock of a build."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from dear.errors import OutputError
from dear.retrieval.results import damaged

FILE, LOCK = "index.sqlite", "lock.sqlite"
TABLES = ("facts", "files")
MOST_FACTS = 100
DEFINITIONS = (
    "CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE files (
        path BLOB PRIMARY KEY, size INTEGER NOT NULL, mtime INTEGER NOT NULL,
        sha256 TEXT, row INTEGER, reason TEXT
    )""",
    "CREATE INDEX by_content ON files (sha256)",
    "CREATE INDEX by_row ON files (row)",
)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a folder (created if missing) against a second `dear index build`; the lock ends with the process.
    Raises OutputError.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
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
    """A connection to a catalogue.

    Attributes:
        has_tables: False for a file that a build has created and not filled yet.
    """

    has_tables = False


def state_of(folder: Path) -> tuple[object, ...]:
    """What changes with the file of a catalogue and with those beside it that SQLite obeys at the next
    question, such as a journal. Raises OSError if there is no catalogue.
    """
    state = list[object]()
    for ending in ("", "-journal", "-wal", "-shm"):
        name = f"{FILE}{ending}"
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
    # Only `change` begins transactions; a server reads from several threads, one at a time.
    database = sqlite3.connect(
        path, timeout=30, isolation_level=None, check_same_thread=False, factory=Database
    )
    try:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and not tables >= {*TABLES}:
            raise damaged(path.parent, f"{path.name} is no catalogue of an index")
        database.has_tables = bool(tables)
    except BaseException as error:
        database.close()
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            raise damaged(path.parent, f"{path.name}: {error}") from error
        raise
    return database
