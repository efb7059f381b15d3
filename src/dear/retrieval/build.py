"""Build an index of a folder, or update it: only new and changed files are encoded.

Vectors are written before the files that have them are committed, 256 files at a time: what is committed is
always whole, and an interrupted build resumes after its last commit.
"""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from dear.data.images.decode import SUFFIXES, decode, read_image
from dear.data.images.photos import in_parallel
from dear.data.images.transforms import eval_view
from dear.errors import DataError, OutputError, SettingsError
from dear.progress import Progress, silent
from dear.reading.files import expanded, walk_folders
from dear.retrieval.index import list_shards, require_same_model
from dear.retrieval.results import Built
from dear.retrieval.storage import FILE, TABLES, Store, are_units

if TYPE_CHECKING:
    from dear.retrieval.encoder import Encoder

CHUNK = 256  # files per commit
DEAD_SHARE = 0.2  # share of rows without a file at which they are removed
GONE = (-1, -1)
LOCK = "lock.sqlite"


class Entry(NamedTuple):
    """A file: size in bytes, time in nanoseconds, and its row or the reason why it has none."""

    path: str
    size: int
    mtime: int
    sha256: str | None = None
    row: int | None = None
    reason: str | None = None


def build_index(
    encoder: "Encoder",
    folder: Path,
    out: Path,
    *,
    model: str = "",
    shard: str | None = None,
    threads: int = 1,
    batch: int = 64,
    progress: Progress = silent,
) -> Built:
    """Index the images of a folder; an existing index is updated.

    Args:
        model: Path of the model, for queries to find it again.
        shard: Make one shard alone, such as "3/8", in a folder below ``out``: `dear.open_index` searches all
            of them together. A file belongs to one shard, by the CRC-32 of its path.

    Raises:
        DataError: for a folder without readable images (a shard may have none), or an index that is damaged
            or of another folder, model or number of shards.
        OutputError: if the output folder cannot be written to.
    """
    if batch < 1 or threads < 1:
        raise SettingsError(f"batch is {batch} and threads {threads}: both must be at least 1.")
    if expanded(out).resolve() == expanded(folder).resolve():
        raise SettingsError(f"{out} is the folder of the images: name another one for the index with --out.")
    number, count = parse_shard(shard or "1/1")
    counts = {int(path.name.rpartition("-")[2]) for path in list_shards(out)}
    counts |= {1} if Store.exists(out) else set()
    if counts - {count}:
        raise DataError(
            f"{out} holds an index in {max(counts)} shards, not {count}: choose another folder with --out."
        )
    stamps = scan(folder, leave_out=out)
    if not stamps and not counts:
        raise DataError(f"{folder} has no image files (by their names). Choose a folder with images.")
    if shard is not None:
        out = out / f"shard-{number}-of-{count}"
        numbers = {path: zlib.crc32(os.fsencode(path)) % count + 1 for path in stamps}
        stamps = {path: stamp for path, stamp in stamps.items() if numbers[path] == number}
    facts = {
        "identity": encoder.identity,
        "features": list(encoder.features),
        "embed": encoder.embed,
        "folder": str(folder.resolve()),
        "model": model,
        **encoder.facts,
    }
    with open_to_write(out, facts) as store:
        require_same_model(store, encoder)
        if store.metadata["folder"] != facts["folder"]:
            raise DataError(
                f"the index {out} is of the folder {store.metadata['folder']}, not of {facts['folder']}: "
                "choose another folder with --out."
            )
        before, old_rows = list_files(store), store.rows
        added, removed = stamps.keys() - before.keys(), before.keys() - stamps.keys()
        changed = {path for path in stamps.keys() - added if stamps[path] != before[path][1:3]}
        broken = {path for path in stamps.keys() - added if before[path].reason is not None}
        paths = sorted(added | changed | broken)  # broken ones again: the cause may be gone
        for start in range(0, len(paths), CHUNK):
            chunk = paths[start : start + CHUNK]
            _encode(encoder, store, folder, chunk, threads, batch)
            progress("encoding images", start + len(chunk), len(paths))
        encoded = store.rows - old_rows
        finish(store, removed)  # after encoding, so that a moved file finds its row
        reasons = {path: reason for path, (*_, reason) in list_files(store).items() if reason is not None}
        if len(stamps) == len(reasons) and shard is None:
            why = f" The first: {next(iter(reasons.values()))}" if reasons else ""
            raise DataError(f"{folder} has no readable image.{why}")
        changed |= broken - reasons.keys()
        return Built(
            index=out,
            features=tuple(name for name in encoder.features if name not in encoder.unowned),
            added=len(added),
            changed=len(changed),
            removed=len(removed),
            unchanged=len(stamps) - len(added) - len(changed),
            encoded=encoded,
            files=len(stamps) - len(reasons),
            rows=store.rows,
            broken=reasons,
            left_out=(*store.metadata.get("heads", {}).get("left_out", ()), *encoder.unowned),
        )


def parse_shard(text: str) -> tuple[int, int]:
    """The number of a shard, from 1, and how many there are, from "3/8". Raises SettingsError."""
    if (match := re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)) and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise SettingsError(f"shard {text!r}: give its number, from 1, and how many there are, such as 3/8.")


