"""The files of an index and their rows, in one SQLite file; every change is a transaction. Names of files are
stored as their bytes, which need not be UTF-8.

In a stranger's file an index may name one row of the table for all its entries. So every question here reads
the table itself, each row once, or one row.
"""

import json
import os
import re
import sqlite3
import string
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote, unquote_to_bytes

import numpy as np
from jaxtyping import Bool

from dear.errors import DataError, OutputError
from dear.reading.files import ReadingError
from dear.reading.plain import parse_json
from dear.reading.typed import shown, typed
from dear.retrieval.database import (
    DEFINITIONS,
    FILE,
    MOST_FACTS,
    Database,
    connect,
    state_of,
    unwritable,
)
from dear.retrieval.facts import Facts
from dear.retrieval.results import COPIES, damaged, unopened
from dear.retrieval.scan import Stamp

SCHEMA = 3
LONGEST_PATH, LONGEST_REASON = 4096, 500
FIRST_VECTORS = "vectors-1"
WRITTEN_AT_ONCE = 1000  # rows: signals, such as SIGTERM, wait so long
CACHE = 2**16  # KiB of pages in memory during a change: SQLite writes and reads others again and again
OF_FAISS = {"trained", "kind", "storage"}
"""Facts of the time when FAISS searched; a completed build left them, and all its rows are searchable."""
SHA256 = re.compile("[0-9a-f]{64}")
PLAIN = "".join(sorted({*string.printable} - {*string.whitespace} - {"%"})) + " "
"""Characters of a name in the facts that stand for themselves; the rest is written as in URLs."""


class Entry(NamedTuple):
    """A file: its row of vectors, or the reason why it has none. Files with the same content share a row."""

    path: str
    stamp: Stamp
    sha256: str | None
    row: int | None
    reason: str | None = None


