"""An index in shards: parts of a folder's files, indexed apart, on one machine or on several. Here they are
checked and merged into one index; `dear.retrieval.query.Shards` searches them together.

Shards may come from other machines: a merge or a query takes from them only what a build writes.
"""

import heapq
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.errors import DataError, OutputError
from dear.limits import at_most
from dear.progress import Progress, silent
from dear.retrieval.build import discard, finish
from dear.retrieval.catalogue import Catalogue, Entry
from dear.retrieval.database import only_writer
from dear.retrieval.encoder import CLASS, identity_of
from dear.retrieval.results import Built, damaged
from dear.retrieval.scan import Shard, shards_in
from dear.retrieval.vectors import TOLERANCE, Vectors

CHUNK = 16_384  # rows copied at a time
OF_A_BUILD = {"rows", "generation", "searchable_rows", "schema", "shard"}
"""Facts of a catalogue that are not those of the encoder and the folder."""
ENCODER = (("identity", "model"), ("folder", "folder"), ("features", "features"), ("embed", "width"))
HEADS = ("model", "sha256", "heads", "left_out", "convention", "short_side", "mean")


def all_shards(folder: Path) -> dict[Shard, Path]:
    """The folders of all shards, in their order. Raises DataError if there are none, one is missing or too
    many, or one is a link: whoever made the folder would choose what is read elsewhere.
    """
    folders = shards_in(folder)
    if not folders:
        raise DataError(f"{folder} holds no shards of an index: `dear index build --shard 1/4` makes one.")
    if len(counts := {shard.count for shard in folders}) > 1:
        raise DataError(
            f"{folder} holds shards of {' and of '.join(map(str, sorted(counts)))}: remove those of one kind."
        )
    (count,) = counts
    missing = [str(Shard(n, count)) for n in range(1, count + 1) if Shard(n, count) not in folders]
    if missing:
        raise DataError(
            f"{folder} lacks {len(missing)} of its {count} shards ({', '.join(missing[:5])}): build each "
            f"with --shard {missing[0]}."
        )
    if len(folders) > count:
        raise DataError(f"{folder} holds shard {max(folders)}, which there cannot be: remove it.")
    if links := [path for path in folders.values() if path.is_symlink()]:
        raise DataError(f"{links[0]} is a link, which is not followed: copy the shard there.")
    return {shard: folders[shard] for shard in sorted(folders)}


def merge_index(shards: Path, out: Path, *, progress: Progress = silent) -> Built:
    """Merge all shards of an index into one, without encoding anything: the index that one build of the whole
    folder makes, which `build_index` can update. The shards stay. An interrupted merge starts again.

    Raises:
        DataError: for shards that are missing, unfinished, damaged or of different models or folders.
        OutputError: if there is an index at ``out`` already, or it cannot be written.
    """
    is_new, makes_folder = not Catalogue.exists(out), not out.exists()
    try:
        return _merge(shards, out, progress)
    except DataError:
        if is_new:
            discard(out, makes_folder)
        raise


def require_alike(shards: Mapping[Shard, tuple[Path, Mapping[str, Any]]]) -> None:
    """Raise DataError unless these facts, with the folders that hold them, are those of the shards of one
    index.
    """
    (first_folder, first), *_ = shards.values()
    for shard, (folder, facts) in shards.items():
        if (*facts.get("shard", ()),) != (shard.number, shard.count):
            raise damaged(folder, f"it is not shard {shard} of an index")
        for name, what in ENCODER:
            if facts[name] != first[name]:
                raise DataError(
                    f"{first_folder} and {folder} were built with another {what} each "
                    f"({str(first[name])[:200]}; {str(facts[name])[:200]}): build one of them again."
                )
        if _of_heads(facts) != _of_heads(first):
            raise DataError(
                f"{first_folder} and {folder} were built with other heads each: build one of them again."
            )
        if (heads := facts.get("heads")) is None:
            continue
        if [len(row) for row in heads["mean"]] != [facts["embed"]] * len(heads["heads"]):
            raise damaged(folder, "its means are of another shape than its features")
        if facts["features"] != [CLASS, *heads["heads"]] or facts["identity"] != identity_of(heads):
            raise damaged(folder, "its features are not those of its heads")


def _of_heads(facts: Mapping[str, Any]) -> list[Any] | None:
    """What shards must agree in of the features of heads; weights and tables may lie elsewhere on each."""
    return [facts["heads"][name] for name in HEADS] if "heads" in facts else None


