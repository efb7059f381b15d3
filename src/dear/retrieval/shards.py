"""An index in shards: parts of a folder's files, indexed apart, on one machine or on several. Here they are
checked and merged into one index; `dear.retrieval.query.Shards` searches them together.

Shards may come from other machines: a merge takes from them only what a build writes, a query only hits that
belong to their shards and agree.
"""

import heapq
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from dear.errors import DataError, OutputError
from dear.progress import Progress, silent
from dear.retrieval.build import discard, finish
from dear.retrieval.catalogue import WRITTEN_AT_ONCE, Catalogue, Entry
from dear.retrieval.database import only_writer
from dear.retrieval.encoder import CLASS, identity_of
from dear.retrieval.results import Built, damaged
from dear.retrieval.scan import Shard, shards_in
from dear.retrieval.vectors import TOLERANCE, Vectors

NAMED = 5  # missing shards in a message
NUMBERS = 2**23  # numbers of rows that are copied or compared at a time: 16,384 rows of 512
MERGED = ("identity", "features", "embed", "folder", "model", "heads")
"""Facts of the encoder and the folder, which a merged index has too."""
ENCODER = (("identity", "model"), ("folder", "folder"), ("features", "features"), ("embed", "width"))
HEADS = ("model", "sha256", "heads", "left_out", "convention", "mean")


def all_shards(folder: Path) -> dict[Shard, Path]:
    """The folders of all shards, in their order. Raises DataError if there are none, or one is missing, too
    many or a link.
    """
    folders = shards_in(folder)
    if not folders:
        raise DataError(f"{folder} holds no shards of an index: `dear index build --shard 1/4` makes one.")
    if len(counts := {shard.count for shard in folders}) > 1:
        raise DataError(
            f"{folder} holds shards of {' and of '.join(map(str, sorted(counts)))}: remove those of one kind."
        )
    (count,) = counts
    if (last := max(folders)).number > count:
        raise DataError(f"{folder} holds shard {last}, which there cannot be: remove it.")
    if lacking := count - len(folders):
        absent = (Shard(n, count) for n in range(1, count + 1) if Shard(n, count) not in folders)
        missing = [*map(str, islice(absent, NAMED))]
        raise DataError(
            f"{folder} lacks {lacking} of its {count} shards ({', '.join(missing)}): build each "
            f"with --shard {missing[0]}."
        )
    return {shard: folders[shard] for shard in sorted(folders)}


def merge_index(shards: Path, out: Path, *, progress: Progress = silent) -> Built:
    """Merge all shards of an index into one, without encoding anything: the index that one build of the whole
    folder makes, which `build_index` can update. The shards stay. An interrupted merge starts again.

    Raises:
        DataError: for shards that are missing, unfinished, damaged or of different models or folders.
        OutputError: if there is an index at ``out`` already, finished or not, or it cannot be written.
    """
    is_new, makes_folder = not Catalogue.exists(out), not out.exists()
    try:
        return _merge(shards, out, progress)
    except DataError:
        if is_new and Catalogue.exists(out):
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


def require_rows(folder: Path, rows: Iterable[int]) -> None:
    """Raise DataError if all shards in a folder are empty, by their numbers of rows."""
    if not any(rows):
        raise DataError(f"the shards in {folder} have no readable image.")


def _of_heads(facts: Mapping[str, Any]) -> list[Any] | None:
    """What shards must agree in of the features of heads; weights and tables may lie elsewhere on each."""
    return [facts["heads"][name] for name in HEADS] if "heads" in facts else None


def _require_sound(catalogue: Catalogue) -> None:
    """Raise DataError for rows or vectors of a shard that no build of it has written. No image is read: the
    shard may name any folder.
    """
    facts = catalogue.metadata()
    vectors = Vectors.of(catalogue.folder, facts)
    for feature in range(vectors.features):
        vectors.require_unit(feature, 0, facts["rows"])
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
        require_rows(folder, (facts["rows"] for _, facts in metadata.values()))
        for done, catalogue in enumerate(shards.values(), start=1):
            _require_sound(catalogue)
            progress("checking shards", done, len(shards))
        stack.enter_context(only_writer(out))
        (_, first), *_ = metadata.values()
        facts = {name: first[name] for name in MERGED if name in first} | {"merging": True}
        exists = Catalogue.exists(out)
        merged = stack.enter_context(closing(Catalogue.open(out) if exists else Catalogue.create(out, facts)))
        if "searchable_rows" in (present := merged.metadata()):
            raise OutputError(f"{out} is an index already: choose another folder with --out.")
        if "merging" not in present:
            raise OutputError(
                f"{out} is an index that is not finished: run its `dear index build` again, remove it, or "
                "choose another folder with --out."
            )
        with merged.change():
            merged.begin_again(**facts)  # after an interrupted merge, perhaps of other shards
            merged.set(rows=_copy(shards, merged, progress))
        return finish(merged)


