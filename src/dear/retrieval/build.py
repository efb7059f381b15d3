"""Build an index of a folder, or update it: only new and changed files are encoded.

Files are encoded in chunks. A chunk's vectors are written first, then its files in one transaction, so an
interrupted build resumes after its last chunk. Queries compare the new rows when the build has ended.
"""

import hashlib
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from dear.backbone.preprocess import Preprocess
from dear.data.images.decode import decode, read_image
from dear.data.images.photos import in_parallel
from dear.data.images.transforms import eval_view
from dear.errors import DataError, SettingsError
from dear.progress import Progress, silent
from dear.reading.files import expanded
from dear.reading.typed import shown
from dear.retrieval.catalogue import FIRST_VECTORS, Catalogue, Entry
from dear.retrieval.database import FILE, LOCK, only_writer
from dear.retrieval.encoder import Encoder
from dear.retrieval.facts import LAST_GENERATION
from dear.retrieval.results import Built, damaged
from dear.retrieval.scan import Shard, Stamp, compare, scan, shards_in, stamp_of
from dear.retrieval.vectors import FOLDER, OF_FAISS, Vectors, remove

CHUNK = 256  # files per commit
DEAD_SHARE = 0.2  # share of unused rows at which they are removed


def build_index(
    encoder: Encoder,
    folder: Path,
    out: Path,
    *,
    model: str = "",
    shard: Shard | None = None,
    threads: int = 1,
    batch: int = 64,
    progress: Progress = silent,
) -> Built:
    """Index the images of a folder; an existing index is updated.

    Args:
        model: Path of the model, for queries to find it again.
        shard: Make this shard alone, in a folder below ``out``: `dear.retrieval.query.Shards` searches all of
            them, `dear.retrieval.shards.merge_index` merges them.

    Raises:
        DataError: for a folder without readable images (a shard may have none), or an index that is damaged
            or of another folder, model or shard.
        OutputError: if the output folder cannot be written to.
    """
    if batch < 1 or threads < 1:
        raise SettingsError(f"batch is {batch} and threads {threads}: both must be at least 1.")
    if expanded(out).resolve() == expanded(folder).resolve():
        raise SettingsError(
            f"{out} is the folder of the images: name another folder for the index with --out."
        )
    stamps = scan(folder, leave_out=out)
    if not stamps and not Catalogue.exists(out):
        raise DataError(f"{folder} has no image files (by their names). Choose a folder with images.")
    if shard is not None:
        stamps, out = _of_shard(stamps, out, shard)
    elif shards_in(out) and not Catalogue.exists(out):
        raise DataError(
            f"{out} holds shards of an index: give --shard N/COUNT to build one again, or merge them with "
            "`dear index merge`."
        )
    is_new, makes_folder = not Catalogue.exists(out), not out.exists()
    with only_writer(out), closing(_open(encoder, folder, out, model, shard)) as catalogue:
        changes = compare(catalogue.stamps(), stamps)
        # The cause may have been a permission, a limit or a version.
        again = (catalogue.broken().keys() & stamps.keys()) - {*changes.changed}
        paths = sorted((*changes.added, *changes.changed, *again))
        encoded = _encode(encoder, catalogue, folder, paths, threads, batch, progress)
        with catalogue.change():  # after encoding, so that a moved file finds its row
            catalogue.remove(changes.removed)
        built = finish(catalogue)
    if not built.files and shard is None:
        if is_new:
            discard(out, makes_folder)
        why = f" The first: {next(iter(built.broken.values()))}" if built.broken else ""
        raise DataError(f"{folder} has no readable image.{why}")
    changed = len(changes.changed) + len(again - built.broken.keys())
    return replace(
        built,
        features=tuple(name for name in built.features if name not in encoder.unowned),
        added=len(changes.added),
        changed=changed,
        removed=len(changes.removed),
        unchanged=len(stamps) - len(changes.added) - changed,
        encoded=encoded,
        left_out=built.left_out or tuple(encoder.unowned),
    )


