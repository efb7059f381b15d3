"""The page of `dear eval` with its figures, and the files beside it: its tables, its figures, their numbers.
`dear.adapters.evaluation_page` measures what it shows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor

from dear.errors import OutputError
from dear.evaluation.metrics import Bin, expected_error
from dear.report.drawing import (
    INK,
    NEUTRAL,
    PALETTE,
    Drawing,
    concept_styles,
    figure_files,
    legend_below,
    plain_axes,
)
from dear.report.grid import csv_file
from dear.report.html import render_page
from dear.report.intervals import LEVEL, share_interval
from dear.report.method_plots import training_curves
from dear.report.mistakes import MistakesSection, shortened
from dear.writing import output_folder, try_place

PAGE = "evaluation.html"
COLORED = 12  # classes with a color of their own in the map of features
ACROSS = 2  # panels beside each other, so that they fit on a phone


@dataclass(frozen=True)
class HeadAttention:
    """The picture with the attention of a head over it, by whose attention it is."""

    layer: int
    head: int
    attribute: str
    overlays: Mapping[str, Image.Image]


@dataclass(frozen=True)
class AttentionExample:
    """The attention of the core heads on one picture."""

    picture: Image.Image
    title: str
    heads: tuple[HeadAttention, ...]


@dataclass(frozen=True)
class FeatureMap:
    """Features of some images in the plane, and the classes of these images."""

    points: Mapping[str, Float[Tensor, "item 2"]]
    labels: Int[Tensor, "item"]


@dataclass(frozen=True)
class Evaluation:
    """A classifier on labelled images.

    Attributes:
        subject: The method and its backbone.
        data, split: What it was measured on.
        metrics: The tiles at the top: name -> value as text.
        bins: Confidence against accuracy.
        epochs: Of the training: epoch, loss, and val (accuracy on validation images) where known.
        features: A map of features, if it was made.
        notes: What is left out, and why.
    """

    subject: str
    data: str
    split: str
    metrics: Mapping[str, str]
    mistakes: MistakesSection
    bins: tuple[Bin, ...]
    epochs: tuple[Mapping[str, Any], ...] = ()
    attention: tuple[AttentionExample, ...] = ()
    features: FeatureMap | None = None
    notes: tuple[str, ...] = ()

    def figures(self) -> dict[str, Drawing]:
        """The figures by name, those that there is something for."""
        drawings = [self.mistakes.matrix] if self.mistakes.matrix else []
        drawings.append(reliability_diagram(self.bins))
        losses, validated = (
            [epoch[name] for epoch in self.epochs if name in epoch] for name in ("loss", "val")
        )
        if curve := training_curves({"": losses}, {"": validated}, "learning"):
            drawings.append(curve)
        drawings += [
            attention_figure(example.title, example.picture, example.heads, f"attention-{number}")
            for number, example in enumerate(self.attention, start=1)
        ]
        if self.features is not None:
            classes = self.mistakes.mistakes.classes
            drawings.append(feature_map(self.features.points, self.features.labels.tolist(), classes))
        return {drawing.name: drawing for drawing in drawings}


def check_folder(folder: Path) -> None:
    """Raise OutputError if the folder of a page cannot be written to, before anything is computed."""
    try:
        try_place(folder)
    except OSError as error:
        why = error.strerror or error
        raise OutputError(f"cannot write the page to {folder}: {why}; choose another --out.") from error


def write_evaluation_page(folder: Path, evaluation: Evaluation) -> tuple[Path, ...]:
    """Write the page, ``evaluation.html``, its tables as CSV and its figures as SVG; all files or none.
    Returns them, the page first. Raises OutputError.
    """
    figures = evaluation.figures()
    tables = evaluation.mistakes.mistakes.tables()
    contents = {PAGE: evaluation_html(evaluation, figures).encode()}
    contents |= {name: csv_file(table) for name, table in tables.items()} | figure_files(figures.values())
    return output_folder(folder, contents, "the page", "choose another --out.")


def evaluation_html(evaluation: Evaluation, figures: Mapping[str, Drawing]) -> str:
    """The text of the page; a deterministic function of its input."""
    mistakes, count = evaluation.mistakes.mistakes, len(evaluation.metrics)
    low, high = share_interval(mistakes.total - mistakes.misclassified, mistakes.total)
    return render_page(
        "evaluation.html.j2",
        evaluation=evaluation,
        figures=figures,
        mistakes=mistakes,
        accuracy=f"{100 * mistakes.accuracy:.1f}%, {LEVEL:.0%} interval {100 * low:.1f} to {100 * high:.1f}%",
        columns=next((n for n in (4, 3, 5) if count % n != 1), 4),  # no tile alone in its row
        calibration_error=100 * expected_error(evaluation.bins),
        direction=describe_calibration(evaluation.bins),
        selected_epoch=any("val" in epoch for epoch in evaluation.epochs),
    )


def describe_calibration(bins: Sequence[Bin]) -> str:
    """Whether the classifier is too confident or not confident enough, and by how much."""
    images = sum(bin.images for bin in bins)
    confidence = 100 * sum(bin.images * bin.confidence for bin in bins) / images
    accuracy = 100 * sum(bin.images * bin.accuracy for bin in bins) / images
    gap = f"by {abs(confidence - accuracy):.1f} points: its mean confidence is {confidence:.1f}%"
    if f"{confidence:.1f}" == f"{accuracy:.1f}":
        return f"Over all images its mean confidence equals its accuracy, {accuracy:.1f}%."
    side = "overconfident" if confidence > accuracy else "underconfident"
    return f"Over all images it is {side} {gap}, its accuracy {accuracy:.1f}%."


def reliability_diagram(bins: Sequence[Bin]) -> Drawing:
    """Accuracy by confidence, in percent, with the diagonal of a calibrated classifier; below, how many
    images each bin has.
    """
    filled = [bin for bin in bins if bin.images]

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        widths = [90 * (bin.high - bin.low) for bin in filled]
        centres = [50 * (bin.low + bin.high) for bin in filled]
        accuracies = [100 * bin.accuracy for bin in filled]
        above.bar(centres, accuracies, widths, color=PALETTE[0], label="accuracy")
        above.plot(
            [100 * bin.confidence for bin in filled], accuracies,
            "o", color=PALETTE[1], markersize=4, label="at the mean confidence",
        )  # fmt: skip
        above.plot([0, 100], [0, 100], color=INK, linestyle="--", linewidth=1, label="calibrated")
        above.set(xlim=(0, 100), ylim=(0, 100), ylabel="accuracy (%)")
        below.bar(centres, [bin.images for bin in filled], widths, color=NEUTRAL)
        below.set_ylabel("images")
        below.set_xlabel("confidence (%)")
        below.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        for axes in (above, below):
            plain_axes(axes)
        figure.legend(loc="outside upper center", ncols=3, fontsize=9)

    points = (f"{100 * bin.confidence:.0f}%: {100 * bin.accuracy:.0f}% of {bin.images}" for bin in filled)
    text = (
        f"Accuracy by confidence, calibration error {100 * expected_error(bins):.1f}%. {'; '.join(points)}."
    )

    return Drawing("reliability", text, (5.2, 4.4), paint)


def attention_figure(title: str, picture: Image.Image, heads: Sequence[HeadAttention], name: str) -> Drawing:
    """One row a core head: the picture, and the picture with the attention of each token over it."""
    columns = list(dict.fromkeys(column for head in heads for column in head.overlays))

    def paint(figure: Figure) -> None:
        grid = figure.subplots(len(heads), 1 + len(columns), squeeze=False)
        for row, head in zip(grid, heads, strict=True):
            images = {"the picture": picture, **head.overlays}
            for axes, column in zip(row, ("the picture", *columns), strict=True):
                axes.set_xticks([])
                axes.set_yticks([])
                axes.spines[:].set_visible(False)
                if column in images:
                    axes.imshow(np.asarray(images[column]), interpolation="nearest")
            row[0].set_ylabel(f"{head.attribute}\nlayer {head.layer}, head {head.head}", fontsize=9)
        for axes, column in zip(grid[0], ("the picture", *columns), strict=True):
            axes.set_title(column, fontsize=9)

    words = "; ".join(f"{head.attribute}: layer {head.layer}, head {head.head}" for head in heads)
    text = f"Attention of core heads on {title} ({words}), by {', '.join(columns)}."
    return Drawing(name, text, (1.3 * (1 + len(columns)) + 0.4, 1.25 * len(heads) + 0.3), paint)


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
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set(alpha=0.2)
            axes.set_visible(bool(axes.collections))
        legend_below(figure, 3, markerscale=1.8)

    size = (2.5 * min(len(points), ACROSS) + 0.3, 2.5 * down + 0.22 * -(-len(looks) // 3) + 0.3)
    text = f"Maps of {len(labels)} images by the features {', '.join(points)}, colored by class."
    return Drawing("features", text, size, paint)
