"""`dear index query`: images of an index that are similar to an image or a text, by chosen features."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from dear.cli.output import table
from dear.errors import BundleError, SettingsError
from dear.retrieval.results import Hit

if TYPE_CHECKING:
    from dear.retrieval.encoder import Encoder


@dataclass(frozen=True)
class Found:
    """Neighbours, best first.

    Attributes:
        folder: The folder that their paths are relative to.
        weights: Weights of the features' cosines.
        sheet: The contact sheet, if requested.
    """

    query: str
    folder: Path
    weights: dict[str, float]
    hits: list[Hit]
    sheet: Path | None = None


def command(
    index: Path,
    query: str,
    *,
    text: bool = False,
    by: list[str] = ["class"],  # noqa: B006 (never changed; a default that help shows)
    weights: list[float] | None = None,
    words: list[str] | None = None,
    count: int = 10,
    effort: float = 1.0,
    itself: bool = False,
    sheet: Path | None = None,
    bundle: str | None = None,
    pretrained: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> Found:
    """Find the images of an index that are nearest to an image, or to a text with --text.

    Args:
        index: Folder made by `dear index build`; with --shard, that of all shards or of one.
        query: An image file; with --text, a text.
        text: The query is a text; it goes through the bundle's prompt templates, if there is a bundle.
        by: Features to compare by: class, and the attributes of the index, such as color,texture.
        weights: Weight of each feature, 1 if not given; negative weights prefer dissimilar images.
        words: Features of an image query to compare with words instead, such as color=red.
        count: How many images to find.
        effort: How much of an index that is not flat is searched: 2 is slower and misses less than 1.
        itself: Include the query itself in the results if the index has it.
        sheet: PNG file for a contact sheet of the result.
        bundle: Folder of the bundle, if it has moved since the index was built. Not for an index of heads'
            features, which names its backbone.
        pretrained: Location of the backbone's weights, if they have moved.
        device: Where to compute; auto uses the GPU if there is one.
    """
    from dear.retrieval.query import by_image, by_text, open_index, weights_of
    from dear.retrieval.sheet import SheetRow, check_sheet, contact_sheet, save_sheet

    mixed = weights_of(by, weights)
    if sheet is not None:
        check_sheet(sheet)
    opened = open_index(index)
    opened.shares(mixed)  # before the backbone is loaded
    worded = _worded(words or [])
    if text and worded:
        raise SettingsError("--words are for an image query: a text query is compared with its text alone.")
    encoder = _encoder(opened.metadata, bundle, pretrained, device)
    opened.check(encoder)
    if text:
        hits = by_text(opened, encoder, query, mixed, count=count, effort=effort)
    else:
        hits = by_image(
            opened, encoder, Path(query), mixed, count=count, effort=effort, itself=itself, words=worded
        )
    if sheet is not None:
        title = " + ".join(f"{weight:g} {name}" for name, weight in mixed.items())
        row = SheetRow(f"by {title}", hits)
        save_sheet(contact_sheet(None if text else Path(query), query, [row], opened.folder), sheet)
    return Found(query, opened.folder, mixed, hits, sheet)


def render(result: Found, console: Console) -> None:
    """Show the neighbours and, for several features, the cosine of each."""
    names = list(result.weights)
    rows = [
        (rank, f"{hit.score:.3f}", *(f"{hit.by[name]:.3f}" for name in names), _named(hit))
        for rank, hit in enumerate(result.hits, start=1)
    ]
    console.print(table(f"in {result.folder}", ["", "score", *names, "image"], rows))
    if result.sheet is not None:
        console.print(f"contact sheet: {result.sheet}", markup=False)


def _encoder(metadata: dict[str, Any], bundle: str | None, pretrained: str | None, device: str) -> "Encoder":
    """The encoder that an index was built with, loaded again. Raises SettingsError for a bundle where none
    belongs, and what loading raises.
    """
    if (made := metadata.get("heads")) is not None:
        from dear.backbone.load import load_clip
        from dear.retrieval.encoder import HeadEncoder

        if bundle is not None:
            raise SettingsError("this index holds features of heads, not of a bundle: omit --bundle.")
        backbone = made["model"], pretrained or made["pretrained"]
        return HeadEncoder(load_clip(*backbone, device=device, named_by="the index"), made)
    from dear.adapters.encoder import BundleEncoder
    from dear.adapters.predictor import Predictor

    return BundleEncoder(Predictor(bundle or _bundle_of(metadata["model"]), device, pretrained=pretrained))


def _worded(pairs: list[str]) -> dict[str, str]:
    """Texts by feature from NAME=TEXT. Raises SettingsError."""
    found = dict[str, str]()
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name in found:
            raise SettingsError(f"words {pair!r}: give each feature once, as NAME=TEXT, such as color=red.")
        found[name.strip()] = text.strip()
    return found


def _bundle_of(model: str) -> str:
    """The bundle that an index names. Raises BundleError if it names none, or a folder that is gone."""
    if not model or (Path(model).is_absolute() and not Path(model).exists()):
        fault = f"is no longer at {model}" if model else "is not named in it"
        raise BundleError(f"the bundle of the index {fault}: give its folder with --bundle.")
    return model


def _named(hit: Hit) -> str:
    return hit.path + (f" (and {len(hit.copies)} copies)" if hit.copies else "")
