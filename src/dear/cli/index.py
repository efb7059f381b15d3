"""`dear index`: build, search and export an index of images."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dear.cli.options import Backbone, BundleOptions, ClusterOptions, MethodClasses
from dear.cli.output import PrintableConsole, table
from dear.cli.parsing import Flat
from dear.errors import BundleError, DataError, SettingsError
from dear.reading.files import expanded
from dear.reading.remote import as_path, is_address
from dear.retrieval.results import Built
from dear.text import list_names, plural

if TYPE_CHECKING:
    from dear.retrieval.encoder import Encoder


def command_build(
    sources: list[str],
    *,
    features: Literal["bundle", "heads"] = "bundle",
    backbone: Flat[Backbone] = Backbone(),
    roles: Path | None = None,
    method: MethodClasses = None,
    out: Path = Path("index"),
    many: Flat[ClusterOptions] = ClusterOptions(),
) -> Built:
    """Index the images of a folder, for `dear index query`.

    `dear index build BUNDLE FOLDER` takes the class feature and the attribute features of a bundle. With
    `dear index build FOLDER --features heads` there is no bundle, and no training is needed: the features are
    a CLIP's class feature and, for each core attribute of a role table, the sum of what the attribute's heads
    add to the image embedding. --model and --roles are for --features heads only. With a bundle, --pretrained
    says where the backbone's weights are, if they have moved.

    To update an index, give the command again. Files are compared by size and time, and only new contents are
    encoded. An interrupted build continues where it stopped. A file that cannot be read is reported and
    skipped, and the exit code is 1.

    Args:
        sources: The bundle (a folder, or OWNER/NAME on the hub) and the folder of images (or its address),
            which is searched recursively. With --features heads, the folder of images alone.
        features: Whose features to take: the features of the bundle, or of the core heads of a CLIP.
        roles: Role table for --features heads: a file, or discovered, ground-truth, published or textspan. By
            default the package's table of these weights.
        out: Folder of the index.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.backbone.names import is_local
    from dear.cli.progress import StepProgress
    from dear.data.settings import DataSettings

    del method  # only imported
    *bundles, folder = sources
    if features == "bundle" and (backbone.model or roles):
        raise SettingsError("--model and --roles are for --features heads: a bundle has its own backbone.")
    if len(bundles) != (features == "bundle"):
        raise SettingsError(
            "give a bundle and a folder of images, or with --features heads, which takes no bundle, a folder "
            f"alone (here: {', '.join(sources)})."
        )
    if many.cluster is not None and not bundles:
        raise SettingsError("--cluster takes the features of a bundle: omit it, or --features heads.")
    cluster, load = many.find(backbone.device), None
    if bundles:
        check_bundle(bundles[0])
    else:
        backbone.check()
    from dear.retrieval.build import build_index  # loads torch: what can be refused without it is

    encoder: Encoder
    with StepProgress() as progress:
        if not bundles:
            from dear.retrieval.encoder import encoder_for
            from dear.roles.table import role_table

            clip, (model, weights) = backbone.load(world=False), backbone.name(world=False)
            if weights is not None and is_local(model, weights):  # a tag is no path
                weights = _absolute(weights)
            encoder = encoder_for(clip, role_table(clip, roles), pretrained=weights)
        else:
            from dear.adapters.index_encoder import BundleEncoder

            predictor = BundleOptions(backbone.pretrained, backbone.device).load(bundles[0])
            encoder = BundleEncoder(predictor)
            if cluster is not None:
                from dear.cluster.jobs import encode_on

                place = as_path(folder).resolve()
                load = encode_on(cluster, place, predictor.bundle, pretrained=backbone.pretrained)
        return build_index(
            encoder,
            as_path(folder),
            out,
            model=_absolute(bundles[0]) if bundles else "",
            threads=DataSettings().threads,
            load=load,
            progress=progress,
        )


def _absolute(name: str) -> str:
    """An existing path from the root, for queries to find it from anywhere; any other name as it is."""
    path = expanded(name)
    return str(path.resolve()) if path.exists() else name


def render_build(result: Built, console: PrintableConsole) -> None:
    """Show what was done."""
    lines = [
        f"{plural(result.files, 'image')} in {result.index}: {result.added} added, {result.changed} changed, "
        f"{result.removed} removed, {result.unchanged} unchanged; {result.encoded} encoded",
        f"features: {', '.join(result.features)}",
    ]
    if result.left_out:
        lines.append(f"left out, for they own no head: {list_names(result.left_out, 20)}")
    if result.broken:
        lines.append(f"skipped {plural(len(result.broken), 'file')}, not readable:")
    console.say(*lines, *(f"  {reason}" for reason in result.broken.values()))