def _require_sound(shard: Shard, catalogue: Catalogue) -> None:
    """Raise DataError for files, rows or vectors of a shard that no build of it has written. No image is
    read: the shard may name any folder.
    """
    facts = catalogue.metadata()
    vectors = Vectors.of(catalogue.folder, facts)
    for feature in range(vectors.features):
        vectors.require_unit(feature, 0, facts["rows"])
    for entry in catalogue.entries(facts["rows"]):
        if not shard.has(entry.path):
            raise damaged(catalogue.folder, f"{entry.path[:100]!r} does not belong to shard {shard}")
    catalogue.require_one_content_a_row()


def _merge(folder: Path, out: Path, progress: Progress) -> Built:
    with ExitStack() as stack:
        shards = {
            shard: _finished(stack.enter_context(closing(Catalogue.open(path))))
            for shard, path in all_shards(folder).items()
        }
        for catalogue in shards.values():
            stack.enter_context(catalogue.reading())
        metadata = {shard: (catalogue.folder, catalogue.metadata()) for shard, catalogue in shards.items()}
        require_alike(metadata)
        at_most("index_rows", sum(facts["rows"] for _, facts in metadata.values()), f"the index {out}")
        for done, (shard, catalogue) in enumerate(shards.items(), start=1):
            _require_sound(shard, catalogue)
            progress("checking shards", done, len(shards))
        stack.enter_context(only_writer(out))
        (_, first), *_ = metadata.values()
        facts = {name: fact for name, fact in first.items() if name not in OF_A_BUILD}
        exists = Catalogue.exists(out)
        merged = stack.enter_context(closing(Catalogue.open(out) if exists else Catalogue.create(out, facts)))
        if exists and "searchable_rows" in merged.metadata():
            raise OutputError(f"{out} is an index already: choose another folder with --out.")
        with merged.change():
            merged.remove([*merged.stamps()])  # of an interrupted merge
            merged.set(**facts, rows=_copy([*shards.values()], merged, progress))
        return finish(merged)


def _finished(shard: Catalogue) -> Catalogue:
    if "searchable_rows" not in shard.metadata():
        raise DataError(f"the shard {shard.folder} is incomplete: run its `dear index build` again.")
    return shard


def _copy(shards: Sequence[Catalogue], merged: Catalogue, progress: Progress) -> int:
    """Copy the shards' files, in the order of their paths, and the rows that they need; returns how many."""
    shard_of, row_of = array("l"), array("l")
    vectors, *sources = (
        Vectors.of(catalogue.folder, catalogue.metadata()) for catalogue in (merged, *shards)
    )
    in_order = heapq.merge(
        *map(_numbered, range(len(shards)), shards), key=lambda numbered: os.fsencode(numbered[1].path)
    )
    for shard, entry in in_order:
        row = None if entry.sha256 is None else merged.row_of(entry.sha256)
        if row is None and entry.row is not None:
            row = len(row_of)
            shard_of.append(shard)
            row_of.append(entry.row)
        elif row is not None and entry.row is not None and shard_of[row] != shard:
            _require_same(sources[shard_of[row]], row_of[row], sources[shard], entry.row, entry.path)
        merged.put([entry._replace(row=row)])
    origins = np.asarray(shard_of), np.asarray(row_of)
    for start in range(0, len(row_of), CHUNK):
        vectors.write(start, _gathered(sources, *(part[start : start + CHUNK] for part in origins)))
        progress("merging vectors", min(start + CHUNK, len(row_of)), len(row_of))
    return len(row_of)


def _numbered(number: int, shard: Catalogue) -> Iterator[tuple[int, Entry]]:
    return ((number, entry) for entry in shard.entries(shard.metadata()["rows"]))


def _require_same(first: Vectors, first_row: int, second: Vectors, second_row: int, path: str) -> None:
    """Raise DataError unless the features of a content that two shards have agree up to rounding."""
    for feature in range(first.features):
        pair = (
            first.read(feature, first_row + 1)[first_row],
            second.read(feature, second_row + 1)[second_row],
        )
        before, again = (np.asarray(vector, dtype=np.float32) for vector in pair)
        if not before @ again > 1 - TOLERANCE:  # both are unit vectors, whatever the index's distance
            raise damaged(
                second.folder.parent,
                f"{path[:100]!r} has the content of a file in {first.folder.parent}, but not its features",
            )


def _gathered(
    sources: Sequence[Vectors], shard_of: Int[np.ndarray, "row"], row_of: Int[np.ndarray, "row"]
) -> Float[Tensor, "row feature embed"]:
    """The vectors of some rows, each of a shard."""
    features, embed = sources[0].features, sources[0].embed
    vectors = np.empty((len(row_of), features, embed), dtype=np.float16)
    for shard, source in enumerate(sources):
        (positions,) = np.nonzero(shard_of == shard)
        if len(positions):
            rows = row_of[positions]
            for feature in range(features):
                vectors[positions, feature] = source.read(feature, int(rows.max()) + 1)[rows]
    return torch.from_numpy(vectors)
