"""`dear index build`: compute searchable features of all images of a folder."""

from pathlib import Path
from typing import Literal

from rich.console import Console

from dear.retrieval.results import Built


def command(
    bundle: str,
    folder: Path,
    *,
    out: Path = Path("index"),
    kind: Literal["auto", "flat", "hnsw", "ivf"] = "auto",
    storage: Literal["float16", "int8"] = "float16",
    pretrained: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    batch: int = 64,
    workers: int = 0,
) -> Built:
    """Index the images of a folder by a bundle's class feature and attribute features.

    Run it again to update the index: added, changed and removed files are found by size and time, and only
    new contents are encoded. An interrupted build resumes where it stopped. Unreadable files are reported and
    skipped, and the exit code is 1.

    Args:
        bundle: Folder of the bundle, or its name on the hub.
        folder: Folder of the images, searched recursively.
        out: Folder of the index.
        kind: Kind of the FAISS indexes; auto chooses by the number of images (flat is exact).
        storage: How vectors are stored in memory during searches.
        pretrained: Location of the backbone's weights, if they have moved.
        device: Where to compute; auto uses the GPU if there is one.
        batch: Images that go through the model at once.
        workers: Threads that decode images; 0 means one per processor, at most 8.
    """
    from dear.adapters.encoder import BundleEncoder
    from dear.adapters.predictor import Predictor
    from dear.cli.progress import StepProgress
    from dear.data.settings import DataSettings
    from dear.retrieval.approximate import require_faiss
    from dear.retrieval.build import build_index

    require_faiss()
    encoder = BundleEncoder(Predictor(bundle, device, pretrained=pretrained))
    place = Path(bundle).expanduser()
    with StepProgress() as progress:
        return build_index(
            encoder,
            folder,
            out,
            kind=None if kind == "auto" else kind,
            storage=storage,
            model=str(place.resolve()) if place.exists() else bundle,
            threads=DataSettings(workers=workers).threads,
            batch=batch,
            progress=progress,
        )


def render(result: Built, console: Console) -> None:
    """Show what was done."""
    console.print(
        f"{result.files} images in {result.index}: {result.added} added, {result.changed} changed, "
        f"{result.removed} removed, {result.unchanged} unchanged; {result.encoded} encoded",
        markup=False,
    )
    console.print(f"{result.kind} indexes, {result.storage}, by {', '.join(result.features)}", markup=False)
    if result.broken:
        console.print(f"{len(result.broken)} files cannot be read and were skipped:", markup=False)
        for reason in result.broken.values():
            console.print(f"  {reason}", markup=False, soft_wrap=True)
