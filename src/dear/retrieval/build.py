"""Build an index of a folder, or update it: only new and changed files are encoded.

Vectors are written before the files that have them are committed, 256 files at a time, or fewer after Ctrl-C:
a build that was interrupted or killed resumes after its last commit, which is whole. Vectors are not forced
onto the disk, so a failure of the machine may lose some of what was committed.
"""

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from dear.backbone.preprocess import Preprocess
from dear.data.images.decode import decode, read_image
from dear.data.images.photos import in_parallel
from dear.data.images.transforms import ahead, eval_view
from dear.data.sources.folder import image_files
from dear.errors import DataError, OutputError
from dear.progress import Progress, silent
from dear.reading.files import is_folder
from dear.reading.typed import PositiveInt, check_value
from dear.retrieval.index import FILE, VERSION, Index, are_units
from dear.retrieval.results import Built

if TYPE_CHECKING:
    from dear.retrieval.encoder import Encoder

CHUNK = 256  # files per commit
DEAD_SHARE = 0.2  # share of rows without a file at which they are removed
SAME = 1e-5  # images nearer to the mean, as a share of its length, count as equal
TABLES = """
    BEGIN;
    CREATE TABLE metadata (state TEXT, facts TEXT);
    CREATE TABLE files (
        path BLOB PRIMARY KEY, size INTEGER, mtime INTEGER, sha256 TEXT, row INTEGER, reason TEXT
    );
    CREATE INDEX by_content ON files (sha256, path);
    CREATE INDEX by_row ON files (row);
"""
Stamps = dict[str, tuple[int, int]]
"""Size in bytes and time in nanoseconds of each file: they show without reading whether it changed."""
Files = Sequence[tuple["Entry", Tensor | None]]
"""Files without their rows and, of readable ones, their test views or their features."""
Load = Callable[[Stamps, Iterable[Sequence[str]]], Generator[Files]]