def finish(catalogue: Catalogue) -> Built:
    """Make all rows searchable; the files of the outcome all count as added.

    The rows of removed files are dropped once there are many: a new generation is written completely before
    it replaces the old one, so that queries always find one. Raises DataError for a new row that is no unit
    vector.
    """
    metadata = catalogue.metadata()
    vectors = Vectors.of(catalogue.folder, metadata)
    for feature in range(vectors.features):
        vectors.require_unit(feature, metadata.get("searchable_rows", 0), metadata["rows"])
    alive = catalogue.live(metadata["rows"])
    retained = np.flatnonzero(alive) if len(alive) and 1 - alive.mean() > DEAD_SHARE else None
    if retained is not None:
        generation = metadata["generation"] % LAST_GENERATION + 1
        metadata |= {"generation": generation, "rows": len(retained)}
        new = Vectors.of(catalogue.folder, metadata)
        remove(new.folder)  # what a build has left that was stopped
        vectors.copy(retained, len(alive), new)
    metadata["searchable_rows"] = metadata["rows"]
    with catalogue.change():
        if retained is not None:
            catalogue.renumber(retained.tolist())
        catalogue.set(**metadata)
        catalogue.end_merge()
    current = Vectors.of(catalogue.folder, metadata).folder
    for folder in catalogue.folder.glob("vectors-*"):
        if FOLDER.fullmatch(folder.name) and folder != current:
            remove(folder)
    remove(current, OF_FAISS)
    broken, count = catalogue.broken(), catalogue.count()
    return Built(
        index=catalogue.folder,
        features=tuple(metadata["features"]),
        added=count,
        changed=0,
        removed=0,
        unchanged=0,
        encoded=0,
        files=count - len(broken),
        rows=metadata["rows"],
        broken=broken,
        left_out=tuple(metadata["heads"]["left_out"]) if "heads" in metadata else (),
    )


def discard(out: Path, folder_too: bool) -> None:
    """Remove a catalogue that has just been made, and what vectors were written for it."""
    remove(out / FIRST_VECTORS)
    with suppress(OSError):
        (out / FILE).unlink()
        (out / LOCK).unlink()
        if folder_too:
            out.rmdir()


def require_same_model(metadata: dict[str, Any], encoder: Encoder, folder: Path) -> None:
    """Raise DataError if the index was built with another model."""
    if metadata["identity"] != encoder.identity:
        if heads := metadata.get("heads"):
            raise DataError(
                f"the index {folder} holds features of heads of {heads['model'][:200]} "
                f"[{heads['sha256'][:12]}], by the role table {heads['table'][:200]!r}, which are not "
                "comparable with the features here. Use that model and table with --features heads, "
                "or another index."
            )
        raise DataError(
            f"the index {folder} was built with another bundle ({metadata['identity'][:12]}, here "
            f"{encoder.identity[:12]}): features of two bundles are not comparable. Use its bundle"
            f"{', ' + metadata['model'][:200] if metadata['model'] else ''}, or build an index with this one "
            "elsewhere."
        )
    if (metadata["features"], metadata["embed"]) != ([*encoder.features], encoder.embed):
        raise damaged(
            folder,
            f"it has features {shown(metadata['features'])} of width {metadata['embed']}, unlike its bundle",
        )


def _of_shard(stamps: dict[str, Stamp], out: Path, shard: Shard) -> tuple[dict[str, Stamp], Path]:
    """A shard's files, which may be none, and its folder. Raises DataError if there is a whole index, or
    shards of another number or that are links.
    """
    if Catalogue.exists(out):
        raise DataError(f"{out} is a whole index, not a folder of shards: choose another folder with --out.")
    if others := [present for present in shards_in(out) if present.count != shard.count]:
        raise DataError(
            f"{out} holds shards of {others[0].count}, not of {shard.count}: choose another folder with "
            "--out."
        )
    return shard.of(stamps), shard.folder(out)


