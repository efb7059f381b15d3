"""The section of a page on what a classifier gets wrong: the confusion matrix, the most frequent confusions,
the scores by class, the most confident mistakes. The report of runs and the page of `dear eval` share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from pandas import DataFrame, Series, concat
from PIL import Image

from dear.evaluation.predictions import ImagePredictions
from dear.report.drawing import Drawing
from dear.report.grid import Cell, Grid, GridRow
from dear.report.render import gallery_photo
from dear.text import without_surrogates

NUMBERED = 20  # classes up to which the counts stand in the cells of the matrix
NAMED = 60  # classes up to which their names stand beside the matrix
MAX_DRAWN, WORST = 100, 50
"""Classes up to which there is a matrix, and classes in the table."""
SHADE = "#2F86D1"


@dataclass(frozen=True)
class Mistakes:
    """What a classifier gets wrong on labeled images, or several runs on the same images.

    Attributes:
        classes: The candidate classes.
        pairs: ``images`` by ``label`` and ``prediction``, which are numbers of classes; the correct ones too.
        examples: The mistakes, the most confident of each confusion first, then the second of each:
            ``image``, its number among the test images, ``label``, ``prediction``, ``confidence`` (the
            probability of the prediction), ``probability`` (that of the label), and ``file`` and ``folder``,
            empty without files.
    """

    classes: tuple[str, ...]
    pairs: DataFrame
    examples: DataFrame

    @property
    def total(self) -> int:
        """The number of images."""
        return int(self.pairs.images.sum())

    @property
    def misclassified(self) -> int:
        """The number of misclassified images."""
        return int(self.pairs.images[self.pairs.label != self.pairs.prediction].sum())

    @property
    def accuracy(self) -> float:
        """Over all images, a fraction."""
        return 1 - self.misclassified / max(self.total, 1)

    def frequent_pairs(self, most: int = 10) -> list[tuple[str, str, int, float]]:
        """The most frequent confusions: class, prediction, images, and their share of the class's images."""
        images = self.pairs.groupby("label").images.transform("sum")
        pairs = self.pairs.assign(share=self.pairs.images / images)
        pairs = pairs[pairs.label != pairs.prediction].sort_values("images", ascending=False, kind="stable")
        return [
            (self.classes[pair.label], self.classes[pair.prediction], pair.images, pair.share)
            for pair in pairs.head(most).itertuples()
        ]

    def matrix(self) -> Int[np.ndarray, "class class"]:
        """How many images of each class (rows) are predicted to be of each class (columns)."""
        counts = np.zeros((len(self.classes), len(self.classes)), dtype=np.int64)
        counts[self.pairs.label, self.pairs.prediction] = self.pairs.images
        return counts

    def class_scores(self) -> DataFrame:
        """The scores of the classes that have images, as fractions: ``accuracy`` is recall, ``precision`` is
        missing where no image is predicted to be of the class, ``F1`` is their harmonic mean.
        """
        right = self.pairs[self.pairs.label == self.pairs.prediction].set_index("label").images
        images, predicted = (self.pairs.groupby(side).images.sum() for side in ("label", "prediction"))
        counts = DataFrame({"images": images, "right": right, "predicted": predicted}).fillna(0)
        counts = counts[counts.images > 0].astype(np.int64)
        scores = {
            "class": [self.classes[label] for label in counts.index],
            "images": counts.images,
            "accuracy": counts.right / counts.images,
            "precision": counts.right / counts.predicted,
            "F1": 2 * counts.right / (counts.images + counts.predicted),
        }
        return DataFrame(scores)

    def tables(self) -> dict[str, DataFrame]:
        """The scores of the classes, the images by class and prediction, and the most confident mistakes, by
        file name.
        """
        names = np.array(self.classes, dtype=object)
        pairs, examples = self.pairs, self.examples
        confusions = {
            "class": names[pairs.label],
            "prediction": names[pairs.prediction],
            "images": pairs.images,
        }
        mistakes = {
            "file": [title_of(example) for example in examples.itertuples()],
            "prediction": names[examples.prediction],
            "probability": examples.confidence,
            "class": names[examples.label],
            "class_probability": examples.probability,
        }
        tables = {"classes": self.class_scores(), "confusions": confusions, "mistakes": mistakes}
        return {f"{name}.csv": DataFrame(table) for name, table in tables.items()}


def title_of(example: Any) -> str:
    """The file of an example, or the number of its image counted from 1."""
    return without_surrogates(example.file or f"image {example.image + 1}")


