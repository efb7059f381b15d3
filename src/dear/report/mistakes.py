"""The section of a page on what a classifier gets wrong: the confusion matrix, the most frequent confusions,
the scores by class, the most confident mistakes. The report of runs and the page of `dear eval` share it.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from pandas import DataFrame
from PIL import Image
from torch import Tensor

from dear.evaluation.mistakes import ClassScore, Mistakes
from dear.evaluation.schema import Mistake
from dear.report.drawing import HEAT, Drawing
from dear.report.grid import Cell, Grid, GridRow

FOLDED = 20
"""Classes above which the table of classes is folded away."""
THUMBNAIL = 112  # pixels
NUMBERED = 20  # classes up to which the counts stand in the cells of the matrix
NAMED = 60  # classes up to which their names stand beside the matrix
MOST_DRAWN = 1000  # classes up to which there is a matrix: its memory grows with their square


@dataclass(frozen=True)
class Thumbnail:
    """A misclassified image in the gallery: its data URL, its file or number, its prediction and class with
    their probabilities, and the text for those who cannot see it.
    """

    url: str
    title: str
    prediction: str
    label: str
    alt: str


@dataclass(frozen=True)
class MistakesSection:
    """What a page shows of a classifier's mistakes.

    Attributes:
        matrix: The confusion matrix; None if confusions are left out, or there are many classes.
        classes: Scores by class.
        gallery: The most confident mistakes of different confusions whose images can be read.
        unreadable: How many of them cannot.
    """

    mistakes: Mistakes
    matrix: Drawing | None
    classes: Grid
    gallery: list[Thumbnail]
    unreadable: int

    @property
    def folded(self) -> bool:
        """True if the table of classes is folded away."""
        return len(self.classes.rows) > FOLDED


def mistakes_section(
    mistakes: Mistakes,
    pictures: Sequence[Image.Image | None],
    name: str = "confusion",
    *,
    most_drawn: int = MOST_DRAWN,
    worst: int | None = None,
) -> MistakesSection:
    """The section of a classifier's mistakes.

    Args:
        pictures: Those of the most confident mistakes; None for an image that cannot be read.
        name: The name of the matrix and of its files.
        most_drawn: Classes up to which the matrix is drawn.
        worst: How many classes have a row, if not all.
    """
    drawn = not mistakes.left_out and len(mistakes.classes) <= most_drawn
    gallery = [
        _thumbnail(mistake, picture, mistakes.classes)
        for mistake, picture in zip(mistakes.examples, pictures, strict=True)
        if picture is not None
    ]
    return MistakesSection(
        mistakes,
        confusion_map(mistakes.matrix(), mistakes.classes, name) if drawn else None,
        classes_grid(mistakes.class_scores(), worst),
        gallery,
        len(pictures) - len(gallery),
    )


def confusion_map(
    counts: Int[Tensor, "class class"], classes: Sequence[str], name: str = "confusion"
) -> Drawing:
    """The confusion matrix: classes down, predictions across; the shade is the root of the share of the row,
    so that rare confusions are seen.
    """
    images = counts.numpy()
    shares = images / np.maximum(images.sum(axis=1, keepdims=True), 1)
    count = len(classes)
    shade = np.empty((count, count, 4))
    shade[..., :3], shade[..., 3] = to_rgb(HEAT), np.where(images > 0, 0.1 + 0.8 * np.sqrt(shares), 0.03)
    labels = [shortened(label) for label in classes]
    longest = max(map(len, labels)) if count <= NAMED else 0
    side = min(max(0.32 * count, 2.4), 8.5)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.imshow(shade, interpolation="nearest")
        if count <= NAMED:
            size = 9 if count <= 25 else max(4.5, 9 * 25 / count)
            axes.set_xticks(range(count), labels, rotation=90, fontsize=size)
            axes.set_yticks(range(count), labels, fontsize=size)
        if count <= NUMBERED:
            for y, x in np.argwhere(images > 0):
                axes.text(x, y, str(images[y, x]), ha="center", va="center", fontsize=8)
        axes.set_xlabel("prediction")
        axes.set_ylabel("class")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    pairs = [(int(images[y, x]), y, x) for y, x in np.argwhere(images > 0) if y != x]
    worst = sorted(pairs, reverse=True)[:3]
    words = "; ".join(f"{classes[y]} taken for {classes[x]}: {n}" for n, y, x in worst) or "no confusion"
    diagonal = f"{int(images.trace())} of {int(images.sum())} images are on the diagonal"
    size = (side + 0.085 * longest + 0.6, side + 0.085 * longest + 0.5)
    return Drawing(name, f"Confusion matrix: {diagonal}. Most frequent: {words}.", size, paint)


def classes_grid(scores: Sequence[ClassScore], worst: int | None = None) -> Grid:
    """Accuracy, precision and F1 by class, the worst F1 first, and their means over all classes; ``worst`` is
    how many classes have a row if not all.
    """

    def row(label: str, images: int, *shares: float | None) -> GridRow:
        percent = (None if share is None else Cell(100 * share) for share in shares)
        return GridRow(label, (Cell(images, decimals=0), *percent))

    ordered = sorted(scores, key=lambda score: (score.f1, score.name))
    mean_accuracy = sum(score.accuracy for score in scores) / len(scores)
    total = sum(score.images for score in scores)
    return Grid(
        "classes",
        "Accuracy by class",
        "Class",
        ("Images", "Accuracy", "Precision", "F1"),
        (
            row("Mean of the classes", total, mean_accuracy, None, mean_f1(scores)),
            *(row(s.name, s.images, s.accuracy, s.precision, s.f1) for s in ordered[:worst]),
        ),
        (
            "Percent. Accuracy: share of a class's images that are classified correctly (recall); precision: "
            "share of the images predicted to be of the class that are; F1: their harmonic mean. The worst "
            "F1 first.",
        ),
    )


def mean_f1(scores: Sequence[ClassScore]) -> float:
    """The mean of the classes (macro F1), a fraction."""
    return sum(score.f1 for score in scores) / len(scores)


def mistakes_tables(mistakes: Mistakes) -> dict[str, DataFrame]:
    """The scores of the classes (fractions), all confusions (a class with itself has its correct images) and
    the most confident mistakes, by file name.
    """
    names = mistakes.classes
    correct = [(label, label, images) for label, images in enumerate(mistakes.correct) if images]
    confusions = [(names[a], names[b], n) for a, b, n in sorted([*correct, *mistakes.confusions])]
    examples = [
        (m.title, names[m.prediction], m.confidence, names[m.label], m.probability) for m in mistakes.examples
    ]
    columns = {
        "classes.csv": ["class", "images", "accuracy", "precision", "F1"],
        "confusions.csv": ["class", "prediction", "images"],
        "mistakes.csv": ["file", "prediction", "probability", "class", "class_probability"],
    }
    rows: tuple[list[Any], ...] = [*map(astuple, mistakes.class_scores())], confusions, examples
    return {name: DataFrame(of, columns=columns[name]) for name, of in zip(columns, rows, strict=True)}


def data_url(picture: Image.Image, image_format: str, **options: Any) -> str:
    """A picture as a data URL."""
    stream = io.BytesIO()
    picture.save(stream, image_format, **options)
    return f"data:image/{image_format.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"


def shortened(name: str, most: int = 26) -> str:
    """A class name that fits beside a figure."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _thumbnail(mistake: Mistake, picture: Image.Image, classes: Sequence[str]) -> Thumbnail:
    small = picture.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    prediction, label = classes[mistake.prediction], classes[mistake.label]
    return Thumbnail(
        data_url(small, "JPEG", quality=80),
        mistake.title,
        f"{prediction} {_percent(mistake.confidence)}",
        f"{label} {_percent(mistake.probability)}",
        f"{label} taken for {prediction}",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.005 or share == 0 else "<1%"