def command_query(
    index: Path,
    query: str,
    *,
    text: bool = False,
    by: list[str] = ["class"],  # noqa: B006 (never changed; a default that help shows)
    weights: list[float] | None = None,
    words: list[str] | None = None,
    count: int = 10,
    itself: bool = False,
    out: Path | None = None,
    bundle: str | None = None,
    options: Flat[BundleOptions] = BundleOptions(),
) -> dict[str, Any]:
    """Find the images of an index that are nearest to an image, or to a text with --text.

    Args:
        index: Folder made by `dear index build`.
        query: An image file; with --text, a text.
        text: Take the query as a text. If the index has a bundle, the text goes through its templates.
        by: Features to compare by: class, and the attributes of the index, such as color,texture.
        weights: Weight of each feature of --by, by default 1. A negative weight prefers dissimilar images.
        words: Features that are compared with words in place of the image of the query, such as color=red.
        count: How many images to find.
        itself: Include the query itself in the results if the index has it.
        out: Folder to write a page to, with the images that were found.
        bundle: Where the bundle is, if it has moved since the index was built.
    """
    if not (text or is_address(query) or os.path.exists(query)):
        raise DataError(f"there is no image {query}: check the path, or give --text to search by a text.")
    from dear.retrieval.index import open_index, pair_weights, require_text

    mixed = pair_weights(by, weights)
    opened = open_index(index)
    opened.shares(mixed)  # before the backbone is loaded
    pairs = [pair.partition("=") for pair in words or []]
    worded = {name.strip(): word.strip() for name, equals, word in pairs if equals}
    if len(worded) < len(pairs):
        raise SettingsError("give each feature of --words once, as NAME=TEXT, such as color=red.")
    if text and worded:
        raise SettingsError("--words are for an image query: a text query is compared with its text alone.")
    for words_given in [*([query] if text else []), *worded.values()]:
        require_text(words_given)
    encoder = _index_encoder(opened.metadata, bundle, options)
    if text:
        hits = opened.query_text(encoder, query, mixed, count=count)
    else:
        hits = opened.query_image(encoder, as_path(query), mixed, count=count, itself=itself, words=worded)
    page = None
    if out is not None:
        from dear.report.query_page import write_query_page

        page = write_query_page(expanded(out), opened.folder, query, mixed, hits, is_text=text)[0]
    return {"query": query, "folder": opened.folder, "weights": mixed, "hits": hits, "page": page}


def render_query(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show the neighbors and, for several features, the cosine of each."""
    names = list(result["weights"])
    rows = []
    for rank, hit in enumerate(result["hits"], start=1):
        copies = len(hit.copies) + hit.more_copies
        file = f"{hit.path} (and {copies} {'copy' if copies == 1 else 'copies'})" if copies else hit.path
        rows.append((rank, f"{hit.score:.3f}", *(f"{hit.by[name]:.3f}" for name in names), file))
    headings = ["", "score", *(f"by {name}" for name in names), "file"]
    console.print(table(f"in {result['folder']}", headings, rows))
    if result["page"]:
        console.say(f"page: {result['page']}")


def command_export(index: Path, file: Path) -> dict[str, Any]:
    """Write an index as a Parquet file, which DuckDB, LanceDB, Qdrant and other databases read.

    It has a row for each readable file: path, class (the name of its folder), size, mtime, sha256, and a
    vector_NAME of float32 for each feature. Parquet requires the extra `datasets`.

    Args:
        index: Folder made by `dear index build`.
        file: The Parquet file.
    """
    from dear.retrieval.index import open_index

    return {"file": file, "files": open_index(index).export_parquet(file)}


def render_export(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show what was written."""
    console.say(f"{plural(result['files'], 'image')} in {result['file']}")


def _index_encoder(metadata: dict[str, Any], bundle: str | None, options: BundleOptions) -> "Encoder":
    """The encoder that an index was built with, loaded again. Raises SettingsError for a bundle where none
    belongs, BundleError if the index names none or one that is gone, and what loading raises.
    """
    if (heads := metadata.get("heads")) is not None:
        from dear.backbone.loading.load import folder_for, load_clip, named_weights
        from dear.backbone.names import may_be_folder
        from dear.retrieval.encoder import HeadEncoder

        if bundle is not None:
            raise SettingsError("this index holds features of heads, not of a bundle: omit --bundle.")
        model, named_by = heads["model"], "the index"
        weights = options.pretrained or named_weights(model, heads["pretrained"], named_by)
        if may_be_folder(model):
            model = folder_for(model, options.pretrained, named_by)
        if model != heads["model"]:  # the folder has moved, and --pretrained says where to
            weights = named_weights(model, heads["pretrained"], named_by)
        return HeadEncoder(load_clip(model, weights, device=options.device, named_by=named_by), heads)
    from dear.adapters.index_encoder import BundleEncoder

    model = metadata["model"]
    if not (bundle or model) or (not bundle and Path(model).is_absolute() and not Path(model).exists()):
        fault = f"is no longer at {model}" if model else "is not named in it"
        raise BundleError(f"the bundle of the index {fault}: give its folder with --bundle.")
    return BundleEncoder(options.load(bundle or model))