def _open(encoder: Encoder, folder: Path, out: Path, model: str, shard: Shard | None) -> Catalogue:
    if not Catalogue.exists(out):
        facts = {
            "identity": encoder.identity,
            "features": list(encoder.features),
            "embed": encoder.embed,
            "folder": str(folder.resolve()),
            "model": model,
            **encoder.facts,
        }
        if shard is not None:
            facts["shard"] = (shard.number, shard.count)
        return Catalogue.create(out, facts)
    catalogue = Catalogue.open(out)
    metadata = catalogue.metadata()
    require_same_model(metadata, encoder, out)
    built_shard = Shard(*metadata["shard"]) if "shard" in metadata else None
    if built_shard != shard:
        what = "a whole index" if built_shard is None else f"shard {built_shard} of an index"
        raise DataError(f"{out} is {what}: build it as such, or choose another folder with --out.")
    if metadata["folder"] != str(folder.resolve()):
        raise DataError(
            f"the index {out} is of the folder {metadata['folder']}, not of {folder.resolve()}: "
            "choose another folder with --out."
        )
    Vectors.of(catalogue.folder, metadata).check(metadata["rows"])
    catalogue.require_rows(metadata["rows"])
    catalogue.require_one_content_a_row()
    catalogue.rebuild_indexes()
    with catalogue.change():
        catalogue.end_merge()  # what this build adds is no merge's to remove
        if "searchable_rows" in metadata:  # an index that FAISS searched has no such fact
            catalogue.set(searchable_rows=metadata["searchable_rows"])
    return catalogue


def _encode(
    encoder: Encoder,
    catalogue: Catalogue,
    folder: Path,
    paths: Sequence[str],
    threads: int,
    batch: int,
    progress: Progress,
) -> int:
    """Put files into the catalogue; returns how many rows were encoded."""
    before = catalogue.metadata()["rows"]

    def read(path: str) -> tuple[Entry, UInt8[Tensor, "3 size size"] | None]:
        return _read(folder, path, encoder.preprocess)

    for start in range(0, len(paths), CHUNK):
        chunk = paths[start : start + CHUNK]
        metadata = catalogue.metadata()
        rows: dict[str, int] = {}  # by content hash, for contents new in this chunk
        entries, views = list[Entry](), list[Tensor]()
        for entry, view in in_parallel(read, chunk, threads):
            row = None if entry.sha256 is None else catalogue.row_of(entry.sha256)
            if row is None and view is not None and entry.sha256 is not None:
                if entry.sha256 not in rows:
                    rows[entry.sha256] = metadata["rows"] + len(views)
                    views.append(view)
                row = rows[entry.sha256]
            entries.append(entry._replace(row=row))
        vectors = Vectors.of(catalogue.folder, metadata)
        for at in range(0, len(views), batch):
            vectors.write(metadata["rows"] + at, encoder.images(torch.stack(views[at : at + batch])))
        with catalogue.change():
            catalogue.put(entries)
            catalogue.set(rows=metadata["rows"] + len(views))
        progress("encoding images", start + len(chunk), len(paths))
    return int(catalogue.metadata()["rows"]) - int(before)


def _read(
    folder: Path, path: str, preprocess: Preprocess
) -> tuple[Entry, UInt8[Tensor, "3 size size"] | None]:
    """A file's entry and, if readable, its test view. The stamp is taken before reading."""
    stamp = stamp_of(folder / path)
    try:
        if stamp is None:
            raise DataError(f"{folder / path} disappeared while the folder was read.")
        content = read_image(folder / path)
        view = eval_view(decode(folder / path, data=content), preprocess)
    except DataError as error:
        return Entry(path, stamp or Stamp(-1, -1), None, None, str(error)), None
    return Entry(path, stamp, hashlib.sha256(content).hexdigest(), None), view