class Entry(NamedTuple):
    """A file: its stamp, and its row or the reason why it has none."""

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
    threads: int = 1,
    batch: int = 64,
    load: Load | None = None,
    progress: Progress = silent,
) -> Built:
    """Index the images of a folder; an existing index is updated.

    Args:
        model: Path of the model, for queries to find it again.
        load: Where files are read and encoded, if not here: gives the files of each chunk of paths, with the
            features of readable ones.

    Raises:
        DataError: for a folder without readable images, or an index that is damaged or of another folder or
            model.
        OutputError: if the output folder cannot be written to.
    """
    check_value("batch", batch, PositiveInt)
    check_value("threads", threads, PositiveInt)
    stamps = scan(folder)
    paths = sorted(stamps)
    sample = [paths[at * len(paths) // CHUNK] for at in range(CHUNK)] if len(paths) > CHUNK else paths
    facts = dict[str, Any](identity=encoder.identity, features=[*encoder.features], embed=encoder.embed)
    facts |= {"folder": str(folder.resolve()), "model": model, **encoder.facts}
    with open_to_write(out, facts) as index:
        index.check(encoder)
        if index.metadata["folder"] != facts["folder"]:
            known = f"the index {out} is of the folder {index.folder}"
            raise DataError(f"{known}, not of {facts['folder']}: choose another folder with --out.")
        before, old_rows = list_files(index), index.rows
        added, removed = stamps.keys() - before.keys(), before.keys() - stamps.keys()
        changed = {path for path in stamps.keys() - added if stamps[path] != before[path][1:3]}
        broken = {path for path in stamps.keys() - added if before[path].reason is not None}
        first = sample if index.metadata["means"] is None else []
        # Broken ones again: the cause may be gone.
        paths = [*first, *sorted((added | changed | broken).difference(first))]
        chunks, start = (paths[at : at + CHUNK] for at in range(0, len(paths), CHUNK)), 0
        read = partial(read_entry, folder, stamps, encoder.preprocess)
        read_here = partial(ahead, lambda chunk: in_parallel(read, chunk, threads), chunks, depth=1)
        with closing(read_here() if load is None else load(stamps, chunks)) as loaded:
            for files in loaded:
                for done in _encode(encoder.images if load is None else Tensor.clone, index, files, batch):
                    progress("encoding images", start + done, len(paths))
                start += len(files)
        encoded = index.rows - old_rows
        finish(index, removed)  # after encoding, so that a moved file finds its row
        after = list_files(index)
        reasons = {path: entry.reason for path, entry in after.items() if entry.reason is not None}
        if len(stamps) == len(reasons):
            why = f" The first: {next(iter(reasons.values()))}" if reasons else ""
            raise DataError(f"{folder} has no readable image.{why}")
        changed |= broken - reasons.keys()
        return Built(
            index=out,
            features=tuple(encoder.features),
            added=len(added),
            changed=len(changed),
            removed=len(removed),
            unchanged=len(stamps) - len(added) - len(changed),
            encoded=encoded,
            files=len(stamps) - len(reasons),
            rows=index.rows,
            broken=reasons,
            left_out=tuple(encoder.left_out),
        )


def scan(folder: Path) -> Stamps:
    """The image files below a folder, by relative path. Raises DataError for a folder without one."""
    if not is_folder(folder):
        raise DataError(f"{folder} is not a folder: give the folder that contains the images.")
    stamps = Stamps()
    for path in image_files(folder):
        with suppress(OSError):  # it is gone, or a link to nothing
            status = path.stat()
            # Any date fits in 63 bits.
            stamps[path.relative_to(folder).as_posix()] = status.st_size, status.st_mtime_ns % 2**63
    return stamps


def read_entry(
    folder: Path, stamps: Stamps, preprocess: Preprocess, path: str
) -> tuple[Entry, UInt8[Tensor, "3 size size"] | None]:
    """A file without its row and, if readable, its test view."""
    stamp = stamps[path]
    try:
        content = read_image(folder / path)
        view = eval_view(decode(folder / path, data=content), preprocess)
    except DataError as error:
        reason = str(error).encode("utf-8", "backslashreplace").decode()  # a name need not be UTF-8
        return Entry(path, *stamp, reason=reason), None
    return Entry(path, *stamp, hashlib.sha256(content).hexdigest()), view


def _encode(encode: Callable[[Tensor], Tensor], index: Index, files: Files, batch: int) -> Iterator[int]:
    """Put files into the index; those with a content that it has share its row. Yields how many are done."""
    rows, views = dict[str | None, int](), list[Tensor]()
    with index.transaction() as (database, _):
        known = "SELECT sha256, row FROM files WHERE sha256 = ? LIMIT 1"
        for entry, _ in files:
            rows |= database.execute(known, (entry.sha256,)).fetchall()
    for entry, view in files:
        if view is not None and entry.sha256 not in rows:
            rows[entry.sha256] = index.rows + len(views)
            views.append(view)
    parts, entries = list[Tensor](), [entry._replace(row=rows.get(entry.sha256)) for entry, _ in files]
    try:
        for start in range(0, len(views), batch):
            yield start * len(files) // len(views)
            parts.append(encode(torch.stack(views[start : start + batch])))
    except BaseException as error:
        # The first chunk fixes the means, if features are to be centered: all of it is needed for that.
        if parts and not isinstance(error, Exception) and index.metadata["means"] is not None:
            done = index.rows + sum(map(len, parts))
            entries = [entry for entry in entries if entry.row is not None and entry.row < done]
            append(index, entries, torch.cat(parts))
        raise
    append(index, entries, torch.cat(parts) if parts else None)
    yield len(files)


@contextmanager
def open_to_write(folder: Path, facts: Mapping[str, Any]) -> Iterator[Index]:
    """Context of a build, one at a time: the index in a folder, made with these facts if there is none.
    Raises DataError, OutputError.
    """
    facts = {"version": VERSION, "rows": 0, "generation": 1, "completed": False, "means": (), **facts}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(folder / "lock.sqlite", timeout=0, isolation_level=None)) as lock:
            lock.execute("BEGIN EXCLUSIVE")  # until the process ends, however it does
            if not (folder / FILE).exists() or (folder / FILE).stat().st_size == 0:
                with closing(sqlite3.connect(folder / FILE)) as database, database:
                    database.executescript(TABLES)
                    database.execute("INSERT INTO metadata VALUES ('new', ?)", (json.dumps(facts),))
            yield Index(folder)
    except (OSError, sqlite3.Error) as error:
        why = "another process is writing it, wait for it to finish" if "locked" in str(error) else error
        raise OutputError(f"cannot write the index {folder}: {why}.") from error


def list_files(index: Index) -> dict[str, Entry]:
    """All files of an index, unreadable ones too."""
    with index.transaction() as (database, _):
        rows = database.execute("SELECT path, size, mtime, sha256, row, reason FROM files ORDER BY path")
        return {(path := os.fsdecode(name)): Entry(path, *facts) for name, *facts in rows}


def append(index: Index, files: Iterable[Entry], features: Float[Tensor, "row feature embed"] | None) -> None:
    """Append vectors of every feature, then commit the files that have them or older rows. If features are to
    be centered, the first ones fix the means. Raises DataError for features that cannot be unit vectors.
    """
    with index.transaction(writes=True) as (database, snapshot):
        if features is not None:
            if snapshot.metadata["means"] is None:
                snapshot.metadata["means"] = compute_means(features).tolist()
            vectors = snapshot.center(features)
            if not are_units(torch.linalg.vector_norm(vectors, dim=-1)):
                raise DataError("the model's features of an image are not finite, or not of length 1.")
            values = vectors.cpu().numpy().astype("<f2")
            for number, feature in enumerate(snapshot.metadata["features"]):
                snapshot.path(feature).parent.mkdir(exist_ok=True)
                with snapshot.path(feature).open("ab") as file:
                    file.truncate(snapshot.rows * values[0, 0].nbytes)  # what an interrupted build left
                    file.write(values[:, number].tobytes())
            snapshot.metadata["rows"] += len(vectors)
        rows = ((os.fsencode(path), *others) for path, *others in files)
        database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)


