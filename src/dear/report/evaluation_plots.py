"""Figures of `dear eval`: reliability, the attention of core heads, maps of features."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor

from dear.evaluation.metrics import Bin, expected_error
from dear.report.drawing import INK, NEUTRAL, PALETTE, Drawing, concept_styles, legend_below, plain_axes
from dear.report.mistakes import shortened
from dear.roles.table import HeadRole

COLORED = 12  # classes with a color of their own in the map of features
ACROSS = 2  # panels beside each other, so that they fit on a phone


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


def feature_map(
    points: Mapping[str, Float[Tensor, "item 2"]], labels: Sequence[int], classes: Sequence[str]
) -> Drawing:
    """One panel a feature: images as points, colored by their class; the most frequent classes have a color
    of their own.
    """
    frequent = sorted(label for label, _ in Counter(labels).most_common(COLORED))
    styles = concept_styles([classes[label] for label in frequent])
    down, rare = -(-len(points) // ACROSS), sorted({*labels} - {*frequent})
    other: dict[str, Any] = {"s": 6, "color": NEUTRAL, "alpha": 0.5, "label": "other classes"}
    looks: list[tuple[list[int], dict[str, Any]]] = [(rare, other)] if rare else []
    for label in frequent:
        color, marker = styles[classes[label]]
        look = {"s": 11, "color": color, "marker": marker, "alpha": 0.85, "label": shortened(classes[label])}
        looks.append(([label], look))

    def paint(figure: Figure) -> None:
        panels = figure.subplots(down, min(len(points), ACROSS), squeeze=False).flat
        for axes, (name, plane) in zip(panels, points.items(), strict=False):
            for some, look in looks:
                x, y = plane[np.isin(labels, some)].numpy().T
                axes.scatter(x, y, linewidth=0, **look)
            axes.set_title(name, fontsize=10)
        for axes in figure.axes:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(alpha=0.2)
            axes.set_visible(bool(axes.collections))
        legend_below(figure, 3, markerscale=1.8)

    size = (2.5 * min(len(points), ACROSS) + 0.3, 2.5 * down + 0.22 * -(-len(looks) // 3) + 0.3)
    text = f"Maps of {len(labels)} images by the features {', '.join(points)}, colored by class."
    return Drawing("features", text, size, paint)
