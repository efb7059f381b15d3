"""Figures of `dear eval`: reliability, the attention of core heads."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from dear.evaluation.metrics import Bin, expected_error
from dear.report.drawing import INK, NEUTRAL, PALETTE, Drawing, plain_axes
from dear.roles.table import HeadRole


def describe_calibration(bins: Sequence[Bin]) -> str:
    """Whether the classifier is too confident or not confident enough, and by how much."""
    images = sum(bin.images for bin in bins)
    confidence = 100 * sum(bin.images * bin.confidence for bin in bins) / images
    accuracy = 100 * sum(bin.images * bin.accuracy for bin in bins) / images
    if f"{confidence:.1f}" == f"{accuracy:.1f}":
        return f"Over all images its mean confidence equals its accuracy, {accuracy:.1f}%."
    side, gap = "overconfident" if confidence > accuracy else "underconfident", abs(confidence - accuracy)
    return (
        f"Over all images it is {side} by {gap:.1f} points: its mean confidence is {confidence:.1f}%, its "
        f"accuracy {accuracy:.1f}%."
    )


def reliability_diagram(bins: Sequence[Bin]) -> Drawing:
    """Accuracy by confidence, in percent, with the diagonal of a calibrated classifier; below, how many
    images each bin has.
    """
    filled = [bin for bin in bins if bin.images]

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        widths = [90 * (bin.high - bin.low) for bin in filled]
        centers = [50 * (bin.low + bin.high) for bin in filled]
        accuracies, confidences = zip(*((100 * b.accuracy, 100 * b.confidence) for b in filled), strict=True)
        above.bar(centers, accuracies, widths, color=PALETTE[0], label="accuracy")
        above.plot(confidences, accuracies, "o", color=PALETTE[1], ms=4, label="at the mean confidence")
        above.plot([0, 100], [0, 100], color=INK, linestyle="--", linewidth=1, label="calibrated")
        above.set(xlim=(0, 100), ylim=(0, 100), ylabel="accuracy (%)")
        below.bar(centers, [bin.images for bin in filled], widths, color=NEUTRAL)
        below.set(xlabel="confidence (%)", ylabel="images")
        below.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        for axes in (above, below):
            plain_axes(axes)
        figure.legend(loc="outside upper center", ncols=3, fontsize=9)

    points = (f"{100 * bin.confidence:.0f}%: {100 * bin.accuracy:.0f}% of {bin.images}" for bin in filled)
    error = f"calibration error {100 * expected_error(bins):.1f}%"
    text = f"Accuracy by confidence, {error}. {'; '.join(points)}."
    return Drawing("reliability", text, (5.2, 4.4), paint)


def attention_figure(
    name: str,
    title: str,
    picture: Image.Image,
    overlays: Sequence[tuple[HeadRole, Mapping[str, Image.Image]]],
) -> Drawing:
    """One row a core head: the picture, and the picture with the attention of each token over it."""
    columns = ["the picture", *dict.fromkeys(column for _, of_head in overlays for column in of_head)]

    def paint(figure: Figure) -> None:
        grid = figure.subplots(len(overlays), len(columns), squeeze=False)
        for row, (head, of_head) in zip(grid, overlays, strict=True):
            images = {columns[0]: picture, **of_head}
            for axes, column in zip(row, columns, strict=True):
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
                if column in images:
                    axes.imshow(np.asarray(images[column]), interpolation="nearest")
            row[0].set_ylabel(f"{head.attribute}\nlayer {head.layer}, head {head.head}", fontsize=9)
        for axes, column in zip(grid[0], columns, strict=True):
            axes.set_title(column, fontsize=9)

    words = "; ".join(f"{head.attribute}: layer {head.layer}, head {head.head}" for head, _ in overlays)
    text = f"Attention of core heads on {title} ({words}), by {', '.join(columns[1:])}."
    return Drawing(name, text, (1.3 * len(columns) + 0.4, 1.25 * len(overlays) + 0.3), paint)
