"""An index in shards: parts of a folder's files, indexed apart, on one machine or on several, then searched
together or merged into one index. Hits are scored from the stored vectors, so both give the same scores.
"""

import heapq
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.errors import DataError, OutputError
from dear.limits import at_most
from dear.progress import Progress, silent
from dear.retrieval import approximate
from dear.retrieval.build import discard, finish, stored
from dear.retrieval.catalogue import Catalogue, Entry, only_writer
from dear.retrieval.encoder import Encoder
from dear.retrieval.query import Index
from dear.retrieval.results import Built, Hit, Kind, Storage
from dear.retrieval.scan import Shard, shards_in
from dear.retrieval.shard_check import require_alike, require_same, require_sound
from dear.retrieval.vectors import Vectors

CHUNK = 16_384  # rows copied at a time
OF_A_BUILD = {"rows", "generation", "trained", "kind", "storage", "schema", "shard"}
"""Facts of a catalogue that are not those of the encoder and the folder."""


class Shards:
    """All shards of an index, opened for queries as an `Index` is: each is searched, and the best hits of all
    are the answer. Contents that several shards have are one hit.
    """

    def __init__(self, shards: Sequence[Index]) -> None:
        self.shards = shards
        first = shards[0]
        self.metadata, self.features, self.left_out = first.metadata, first.features, first.left_out

    @classmethod
    def open(cls, place: Path) -> "Shards":
        """Open the shards in a folder. Raises DataError for shards that are missing, damaged or of different
        models or folders; SettingsError without FAISS.
        """
        shards = {shard: Index.open(path) for shard, path in _all_of(place).items()}
        require_alike({shard: (one.catalogue.folder, one.metadata) for shard, one in shards.items()})
        return cls([*shards.values()])

    @property
    def folder(self) -> Path:
        """The folder of the images."""
        return self.shards[0].folder

    @property
    def rows(self) -> int:
        """The rows of all shards."""
        return sum(one.rows for one in self.shards)

    @property
    def offered(self) -> tuple[str, ...]:
        """The features to search by."""
        return self.shards[0].offered

    def check(self, encoder: Encoder) -> None:
        """As `Index.check`."""
        for one in self.shards:
            one.check(encoder)

    def shares(self, given: Mapping[str, float]) -> dict[str, float]:
        """As `Index.shares`."""
        return self.shards[0].shares(given)

    def query(
        self,
        vectors: Mapping[str, Float[Tensor, "embed"]],
        weights: Mapping[str, float] | None = None,
        *,
        count: int = 10,
        effort: float = 1.0,
        without: str | None = None,
    ) -> list[Hit]:
        """As `Index.query`."""
        found = dict[str, Hit]()  # by content
        for one in self.shards:
            for hit in one.query(vectors, weights, count=count, effort=effort, without=without):
                same = found.get(hit.sha256)
                paths = (path for each in (hit, same) if each for path in (each.path, *each.copies))
                first, *copies = sorted(paths, key=os.fsencode)
                found[hit.sha256] = replace(same or hit, path=first, copies=tuple(copies))
        return sorted(found.values(), key=lambda hit: (-hit.score, hit.path))[:count]


Searchable = Index | Shards


def open_index(place: Path) -> Searchable:
    """Open an index, or all shards of one, for queries. Raises as `Index.open` and `Shards.open`."""
    return Shards.open(place) if shards_in(place) and not Catalogue.exists(place) else Index.open(place)


def merge_index(
    place: Path,
    out: Path,
    *,
    kind: Kind | None = None,
    storage: Storage = "float16",
    progress: Progress = silent,
) -> Built:
    """Merge all shards of an index into one, without encoding anything: the index that one build of the whole
    folder makes, which `build_index` can update. The shards stay. An interrupted merge starts again.

    Raises:
        DataError: for shards that are missing, unfinished, damaged or of different models or folders.
        OutputError: if there is an index at ``out`` already, or it cannot be written.
        SettingsError: if FAISS is not installed.
    """
    approximate.require_faiss()
    is_new, makes_folder = not Catalogue.exists(out), not out.exists()
    try:
        return _merge(place, out, kind, storage, progress)
    except DataError:
        if is_new:
            discard(out, makes_folder)
        raise


