"""Checks of shards, which may come from other machines: a merge or a query takes from them only what a build
writes.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dear.data.images.raster import read_image
from dear.errors import DataError
from dear.retrieval.build import stored
from dear.retrieval.catalogue import Catalogue, Entry
from dear.retrieval.heads import CLASS, identity_of
from dear.retrieval.results import damaged
from dear.retrieval.scan import Shard, stamp_of
from dear.retrieval.vectors import OFF_ONE, Vectors

HASHED = 256
"""Most files of a shard, evenly spread, whose contents are compared with their hashes."""
ENCODER = (("identity", "model"), ("folder", "folder"), ("features", "features"), ("embed", "width"))
HEADS = ("model", "sha256", "heads", "left_out", "convention", "short_side", "mean")


def require_alike(shards: Mapping[Shard, tuple[Path, Mapping[str, Any]]]) -> None:
    """Raise DataError unless these facts, with the folders that hold them, are those of the shards of one
    index.
    """
    (first_place, first), *_ = shards.values()
    for shard, (place, facts) in shards.items():
        if (*facts.get("shard", ()),) != (shard.number, shard.count):
            raise damaged(place, f"it is not shard {shard} of an index")
        for name, what in ENCODER:
            if facts[name] != first[name]:
                raise DataError(
                    f"{first_place} and {place} were built with another {what} each "
                    f"({str(first[name])[:200]}; {str(facts[name])[:200]}): build one of them again."
                )
        if _of_heads(facts) != _of_heads(first):
            raise DataError(
                f"{first_place} and {place} were built with other heads each: build one of them again."
            )
        if "heads" in facts:
            _require_own(place, facts)


def _of_heads(facts: Mapping[str, Any]) -> list[Any] | None:
    """What shards must agree in of the features of heads; weights and tables may lie elsewhere on each."""
    return [facts["heads"][name] for name in HEADS] if "heads" in facts else None


def _require_own(place: Path, facts: Mapping[str, Any]) -> None:
    """Raise DataError unless the features of heads are those that the facts say."""
    heads = facts["heads"]
    if [len(row) for row in heads["mean"]] != [facts["embed"]] * len(heads["heads"]):
        raise damaged(place, "its means are of another shape than its features")
    if facts["features"] != [CLASS, *heads["heads"]] or facts["identity"] != identity_of(heads):
        raise damaged(place, "its features are not those of its heads")


def require_sound(shard: Shard, catalogue: Catalogue) -> None:
    """Raise DataError for files, rows, contents or vectors of a shard that no build of it has written. Up to
    `HASHED` files that lie in the folder as the shard knows them are read and compared with their hashes.
    """
    facts = catalogue.metadata()
    vectors = stored(catalogue, facts)
    for feature in range(vectors.features):
        vectors.require_unit(feature, 0, facts["rows"])
    step = max(1, -(-catalogue.count() // HASHED))
    for at, entry in enumerate(catalogue.entries(facts["rows"])):
        if not shard.has(entry.path):
            raise damaged(catalogue.folder, f"{entry.path[:100]!r} does not belong to shard {shard}")
        if at % step == 0 and entry.sha256 is not None:
            _require_content(Path(facts["folder"]), entry, catalogue.folder)
    catalogue.require_one_content_a_row()


def _require_content(folder: Path, entry: Entry, place: Path) -> None:
    """Raise DataError for a file whose bytes are not those of its hash; a file that is gone or was changed
    since is left to the next build.
    """
    path = folder / entry.path
    try:
        if stamp_of(path) != entry.stamp:
            return
        content = read_image(path)
    except DataError:
        return
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise damaged(place, f"the hash of {entry.path[:100]!r} is not that of its content")


def require_same(one: Vectors, one_row: int, other: Vectors, other_row: int, path: str) -> None:
    """Raise DataError unless the features of a content that two shards have agree up to rounding."""
    for feature in range(one.features):
        pair = (one.read(feature, one_row + 1)[one_row], other.read(feature, other_row + 1)[other_row])
        first, second = (np.asarray(vector, dtype=np.float32) for vector in pair)
        if not first @ second > 1 - OFF_ONE:
            raise damaged(
                other.folder.parent,
                f"{path[:100]!r} has the content of a file in {one.folder.parent}, but not its features",
            )
