"""What the page of an evaluation and the report of runs both show of a classifier's mistakes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dear.evaluation.diagnosis import ClassScore
from dear.report.diagnosis import Mistake
from dear.report.grid import Cell, Grid, GridRow
from dear.report.roles_pictures import data_url

THUMBNAIL = 112  # pixels
FOLDED = 20
"""Classes above which the table of classes is folded away."""


@dataclass(frozen=True)
class Shown:
    """A picture of the gallery: its data URL, its file, answer and class with their probabilities, and the
    text for those who cannot see it.
    """

    url: str
    name: str
    said: str
    right: str
    alternative: str


def classes_grid(scores: Sequence[ClassScore], worst: int | None = None) -> Grid:
    """Accuracy, precision and F1 by class, the worst F1 first, and their means over all classes; ``worst`` is
    how many classes have a row if not all.
    """
    ordered = sorted(scores, key=lambda score: (score.f1, score.name))
    rows = [
        GridRow(
            one.name,
            (
                Cell(one.images, decimals=0),
                Cell(100 * one.accuracy),
                None if one.precision is None else Cell(100 * one.precision),
                Cell(100 * one.f1),
            ),
        )
        for one in ordered[:worst]
    ]
    count = len(scores)
    means = [sum(values) / count for values in zip(*((s.accuracy, s.f1) for s in scores), strict=True)]
    total = sum(one.images for one in scores)
    mean = (Cell(total, decimals=0), Cell(100 * means[0]), None, Cell(100 * means[1]))
    return Grid(
        "classes",
        "Accuracy by class",
        "Class",
        ("Images", "Accuracy", "Precision", "F1"),
        (GridRow("Mean of the classes", mean), *rows),
        (
            "Percent. Accuracy: share of a class's images that are given the class (recall); precision: "
            "share of the images given the class that have it; F1: their harmonic mean. The worst F1 first.",
        ),
    )


def gallery(mistakes: Iterable[Mistake]) -> list[Shown]:
    """The mistakes as small pictures."""
    shown = []
    for one in mistakes:
        small = one.picture.copy()
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        said, right = f"{one.said} {_percent(one.confidence)}", f"{one.right} {_percent(one.probability)}"
        url = data_url(small, "JPEG", quality=80)
        shown.append(Shown(url, one.name, said, right, f"{one.right} taken for {one.said}"))
    return shown


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.005 or share == 0 else "<1%"