class Catalogue:
    """Facts about an index (how it was built, how many rows it has) and its files."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database, self._file = folder, database, state_of(folder)
        self._texts, self._facts = dict[str, str](), dict[str, Any]()  # as read before, which takes long

    @classmethod
    def create(cls, folder: Path, metadata: Mapping[str, Any]) -> Self:
        """Create a catalogue with its first facts in one transaction; before that it does not exist
        (``exists``). Raises OutputError, also if there are vectors of an index that is no longer there.
        """
        if any(folder.glob(f"{FIRST_VECTORS}/*.f16")):
            raise OutputError(
                f"{folder} holds vectors without their index, in {FIRST_VECTORS}: remove that folder, or "
                "choose another one."
            )
        try:
            catalogue = cls(folder, connect(folder / FILE))
        except (OSError, sqlite3.Error) as error:
            raise unwritable(folder, error) from error
        with catalogue.change():
            for table in DEFINITIONS:
                catalogue.database.execute(table)
            catalogue.set(**{"schema": SCHEMA, "rows": 0, "generation": 1} | dict(metadata))
        return catalogue

    @staticmethod
    def exists(folder: Path) -> bool:
        """True if there is a catalogue, possibly locked. A file without tables does not count: SQLite
        creates the file first, and the process creating the catalogue did not finish. Raises DataError if it
        is damaged.
        """
        if not os.path.lexists(folder / FILE):
            return False
        try:
            with closing(connect(folder / FILE)) as database:
                return database.has_tables
        except (OSError, sqlite3.Error):
            return True

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a catalogue. Raises DataError if there is none, or one of another schema."""
        missing = f"{folder} is not an index of images: `dear index build` makes one."
        if not os.path.lexists(folder / FILE):
            raise DataError(missing)
        try:
            catalogue = cls(folder, connect(folder / FILE))
        except (OSError, sqlite3.Error) as error:
            raise unopened(folder, error) from error
        if not catalogue.database.has_tables:
            catalogue.close()
            raise DataError(missing)
        catalogue.metadata()
        return catalogue

    def close(self) -> None:
        self.database.close()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Context of a transaction: its changes become visible together at the end. Raises OutputError."""
        try:
            with self.database:
                self.database.execute(f"PRAGMA cache_size = {-CACHE}")
                self.database.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.OperationalError as error:  # locked, disk full, no permission
            raise OutputError(f"cannot change the index {self.folder}: {error}.") from error
        except sqlite3.DatabaseError as error:
            raise damaged(self.folder, error) from error

    @contextmanager
    def reading(self) -> Iterator[object]:
        """Context of a consistent read, unaffected by builds; yields what identifies the state. Raises
        DataError if the index is gone. If its file was changed, by a build or by whoever put another one in
        its place, it is opened again, with all checks.
        """
        try:
            if (file := state_of(self.folder)) != self._file:
                self.database.close()
                self._file = ()  # until it could be opened
                self.database, self._file = connect(self.folder / FILE), file
            self.database.execute("BEGIN")
        except (OSError, sqlite3.Error) as error:
            raise unopened(self.folder, error) from error
        try:
            yield file, *self._ask("PRAGMA data_version")
        finally:
            self.database.rollback()

    def metadata(self) -> dict[str, Any]:
        """The facts of the index. Raises DataError if they are damaged or of another schema."""
        ((count,),) = self._ask("SELECT COUNT(*) FROM facts")
        if count > MOST_FACTS:
            raise damaged(self.folder, f"it has more than {MOST_FACTS} facts")
        texts = {str(key): str(value) for key, value in self._ask("SELECT key, value FROM facts")}
        if texts != self._texts:
            self._facts, self._texts = self._checked(texts), texts
        return dict(self._facts)

    def _checked(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """The facts in these texts. Raises as `metadata`."""
        try:
            facts = {key: parse_json(text, f"its {key}") for key, text in texts.items()}
        except ReadingError as error:
            raise damaged(self.folder, f"its facts are not JSON: {error}") from error
        if isinstance(schema := facts.get("schema"), int) and schema != SCHEMA:
            raise DataError(
                f"the index {self.folder} has schema {schema}, this version reads {SCHEMA}: remove it and "
                "run `dear index build` again."
            )
        if "trained" in facts:
            facts.setdefault("searchable_rows", facts.get("rows"))
        facts = {key: fact for key, fact in facts.items() if key not in OF_FAISS}
        try:
            metadata = typed(facts, Facts, self.folder)
        except ReadingError as error:
            raise damaged(self.folder, error.reason) from error
        if metadata.get("searchable_rows", 0) > metadata["rows"]:
            raise damaged(self.folder, "more rows are searchable than there are")
        heads = [*chain(*metadata["heads"]["heads"].values())] if "heads" in metadata else []
        if len({*heads}) < len(heads):  # what each writes is computed for the first query
            raise damaged(self.folder, "it lists a head twice")
        return _names(dict(metadata), self._unquoted)

    def set(self, **metadata: Any) -> None:
        facts = [(key, json.dumps(fact)) for key, fact in _names(metadata, _quoted).items()]
        self._write("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts)

    def begin_again(self, **metadata: Any) -> None:
        """Remove all files, and all facts but those of the catalogue's form, and set these."""
        self.database.execute("DELETE FROM files")
        self.database.execute("DELETE FROM facts WHERE key NOT IN ('schema', 'generation')")
        self.set(**metadata, rows=0)

    def end_merge(self) -> None:
        """Remove the mark of a merge: from then on the files are those of a build."""
        self.database.execute("DELETE FROM facts WHERE key = 'merging'")

    def stamps(self) -> dict[str, Stamp]:
        """All files, including unreadable ones."""
        listed = self._ask("SELECT path, size, mtime FROM files NOT INDEXED")
        return {self._path(name): Stamp(size, mtime) for name, size, mtime in listed}

    def count(self) -> int:
        """The number of files, including unreadable ones."""
        ((count,),) = self._ask("SELECT COUNT(*) FROM files NOT INDEXED")
        return int(count)

    def entries(self, rows: int) -> Iterator[Entry]:
        """All files, by the bytes of their paths. Raises DataError for an entry that no build of ``rows``
        rows has written.
        """
        query = "SELECT path, size, mtime, sha256, row, reason FROM files NOT INDEXED ORDER BY path"
        last: object = None
        for name, size, mtime, sha256, row, reason in self._ask(query):
            path = self._path(name)
            if name == last:
                raise damaged(self.folder, f"{path[:100]!r} is there twice")
            last = name
            unread = row is None and sha256 is None and isinstance(reason, str | None)
            read = isinstance(row, int) and 0 <= row < rows and _is_sha256(sha256) and reason is None
            if not (isinstance(size, int) and isinstance(mtime, int) and (unread or read)):
                raise damaged(self.folder, f"its entry of {path[:100]!r} is wrong")
            yield Entry(path, Stamp(size, mtime), sha256, row, _shortened(reason))

    def rebuild_indexes(self) -> None:
        """Make the file's indexes anew from its tables, before they are changed: those of a stranger may be
        slow to seek in, or lack rows.
        """
        with self.change():
            self.database.execute("REINDEX")

    def require_rows(self, rows: int) -> None:
        """Raise DataError for a file whose row is not among ``rows``: no query would find it."""
        among = "typeof(row) = 'integer' AND row >= 0 AND row < ?"
        beyond = f"SELECT path FROM files NOT INDEXED WHERE row IS NOT NULL AND NOT ({among}) LIMIT 1"
        for (name,) in self._ask(beyond, rows):
            raise damaged(self.folder, f"{self._path(name)[:100]!r} has a row that is not there")

    def require_one_content_a_row(self) -> None:
        """Raise DataError unless files of one content share one row, and no others have it."""
        for key, value in (("sha256", "row"), ("row", "sha256")):
            several = f"GROUP BY {key} HAVING MIN({value}) <> MAX({value})"
            if [*self._ask(f"SELECT 1 FROM files NOT INDEXED WHERE row IS NOT NULL {several} LIMIT 1")]:
                raise damaged(self.folder, f"files of one {key} have several {value}s")

    def broken(self) -> dict[str, str]:
        """Unreadable files: path and reason."""
        listed = self._ask("SELECT path, reason FROM files NOT INDEXED WHERE row IS NULL")
        reasons = {self._path(name): str(_shortened(reason)) for name, reason in listed}
        return {path: reasons[path] for path in sorted(reasons, key=os.fsencode)}

    def row_of(self, sha256: str) -> int | None:
        """The row of a content hash, if a file has it. Raises DataError if that has none."""
        rows = [row for (row,) in self._ask("SELECT row FROM files WHERE sha256 = ? LIMIT 1", sha256)]
        if rows and not (isinstance(rows[0], int) and rows[0] >= 0):
            raise damaged(self.folder, f"a file of the content {sha256} has no row")
        return int(rows[0]) if rows else None

    def files_of(self, row: int, most: int = COPIES + 1) -> tuple[list[str], int, str]:
        """The files of a row, by path, of many the first ``most`` that were indexed; how many more there are;
        and the SHA-256 of their bytes. Raises DataError if there is none.
        """
        # The table's rows that an index names for the number, each once: to SQLite a plain rowid is unique.
        numbers = "SELECT DISTINCT +rowid FROM files INDEXED BY by_row WHERE row = ?"
        query = f"SELECT path, sha256 FROM files NOT INDEXED WHERE rowid IN ({numbers} LIMIT ?) AND row = ?"
        hashes = {self._path(name): sha256 for name, sha256 in self._ask(query, row, most, row)}
        paths = sorted(hashes, key=os.fsencode)
        if not paths or not all(map(_is_sha256, hashes.values())):
            raise damaged(self.folder, f"row {row} belongs to no file")
        if len({*hashes.values()}) > 1:
            raise damaged(self.folder, f"row {row} belongs to files of several contents")
        ((count,),) = self._ask(f"SELECT COUNT(*) FROM ({numbers})", row)
        return paths, max(0, count - len(paths)), str(hashes[paths[0]])

    def live(self, rows: int) -> Bool[np.ndarray, "row"]:
        """Which of the first ``rows`` rows belong to a file. Raises DataError for what is no row."""
        alive = np.zeros(rows, dtype=bool)
        for (row,) in self._ask("SELECT DISTINCT row FROM files NOT INDEXED WHERE row IS NOT NULL"):
            if not isinstance(row, int) or row < 0:
                raise damaged(self.folder, f"a file has the row {shown(row)}")
            if row < rows:  # a build may have added others meanwhile
                alive[row] = True
        return alive

    def put(self, entries: Iterable[Entry]) -> None:
        self._write(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)",
            [
                (os.fsencode(e.path), e.stamp.size, e.stamp.mtime, e.sha256, e.row, _shortened(e.reason))
                for e in entries
            ],
        )

    def remove(self, paths: Sequence[str]) -> None:
        names = {*map(os.fsencode, paths)}
        listed = self._ask("SELECT rowid, path FROM files NOT INDEXED") if names else ()
        # In the order of the table, which a stranger's index has in any: the pages that change are in memory.
        numbers = array("q", (number for number, name in listed if name in names))
        self._write("DELETE FROM files WHERE rowid = ?", ((number,) for number in numbers))

    def renumber(self, rows: Iterable[int]) -> None:
        """Renumber rows to their positions in ``rows``, which contains the row of every file."""
        execute = self.database.execute
        execute("CREATE TEMP TABLE numbers (old INTEGER PRIMARY KEY, new INTEGER)")
        self._write("INSERT INTO numbers VALUES (?, ?)", ((old, new) for new, old in enumerate(rows)))
        new = "(SELECT new FROM numbers WHERE old = row)"
        execute(f"UPDATE files NOT INDEXED SET row = {new} WHERE row IS NOT NULL")
        execute("DROP TABLE numbers")

    def _path(self, name: object) -> str:
        """A file's path, relative to the index's folder. Raises DataError for one that leads elsewhere."""
        path = os.fsdecode(name[: LONGEST_PATH + 1]) if isinstance(name, bytes) else ""
        parts = {*path.split("/")}
        inside = not parts & {"", ".", ".."} and "\0" not in path
        if not inside or len(path) > LONGEST_PATH:
            raise damaged(self.folder, f"{str(name)[:100]!r} is no path in its folder")
        return path

    def _unquoted(self, name: str) -> str:
        """The inverse of `_quoted`. Raises DataError for a name that no file can have."""
        # in which each byte may take three letters
        name = os.fsdecode(unquote_to_bytes(name)) if len(name) <= 3 * LONGEST_PATH else name
        if "\0" in name or len(name) > LONGEST_PATH:
            raise damaged(self.folder, f"{name[:100]!r} is no name of a file")
        return name

    def _write(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        remaining = iter(rows)
        while part := [*islice(remaining, WRITTEN_AT_ONCE)]:
            self.database.executemany(statement, part)

    def _ask(self, question: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            # `yield from` would close a cursor that is left early, and fail if the database is closed.
            for row in self.database.execute(question, values):  # noqa: UP028
                yield row
        except sqlite3.Error as error:
            if str(error) == "database or disk is full":
                remedy = "Set SQLITE_TMPDIR to a folder with room."
                raise OutputError(
                    f"cannot sort the files of the index {self.folder}: {error}. {remedy}"
                ) from error
            raise unopened(self.folder, error) from error


def _names(facts: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Facts with those changed that are names of files."""
    facts = {key: change(fact) if key in ("folder", "model") else fact for key, fact in facts.items()}
    if facts.get("heads", {}).get("pretrained") is not None:
        facts["heads"] = {**facts["heads"], "pretrained": change(facts["heads"]["pretrained"])}
    return facts


def _quoted(name: str) -> str:
    """A file's name in ASCII: it may have bytes that are not UTF-8, which JSON has no room for."""
    return quote(os.fsencode(name), safe=PLAIN)


def _shortened(reason: str | None) -> str | None:
    """A reason in UTF-8. A long one begins with the path of its file, so its middle is left out."""
    if reason is None:
        return None
    text = str(reason).encode("utf-8", "backslashreplace").decode()
    start, end = LONGEST_REASON // 2 - 5, LONGEST_REASON // 2
    return text if len(text) <= LONGEST_REASON else f"{text[:start]} ... {text[-end:]}"


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and SHA256.fullmatch(value) is not None
