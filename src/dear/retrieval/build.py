"""Build an index of a folder, or update it: only new and changed files are encoded.

Files are encoded in chunks. A chunk's vectors are written first, then its files in one transaction, so an
interrupted build resumes after its last chunk.
"""

import hashlib
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import UInt8
from torch import Tensor

from dear.data.images.decode import SUFFIXES, decode, read_image
from dear.data.images.photos import in_parallel
from dear.data.images.transforms import eval_view
from dear.errors import DataError, SettingsError
from dear.progress import Progress, silent
from dear.reading.files import expanded, walk_folders
from dear.retrieval.index import list_shards, require_same_model
from dear.retrieval.results import Built
from dear.retrieval.storage import Entry, Stamp, Store

if TYPE_CHECKING:
    from dear.retrieval.encoder import Encoder

CHUNK = 256  # files per commit


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
        raise SettingsError(
            f"{out} is the folder of the images: name another folder for the index with --out."
        )
    number, count = (1, 1) if shard is None else parse_shard(shard)
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
    with Store.writing(out, facts) as store:
        require_same_model(store, encoder)
        if store.metadata["folder"] != facts["folder"]:
            raise DataError(
                f"the index {out} is of the folder {store.metadata['folder']}, not of {facts['folder']}: "
                "choose another folder with --out."
            )
        before, broken = store.stamps(), store.broken().keys() & stamps.keys()
        added, removed = stamps.keys() - before.keys(), before.keys() - stamps.keys()
        changed = {path for path in stamps.keys() & before.keys() if stamps[path] != before[path]}
        paths = sorted(added | changed | broken)  # broken ones again: the cause may be gone
        encoded = _encode(encoder, store, folder, paths, threads, batch, progress)
        with store.change():  # after encoding, so that a moved file finds its row
            store.remove(removed)
        store.finish()
        reasons = store.broken()
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


def scan(folder: Path, leave_out: Path | None = None) -> dict[str, Stamp]:
    """Image files below a folder by relative path, ignoring hidden files, links to folders and everything
    below ``leave_out``. Raises DataError.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give the folder that contains the images.")
    avoided = leave_out.resolve() if leave_out else None
    top, stamps = folder.resolve(), dict[str, Stamp]()
    for parent, folders, files in walk_folders(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and top / (parent / name).relative_to(folder) != avoided
        )
        for name in sorted(files):
            path = parent / name
            if name.startswith(".") or path.suffix.lower() not in SUFFIXES:
                continue
            if (stamp := _stamp_of(path)) is not None:
                stamps[path.relative_to(folder).as_posix()] = stamp
    return stamps


def _encode(
    encoder: "Encoder",
    store: Store,
    folder: Path,
    paths: Sequence[str],
    threads: int,
    batch: int,
    progress: Progress,
) -> int:
    """Put files into the store; returns how many rows were encoded."""
    before = store.rows

    def read(path: str) -> tuple[Entry, UInt8[Tensor, "3 size size"] | None]:
        """A file's entry and, if readable, its test view. The stamp is taken before reading."""
        stamp, file = _stamp_of(folder / path), folder / path
        try:
            if stamp is None:
                raise DataError(f"{file} disappeared while the folder was read.")
            content = read_image(file)
            view = eval_view(decode(file, data=content), encoder.preprocess)
        except DataError as error:
            reason = str(error).encode("utf-8", "backslashreplace").decode()  # a name need not be UTF-8
            return Entry(path, stamp or (-1, -1), reason=reason), None
        return Entry(path, stamp, hashlib.sha256(content).hexdigest()), view

    for start in range(0, len(paths), CHUNK):
        chunk = paths[start : start + CHUNK]
        rows: dict[str, int] = {}  # by content hash, for contents new in this chunk
        entries, views = list[Entry](), list[Tensor]()
        for entry, view in in_parallel(read, chunk, threads):
            row = store.row_of(entry.sha256)
            if row is None and view is not None and entry.sha256 is not None:
                if entry.sha256 not in rows:
                    rows[entry.sha256] = store.rows + len(views)
                    views.append(view)
                row = rows[entry.sha256]
            entries.append(entry._replace(row=row))
        for at in range(0, len(views), batch):
            store.write(store.rows + at, encoder.images(torch.stack(views[at : at + batch])))
        with store.change():
            store.put(entries)
            store.set(rows=store.rows + len(views))
        progress("encoding images", start + len(chunk), len(paths))
    return store.rows - before


def _stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file; None if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns % 2**63  # which any date fits in
