"""What a review says of an image, as plain values, light to import."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from dear.reading.typed import Range
from dear.text import list_names, plural, printable

REVIEW_CSV, REVIEW_PAGE = "review.csv", "review.html"
MOST_PAIRS = 3  # of confused classes that are named
REFUSED_SHARE = 0.05
"""Share of left-out images of the known classes that is refused unless another is asked for."""
RefusedShare = Annotated[float, Range(0, 1, below=True)]


@dataclass(frozen=True)
class Issue:
    """An image of which something looks wrong.

    Attributes:
        image: Its file, or its index in the data, from 0, if it has none.
        label: The name of its class in the data.
        suggested: That of the most probable other class, or of the other picture.
        probability: Of the suggested class beside the label; None for an image that is there twice.
        other: The picture that is nearly the same, of another class or on the other side of the split.
    """

    image: str
    label: str
    suggested: str
    probability: float | None = None
    other: str = ""


def describe_issues(
    issues: Sequence[Issue] | None,
    images: int,
    page: str = "",
    *,
    confused: Sequence[tuple[str, str, int, int]] = (),
    of_fit: bool = False,
    judge: str = "",
    is_precise: bool = True,
    held_out: bool = False,
) -> list[str]:
    """How many labels look wrong, and how many images are there twice, in a line, and which classes are often
    ``confused`` (two classes, images taken for the other one, images); none without a review.
    That ``of_fit`` has judged the training images alone, beside which others were ``held_out``; another
    method than the fitted one is its ``judge``. Unless it ``is_precise``, most of the labels may be right.
    """
    if issues is None:
        return []
    wrong, noun = sum(not issue.other for issue in issues), "training label" if of_fit else "label"
    line = f"{wrong or 'none'} of {plural(images, noun)} {'looks' if wrong == 1 else 'look'} wrong"
    line += f" to {judge}" if judge else ""
    if wrong and not is_precise:
        line = f"{wrong} of {plural(images, noun)} to look at first; most of them may be right"
    if twins := [issue for issue in issues if issue.other]:
        where = "in two classes"
        if any(issue.label == issue.suggested for issue in twins):
            where += " or on both sides of the split"
        line += f", {plural(len(twins), 'image')} {'is' if len(twins) == 1 else 'are'} there twice, {where}"
    if held_out:
        line += " (`dear review DATA --out review`, with the same --model, also looks at what dear held out)"
    lines = [line[:1].upper() + line[1:] + (f": {page}" if issues and page else ".")]
    if confused:
        pairs = [f"{name} and {other}" for name, other, *_ in confused]  # counted by this judge alone
        hide = "Wrong labels may hide between classes that are often confused:"
        lines.append(f"{hide} {list_names(pairs, MOST_PAIRS)}.")
    return [*map(printable, lines)]