def _finished(shard: Catalogue) -> Catalogue:
    if "searchable_rows" not in shard.metadata():
        raise DataError(f"the shard {shard.folder} is incomplete: run its `dear index build` again.")
    return shard


class _Rows(NamedTuple):
    """Rows of several shards: the index of each one's shard, and its number there."""

    shard: Int[np.ndarray, "row"]
    row: Int[np.ndarray, "row"]

    def part(self, selected: slice | Int[np.ndarray, "part"]) -> "_Rows":
        return _Rows(self.shard[selected], self.row[selected])


def _copy(parts: Mapping[Shard, Catalogue], merged: Catalogue, progress: Progress) -> int:
    """Copy the shards' files, in the order of their paths, and the rows that they need; returns how many.
    Raises DataError for files or features that no builds of these shards have written.
    """
    shards = [*parts.values()]
    shard_of, row_of = array("l"), array("l")
    repeated = array("l"), array("l"), array("l")  # rows of a content that an earlier shard has, and its row
    in_order = heapq.merge(
        *map(_numbered, range(len(shards)), parts, shards), key=lambda numbered: os.fsencode(numbered[1].path)
    )
    waiting, rows = list[Entry](), dict[str, int]()  # to be written together, and their rows by content
    for shard, entry in in_order:
        row = None
        if entry.sha256 is not None:
            row = rows[entry.sha256] if entry.sha256 in rows else merged.row_of(entry.sha256)
        if row is None and entry.row is not None:
            row = len(row_of)
            shard_of.append(shard)
            row_of.append(entry.row)
        elif row is not None and entry.row is not None and shard_of[row] != shard:
            for numbers, number in zip(repeated, (shard, entry.row, row), strict=True):
                numbers.append(number)
        if entry.sha256 is not None and row is not None:
            rows[entry.sha256] = row
        waiting.append(entry._replace(row=row))
        if len(waiting) == WRITTEN_AT_ONCE:
            merged.put(waiting)
            waiting, rows = [], {}
    merged.put(waiting)
    origins = _Rows(np.asarray(shard_of), np.asarray(row_of))
    # Many files of a shard may have one content: it is compared once.
    copies, copied_rows, first = np.unique(np.asarray(repeated), axis=1)
    vectors, *sources = (
        Vectors.of(catalogue.folder, catalogue.metadata()) for catalogue in (merged, *shards)
    )
    _require_same(shards, sources, origins.part(first), _Rows(copies, copied_rows))
    for feature in range(vectors.features):
        vectors.write_feature(feature, _merged(sources, feature, origins, progress))
    return len(row_of)


def _numbered(number: int, shard: Shard, catalogue: Catalogue) -> Iterator[tuple[int, Entry]]:
    """The files of a shard with its index. Raises DataError for one that does not belong to it."""
    for entry in catalogue.entries(catalogue.metadata()["rows"]):
        if not shard.has(entry.path):
            raise damaged(catalogue.folder, f"{entry.path[:100]!r} does not belong to shard {shard}")
        yield number, entry


def _require_same(
    shards: Sequence[Catalogue], sources: Sequence[Vectors], first: _Rows, second: _Rows
) -> None:
    """Raise DataError unless the features of contents that two shards have agree up to rounding."""
    for feature in range(sources[0].features):
        for part in _parts(len(first.row), sources[0].embed):
            before, again = (
                _gathered(sources, feature, rows.part(part)).astype(np.float32) for rows in (first, second)
            )
            # Both are unit vectors, whatever the index's distance.
            different = ~((before * again).sum(axis=1) > 1 - TOLERANCE)
            if different.any():
                at = part.start + int(np.argmax(different))
                earlier, later = (shards[int(rows.shard[at])] for rows in (first, second))
                (path, *_), *_ = later.files_of(int(second.row[at]))
                raise damaged(
                    later.folder,
                    f"{path[:100]!r} has the content of a file in {earlier.folder}, but not its features",
                )


def _merged(
    sources: Sequence[Vectors], feature: int, origins: _Rows, progress: Progress
) -> Iterator[Float[np.ndarray, "row embed"]]:
    """A feature of all rows of a merged index, in parts."""
    rows = len(origins.row)
    for part in _parts(rows, sources[0].embed):
        yield _gathered(sources, feature, origins.part(part))
        progress("merging vectors", feature * rows + part.stop, sources[0].features * rows)


def _parts(rows: int, embed: int) -> list[slice]:
    """Slices of rows of which a feature is in memory at a time."""
    at_once = max(1, NUMBERS // embed)
    return [slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once)]


def _gathered(sources: Sequence[Vectors], feature: int, rows: _Rows) -> Float[np.ndarray, "row embed"]:
    """A feature of some rows. Each shard's file is mapped once, one at a time."""
    vectors = np.empty((len(rows.row), sources[0].embed), dtype="<f2")
    for shard in np.unique(rows.shard).tolist():
        (positions,) = np.nonzero(rows.shard == shard)
        numbers = rows.row[positions]
        vectors[positions] = sources[shard].read(feature, int(numbers.max()) + 1)[numbers]
    return vectors
