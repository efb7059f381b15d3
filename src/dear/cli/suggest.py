"""`dear suggest`: which images to label next."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal

from rich.console import Console

from dear.adapters.results import Suggestion, check_table, write_suggestions
from dear.errors import plural, printable

SHOWN = 10


@dataclass(frozen=True)
class Suggested:
    """The images to label next, and the file that lists them."""

    out: Path
    suggestions: Sequence[Suggestion]


def command(
    bundle: str,
    images: Path,
    *,
    count: int = 50,
    out: Path = Path("next.csv"),
    pretrained: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> Suggested:
    """Suggest images to label next: those that the classifier is least sure of, no two alike.

    The CSV has a row for each, with an empty label beside the suggested class. Fill in labels and give it to
    fit after the first data: `dear fit photos/ next.csv --out my-classifier`. Rows without a label are left
    out. Images that the classifier was fitted on are not suggested; those that look like none of its classes
    are marked.

    Args:
        bundle: Folder of the bundle, or OWNER/NAME on the hub.
        images: Folder of images.
        count: How many to suggest.
        out: CSV file to write.
        pretrained: Location of the backbone's weights, if they have moved.
        device: Where to compute; auto uses the GPU if there is one.
    """
    check_table(out, (".csv",))
    from dear.adapters.bundle_config import check_bundle

    check_bundle(bundle)
    from dear.adapters.predictor import Predictor  # loads torch

    suggestions = Predictor(bundle, device, pretrained=pretrained).suggest(images, count)
    return Suggested(write_suggestions(out, suggestions), suggestions)


def render(result: Suggested, console: Console) -> None:
    """Show the first ones, and what to do with the file."""
    rows = result.suggestions[:SHOWN]
    lines = [
        f"{one.margin:6.1%}  {one.suggested:24}  {one.image}{'  (none of these?)' * one.none_of_these}"
        for one in rows
    ]
    if len(result.suggestions) > len(rows):
        lines.append(f"... and {len(result.suggestions) - len(rows)} more")
    lines = [
        "margin  suggested                 image",
        *lines,
        f"{plural(len(result.suggestions), 'image')} to label: {result.out}",
        f"next: fill in its column label, then dear fit DATA {quote(str(result.out))} --out DIR",
        "with the options of the first fit",
    ]
    console.print("\n".join(map(printable, lines)), markup=False, soft_wrap=True)