def _merge(place: Path, out: Path, kind: Kind | None, storage: Storage, progress: Progress) -> Built:
    with ExitStack() as stack:
        shards = {
            shard: _finished(stack.enter_context(closing(Catalogue.open(path))))
            for shard, path in _all_of(place).items()
        }
        for catalogue in shards.values():
            stack.enter_context(catalogue.reading())
        metadata = {shard: (catalogue.folder, catalogue.metadata()) for shard, catalogue in shards.items()}
        require_alike(metadata)
        at_most("index_rows", sum(facts["rows"] for _, facts in metadata.values()), f"the index {out}")
        for done, (shard, catalogue) in enumerate(shards.items(), start=1):
            require_sound(shard, catalogue)
            progress("checking shards", done, len(shards))
        stack.enter_context(only_writer(out))
        (_, first), *_ = metadata.values()
        facts = {name: fact for name, fact in first.items() if name not in OF_A_BUILD}
        exists = Catalogue.exists(out)
        merged = stack.enter_context(closing(Catalogue.open(out) if exists else Catalogue.create(out, facts)))
        if exists and "trained" in merged.metadata():
            raise OutputError(f"{out} is an index already: choose another place with --out.")
        with merged.change():
            merged.remove([*merged.stamps()])  # of an interrupted merge
            merged.set(**facts, rows=_copy([*shards.values()], merged, progress))
        return finish(merged, kind, storage, progress)


def _all_of(place: Path) -> dict[Shard, Path]:
    """The folders of all shards, in their order. Raises DataError if there are none, or one is missing."""
    found = shards_in(place)
    if not found:
        raise DataError(f"{place} holds no shards of an index: `dear index build --shard 1/4` makes one.")
    if len(counts := {shard.count for shard in found}) > 1:
        raise DataError(
            f"{place} holds shards of {' and of '.join(map(str, sorted(counts)))}: remove those of one kind."
        )
    (count,) = counts
    missing = [str(Shard(n, count)) for n in range(1, count + 1) if Shard(n, count) not in found]
    if missing:
        raise DataError(
            f"{place} lacks {len(missing)} of its {count} shards ({', '.join(missing[:5])}): build each with "
            f"--shard {missing[0]}."
        )
    return {shard: found[shard] for shard in sorted(found)}


def _finished(shard: Catalogue) -> Catalogue:
    if "trained" not in shard.metadata():
        raise DataError(f"the shard {shard.folder} is incomplete: run its `dear index build` again.")
    return shard


def _copy(shards: Sequence[Catalogue], merged: Catalogue, progress: Progress) -> int:
    """Copy the shards' files, in the order of their paths, and the rows that they need; returns how many."""
    shard_of, row_of = array("l"), array("l")
    place, sources = _vectors(merged), [_vectors(one) for one in shards]
    in_order = heapq.merge(
        *map(_numbered, range(len(shards)), shards), key=lambda numbered: os.fsencode(numbered[1].path)
    )
    for at, entry in in_order:
        row = None if entry.sha256 is None else merged.row_of(entry.sha256)
        if row is None and entry.row is not None:
            row = len(row_of)
            shard_of.append(at)
            row_of.append(entry.row)
        elif row is not None and entry.row is not None and shard_of[row] != at:
            require_same(sources[shard_of[row]], row_of[row], sources[at], entry.row, entry.path)
        merged.put([entry._replace(row=row)])
    origins = np.asarray(shard_of), np.asarray(row_of)
    for start in range(0, len(row_of), CHUNK):
        place.write(start, _gathered(sources, *(part[start : start + CHUNK] for part in origins)))
        progress("merging vectors", min(start + CHUNK, len(row_of)), len(row_of))
    return len(row_of)


def _numbered(at: int, shard: Catalogue) -> Iterator[tuple[int, Entry]]:
    return ((at, entry) for entry in shard.entries(shard.metadata()["rows"]))


def _vectors(catalogue: Catalogue) -> Vectors:
    return stored(catalogue, catalogue.metadata())


def _gathered(
    sources: Sequence[Vectors], shard_of: Int[np.ndarray, "row"], row_of: Int[np.ndarray, "row"]
) -> Float[Tensor, "row feature embed"]:
    """The vectors of some rows, each of a shard."""
    features, embed = sources[0].features, sources[0].embed
    found = np.empty((len(row_of), features, embed), dtype=np.float16)
    for at, source in enumerate(sources):
        (mine,) = np.nonzero(shard_of == at)
        if len(mine):
            rows = row_of[mine]
            for feature in range(features):
                found[mine, feature] = source.read(feature, int(rows.max()) + 1)[rows]
    return torch.from_numpy(found)
