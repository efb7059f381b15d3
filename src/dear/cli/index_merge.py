"""`dear index merge`: one index of the shards that `dear index build --shard` made."""

from pathlib import Path
from typing import Literal

from rich.console import Console

from dear.errors import SettingsError
from dear.retrieval.results import Built


def command(
    shards: Path,
    *,
    out: Path = Path("index"),
    kind: Literal["auto", "flat", "hnsw", "ivf"] = "auto",
    storage: Literal["float16", "int8"] = "float16",
) -> Built:
    """Merge all shards of an index into one, the same as one build of the whole folder makes.

    Nothing is encoded again: vectors are copied, and the FAISS indexes are built from them. The shards stay.
    `dear index build` with the same --out updates the merged index.

    Args:
        shards: Folder of the shards: the --out of `dear index build --shard`.
        out: Folder of the merged index.
        kind: Kind of the FAISS indexes; auto chooses by the number of images (flat is exact).
        storage: How vectors are stored in memory during searches.
    """
    from dear.cli.progress import StepProgress
    from dear.retrieval.shards import merge_index

    if out.expanduser().resolve() == shards.expanduser().resolve():
        raise SettingsError(f"{out} is the folder of the shards: name another one for the index with --out.")
    with StepProgress() as progress:
        return merge_index(
            shards, out, kind=None if kind == "auto" else kind, storage=storage, progress=progress
        )


def render(result: Built, console: Console) -> None:
    """Show what was made."""
    console.print(f"{result.files} images in {result.index}, {result.rows} rows", markup=False)
    console.print(f"{result.kind} indexes, {result.storage}, by {', '.join(result.features)}", markup=False)
    if result.broken:
        console.print(f"{len(result.broken)} files could not be read by the builds.", markup=False)
