"""`dear index build`: compute searchable features of all images of a folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from dear.errors import SettingsError
from dear.retrieval.results import Built

if TYPE_CHECKING:
    from dear.retrieval.encoder import Encoder


def command(
    sources: list[str],
    *,
    features: Literal["bundle", "heads"] = "bundle",
    model: str | None = None,
    roles: Path | None = None,
    out: Path = Path("index"),
    kind: Literal["auto", "flat", "hnsw", "ivf"] = "auto",
    storage: Literal["float16", "int8"] = "float16",
    shard: str | None = None,
    pretrained: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    batch: int = 64,
    workers: int = 0,
) -> Built:
    """Index the images of a folder: dear index build BUNDLE FOLDER.

    The features are a bundle's class feature and attribute features or, with --features heads and without a
    bundle, those of an unadapted CLIP: its class feature, and for each core attribute of a role table the sum
    of what the attribute's heads add to the image embedding.

    Run it again to update the index: added, changed and removed files are found by size and time, and only
    new contents are encoded. An interrupted build resumes where it stopped. Unreadable files are reported and
    skipped, and the exit code is 1.

    Args:
        sources: Folder of the bundle, or its name on the hub, and folder of the images, searched recursively;
            with --features heads the latter alone.
        features: Whose features: a bundle's, or those of a CLIP's core heads, which need no training.
        model: Backbone, with --features heads: an open_clip architecture, or tiny. ViT-B-16 with
            laion2b_s34b_b88k from the hub if not given.
        roles: Role table, with --features heads: a file, or discovered, ground-truth or published; the
            package's table for these weights if not given.
        out: Folder of the index.
        kind: Kind of the FAISS indexes; auto chooses by the number of images (flat is exact).
        storage: How vectors are stored in memory during searches.
        shard: Index a part of the files, such as 3/8 for the third of eight, in a folder below --out. When
            all are built, here or on several machines, dear index query searches them together, and dear
            index merge makes them one index.
        pretrained: Location of the backbone's weights, if they have moved; with --features heads the weights:
            an open_clip tag, a local file, or random:SEED.
        device: Where to compute; auto uses the GPU if there is one.
        batch: Images that go through the model at once.
        workers: Threads that decode images; 0 means one per processor, at most 8.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.backbone.choice import check_model, chosen, warn_of_toy
    from dear.cli.progress import StepProgress
    from dear.data.settings import DataSettings

    bundle, folder = _sources(sources, features, model, roles)
    if bundle is None:
        check_model(model)
    else:
        check_bundle(bundle)
    from dear.retrieval.approximate import require_faiss  # loads torch: what can be refused without it is
    from dear.retrieval.build import build_index
    from dear.retrieval.scan import Shard

    require_faiss()
    part = None if shard is None else Shard.parse(shard)
    threads = DataSettings(workers=workers).threads
    with StepProgress() as progress:
        encoder: Encoder
        if bundle is None:
            from dear.backbone.load import load_clip
            from dear.retrieval.encoder import encoder_for
            from dear.roles.packaged import role_table

            named = chosen(model, pretrained, world=False)
            warn_of_toy(named.model, world=False)
            clip = load_clip(*named, device=device)
            encoder = encoder_for(
                clip,
                role_table(clip, roles),
                folder,
                out,
                pretrained=None if named.pretrained is None else _absolute(named.pretrained),
                threads=threads,
                batch=batch,
                progress=progress,
            )
        else:
            from dear.adapters.encoder import BundleEncoder
            from dear.adapters.predictor import Predictor

            encoder = BundleEncoder(Predictor(bundle, device, pretrained=pretrained))
        return build_index(
            encoder,
            folder,
            out,
            kind=None if kind == "auto" else kind,
            storage=storage,
            model="" if bundle is None else _absolute(bundle),
            shard=part,
            threads=threads,
            batch=batch,
            progress=progress,
        )


def _sources(
    sources: list[str], features: str, model: str | None, roles: Path | None
) -> tuple[str | None, Path]:
    """The bundle, if there is to be one, and the folder of images. Raises SettingsError."""
    if features == "heads":
        if len(sources) > 1:
            raise SettingsError(
                "--features heads takes no bundle, only the folder of images (here: "
                f"{', '.join(sources)}). Give the backbone with --model and --pretrained."
            )
        return None, Path(sources[0])
    if model is not None or roles is not None:
        raise SettingsError("--model and --roles are for --features heads: a bundle has its own backbone.")
    if len(sources) != 2:
        raise SettingsError(
            f"give a bundle and a folder of images (here: {', '.join(sources)}), or a folder alone with "
            "--features heads."
        )
    return sources[0], Path(sources[1])


def _absolute(name: str) -> str:
    """An existing path from the root, for queries to find it from anywhere; any other name as it is."""
    place = Path(name).expanduser()
    return str(place.resolve()) if place.exists() else name


def render(result: Built, console: Console) -> None:
    """Show what was done."""
    console.print(
        f"{result.files} images in {result.index}: {result.added} added, {result.changed} changed, "
        f"{result.removed} removed, {result.unchanged} unchanged; {result.encoded} encoded",
        markup=False,
    )
    console.print(f"{result.kind} indexes, {result.storage}, by {', '.join(result.features)}", markup=False)
    if result.left_out:
        console.print(f"left out, for they own no head: {', '.join(result.left_out)}", markup=False)
    if result.broken:
        console.print(f"{len(result.broken)} files cannot be read and were skipped:", markup=False)
        for reason in result.broken.values():
            console.print(f"  {reason}", markup=False, soft_wrap=True)
