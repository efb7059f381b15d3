"""The SQLite files of an index, which may be a stranger's: which there are, how they are opened, and how many
steps a question may take.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path

from dear.errors import OutputError
from dear.reading.files import ReadingError, require_plain
from dear.retrieval.results import damaged

FILE, LOCK = "index.sqlite", "lock.sqlite"
DATABASES = [f"{name}{ending}" for name in (FILE, LOCK) for ending in ("", "-journal", "-wal", "-shm")]
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")  # sqlite.org/fileformat2.html#the_rollback_journal
STEPS, STEPS_A_BYTE, AT_ONCE = 3_000_000, 2, 10_000
"""Steps of SQLite's machine that a question may take, at least and for each byte of the file, and how many it
takes between two looks at them. An honest file's rows need fewer than one for each byte.
"""


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


def connect(path: Path) -> sqlite3.Connection:
    require_own_files(path.parent)
    # Only `change` begins transactions; a server reads from several threads, one at a time.
    database = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    bound_steps(database, path)
    database.execute("PRAGMA trusted_schema = OFF")  # nothing that the file defines is executed
    return database


def bound_steps(database: sqlite3.Connection, path: Path) -> None:
    """End the next question after a number of steps: SQLite follows pages that are children of several
    parents, so a small file may have more entries than can ever be read. The handler is no code of Python, in
    which a signal's exception would be lost.
    """
    looks = (STEPS + STEPS_A_BYTE * path.stat().st_size) // AT_ONCE
    database.set_progress_handler(chain(repeat(0, looks), repeat(1)).__next__, AT_ONCE)


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
        except ReadingError as error:
            raise damaged(folder, f"{path.relative_to(folder)}: {error.reason}") from error
