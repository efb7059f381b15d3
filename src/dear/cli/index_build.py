"""`dear index build`: features of all images of a folder, to be searched."""

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

    Run it again to bring the index up to date: added, changed and removed files are found by size and time,
    and only new contents are encoded. A build that was cut off goes on where it stopped. A file that cannot
    be read is told, the others are done, and the exit code is 1.

    Args:
        bundle: Folder of the bundle, or its name on the hub.
        folder: Folder of the images; folders in it are searched too.
        out: Folder of the index.
        kind: Of the FAISS indexes; auto goes by the number of images (flat is exact).
        storage: How vectors lie in memory while they are searched.
        pretrained: Other place of the backbone's weights.
        device: Where to compute; auto takes the GPU if there is one.
        batch: Images that go through the model at once.
        workers: Threads that decode images; 0 is one a processor, at most 8.
    """
    from dear.adapters.encoder import BundleEncoder
    from dear.adapters.predictor import Predictor
    from dear.cli.steps import StepProgress
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
        f"{result.removed} removed, {result.unchanged} as before; {result.encoded} encoded",
        markup=False,
    )
    console.print(f"{result.kind} indexes, {result.storage}, by {', '.join(result.features)}", markup=False)
    if result.broken:
        console.print(f"{len(result.broken)} files cannot be read and are left out:", markup=False)
        for reason in result.broken.values():
            console.print(f"  {reason}", markup=False, soft_wrap=True)