def find_mistakes(runs: Sequence[ImagePredictions]) -> Mistakes:
    """What runs on the same images get wrong; an image that several get wrong is an example once, with the
    most confident.
    """
    rows = concat([image_rows(run) for run in runs], ignore_index=True)
    pairs = rows.groupby(["label", "prediction"]).size().reset_index(name="images")
    wrong = rows[rows.label != rows.prediction].sort_values("confidence", ascending=False, kind="stable")
    wrong = wrong.drop_duplicates("image")
    # Without this, one frequent confusion would take all the room.
    wrong["round"] = wrong.groupby(["label", "prediction"]).cumcount()
    examples = wrong.sort_values("round", kind="stable")
    return Mistakes(tuple(runs[0].classes.tolist()), pairs, examples.drop(columns="round"))


def image_rows(run: ImagePredictions) -> DataFrame:
    """A row for each image."""
    columns = {
        "image": run.indices,
        "label": run.labels.astype(np.int64),
        "prediction": run.top[:, 0].astype(np.int64),
        "confidence": np.exp(run.logits[:, 0] - run.log_sums),
        "probability": np.exp(run.label_logits - run.log_sums),
        # Paths may not be UTF-8, which pandas' own type of text is.
        "file": Series(run.paths.tolist() or "", index=range(len(run.labels)), dtype=object),
        "folder": Series(str(run.folder), index=range(len(run.labels)), dtype=object),
    }
    return DataFrame(columns)


class MistakesSection(NamedTuple):
    """What a page shows of a classifier's mistakes.

    Attributes:
        matrix: The confusion matrix; None if there are many classes.
        classes: Scores by class.
        gallery: The most confident mistakes of different confusions whose images can be read.
        unreadable: How many of them cannot.
    """

    mistakes: Mistakes
    matrix: Drawing | None
    classes: Grid
    gallery: list[dict[str, Any]]
    unreadable: int


def mistakes_section(
    mistakes: Mistakes, pictures: Sequence[Image.Image | None], name: str = "confusion"
) -> MistakesSection:
    """The section of a classifier's mistakes. ``pictures`` are those of the first examples, None for an image
    that cannot be read; ``name`` is that of the matrix and of its file.
    """
    gallery = []
    for example, picture in zip(mistakes.examples.itertuples(), pictures, strict=False):
        if picture is not None:
            prediction, label = mistakes.classes[example.prediction], mistakes.classes[example.label]
            captions = {
                "prediction": f"{prediction} {percent(example.confidence)}",
                "class": f"{label} {percent(example.probability)}",
            }
            alt = f"{label} taken for {prediction}"
            gallery.append(gallery_photo(picture, title=title_of(example), alt=alt, captions=captions))
    is_drawn = len(mistakes.classes) <= MAX_DRAWN
    matrix = confusion_map(mistakes.matrix(), mistakes.classes, name) if is_drawn else None
    grid = classes_grid(mistakes.class_scores())
    return MistakesSection(mistakes, matrix, grid, gallery, len(pictures) - len(gallery))


def percent(share: float) -> str:
    """A probability in whole percent; one that is small, but not 0, is not shown as 0."""
    return f"{100 * share:.0f}%" if share >= 0.005 or share == 0 else "<1%"


def confusion_map(images: Int[np.ndarray, "class class"], classes: Sequence[str], name: str) -> Drawing:
    """The confusion matrix: classes down, predictions across; the shade is the root of the share of the row,
    so that rare confusions are seen.
    """
    shares = images / np.maximum(images.sum(axis=1, keepdims=True), 1)
    count = len(classes)
    shade = np.empty((count, count, 4))
    shade[..., :3], shade[..., 3] = to_rgb(SHADE), np.where(images > 0, 0.1 + 0.8 * np.sqrt(shares), 0.03)
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
        axes.set(xlabel="prediction", ylabel="class")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    diagonal = f"{int(images.trace())} of {int(images.sum())} images are on the diagonal"
    size = (side + 0.085 * longest + 0.6, side + 0.085 * longest + 0.5)
    return Drawing(name, f"Confusion matrix: {diagonal}; the table has the confusions.", size, paint)


def shortened(name: str, most: int = 26) -> str:
    """A class name that fits beside a figure."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def classes_grid(scores: DataFrame) -> Grid:
    """Accuracy, precision and F1 of the ``WORST`` classes, the worst F1 first, and the means over all."""

    def row(label: str, images: int, *shares: float) -> GridRow:
        percent = (None if np.isnan(share) else Cell(100 * share) for share in shares)
        return GridRow(label, (Cell(images, decimals=0), *percent))

    ordered = scores.sort_values(["F1", "class"]).head(WORST)
    means = row("Mean of the classes", scores.images.sum(), scores.accuracy.mean(), np.nan, scores.F1.mean())
    rows = [means, *(row(*of_class) for of_class in ordered.itertuples(index=False, name=None))]
    note = (
        "Percent. Accuracy: share of a class's images that are classified correctly (recall); precision: "
        "share of the images predicted to be of the class that are; F1: their harmonic mean. The worst F1 "
        "first."
    )
    columns = ("Images", "Accuracy", "Precision", "F1")
    return Grid("classes", "Accuracy by class", "Class", columns, tuple(rows), (note,))