def compute_means(features: Float[Tensor, "row feature embed"]) -> Float[Tensor, "feature embed"]:
    """What features are centered by: their means over images, zero for the class. Raises DataError if the
    images do not differ in a feature.
    """
    means = features.double().mean(dim=0)
    spread = (features[:, 1:] - means[1:]).norm(dim=-1).amax(dim=0)
    if not (spread > SAME * means[1:].norm(dim=-1)).all():
        raise DataError(
            "the images do not differ in what the heads of an attribute write: give a folder with at least "
            "two different images."
        )
    means[0] = 0
    return means.float()


def finish(index: Index, removed: Iterable[str] = ()) -> None:
    """Remove files and mark the build as completed. Rows without a file are dropped once there are many: the
    others are copied to a new generation, and the old one goes after the commit, so that queries always find
    one.
    """
    with index.transaction(writes=True) as (database, snapshot):
        names = ((os.fsencode(path),) for path in removed)
        database.executemany("DELETE FROM files WHERE path = ?", names)
        rows, metadata = snapshot.used_rows(database), snapshot.metadata
        metadata["completed"] = True
        if len(rows) < (1 - DEAD_SHARE) * snapshot.rows:
            metadata.update(rows=len(rows), generation=metadata["generation"] + 1)
            for feature, values in snapshot.vectors.items():
                snapshot.path(feature).parent.mkdir(exist_ok=True)
                with snapshot.path(feature).open("wb") as file:
                    for part in np.array_split(rows, len(rows) // 4096 + 1):
                        file.write(values[part].tobytes())
            # Upwards, so that no number is taken before its files have moved on.
            database.executemany("UPDATE files SET row = ? WHERE row = ?", enumerate(rows.tolist()))
    shutil.rmtree(index.path / f"vectors-{metadata['generation'] - 1}", ignore_errors=True)