def scan(folder: Path, leave_out: Path | None = None) -> dict[str, tuple[int, int]]:
    """Size and time of the image files below a folder, by relative path, ignoring hidden files, links to
    folders and everything below ``leave_out``. Raises DataError.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give the folder that contains the images.")
    paths, avoided = list[Path](), leave_out.resolve() if leave_out else None
    for parent, folders, files in walk_folders(folder):
        visible = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in visible if (parent / name).resolve() != avoided]
        paths += [parent / name for name in files if not name.startswith(".")]
    stamps = {path: _stamp(path) for path in sorted(paths) if path.suffix.lower() in SUFFIXES}
    return {path.relative_to(folder).as_posix(): stamp for path, stamp in stamps.items() if stamp != GONE}


def _stamp(path: Path) -> tuple[int, int]:
    """Shows without reading whether a file changed."""
    try:
        status = path.stat()
    except OSError:
        return GONE
    return status.st_size, status.st_mtime_ns % 2**63  # which any date fits in


def _encode(
    encoder: "Encoder", store: Store, folder: Path, paths: Sequence[str], threads: int, batch: int
) -> None:
    """Put files into the store; those with a content that it has share its row."""

    def read(path: str) -> tuple[Entry, UInt8[Tensor, "3 size size"] | None]:
        """A file without its row and, if readable, its test view. The stamp is taken before reading."""
        stamp = _stamp(folder / path)
        try:
            content = read_image(folder / path)
            view = eval_view(decode(folder / path, data=content), encoder.preprocess)
        except DataError as error:
            reason = str(error).encode("utf-8", "backslashreplace").decode()  # a name need not be UTF-8
            return Entry(path, *stamp, reason=reason), None
        return Entry(path, *stamp, hashlib.sha256(content).hexdigest()), view

    files, rows, views = in_parallel(read, paths, threads), dict[str | None, int](), list[Tensor]()
    with store.transaction() as database:
        known = "SELECT sha256, row FROM files WHERE sha256 = ? LIMIT 1"
        for entry, _ in files:
            rows |= database.execute(known, (entry.sha256,)).fetchall()
    for entry, view in files:
        if view is not None and entry.sha256 not in rows:
            rows[entry.sha256] = store.rows + len(views)
            views.append(view)
    parts = [encoder.images(torch.stack(views[at : at + batch])) for at in range(0, len(views), batch)]
    entries = [entry._replace(row=rows.get(entry.sha256)) for entry, _ in files]
    append(store, entries, torch.cat(parts) if parts else None)


@contextmanager
def open_to_write(folder: Path, facts: Mapping[str, Any]) -> Iterator[Store]:
    """Context of a build, one at a time: the store in a folder, made with these facts if there is none.
    Raises DataError, OutputError.
    """
    facts = {"rows": 0, "generation": 1, "completed": False, **facts}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)) as lock:
            lock.execute("BEGIN EXCLUSIVE")  # until the process ends, however it does
            if not Store.exists(folder) or (folder / FILE).stat().st_size == 0:
                with closing(sqlite3.connect(folder / FILE)) as database, database:
                    database.executescript(TABLES)
                    database.execute("INSERT INTO metadata VALUES ('new', ?)", (json.dumps(facts),))
            yield Store(folder)
    except (OSError, sqlite3.Error) as error:
        why = "another process is writing it, wait for it to finish" if "locked" in str(error) else error
        raise OutputError(f"cannot write the index {folder}: {why}.") from error


def list_files(store: Store) -> dict[str, Entry]:
    """All files of a store, unreadable ones too."""
    with store.transaction() as database:
        rows = database.execute("SELECT path, size, mtime, sha256, row, reason FROM files ORDER BY path")
        return {(path := os.fsdecode(name)): Entry(path, *facts) for name, *facts in rows}


def append(store: Store, files: Iterable[Entry], vectors: Float[Tensor, "row feature embed"] | None) -> None:
    """Append vectors of every feature, then commit the files that have them or older rows. Raises DataError
    unless they are unit vectors.
    """
    with store.transaction(writes=True) as database:
        if vectors is not None:
            if not are_units(torch.linalg.vector_norm(vectors, dim=-1)):
                raise DataError("the model's features of an image are not finite, or not of length 1.")
            values = vectors.cpu().numpy().astype("<f2")
            for number, feature in enumerate(store.metadata["features"]):
                store.path(feature).parent.mkdir(exist_ok=True)
                with store.path(feature).open("ab") as file:
                    file.truncate(store.rows * values[0, 0].nbytes)  # what an interrupted build left
                    file.write(values[:, number].tobytes())
            store.metadata["rows"] += len(vectors)
        rows = ((os.fsencode(path), *others) for path, *others in files)
        database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)


def finish(store: Store, removed: Iterable[str] = ()) -> None:
    """Remove files and mark the build as completed. Rows without a file are dropped once there are many: the
    others are copied to a new generation, and the old one goes after the commit, so that queries always find
    one.
    """
    with store.transaction(writes=True) as database:
        names = ((os.fsencode(path),) for path in removed)
        database.executemany("DELETE FROM files WHERE path = ?", names)
        rows = store.used_rows(database)
        store.metadata["completed"] = True
        if len(rows) < (1 - DEAD_SHARE) * store.rows:
            store.metadata |= {"rows": len(rows), "generation": store.metadata["generation"] + 1}
            for feature, values in store.vectors.items():
                store.path(feature).parent.mkdir(exist_ok=True)
                with store.path(feature).open("wb") as file:
                    for part in np.array_split(rows, len(rows) // 4096 + 1):
                        file.write(values[part].tobytes())
            # Upwards, so that no number is taken before its files have moved on.
            database.executemany("UPDATE files SET row = ? WHERE row = ?", enumerate(rows.tolist()))
    shutil.rmtree(store.folder / f"vectors-{store.metadata['generation'] - 1}", ignore_errors=True)
