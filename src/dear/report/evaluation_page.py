"""The page of `dear eval`, and the files beside it: its tables, its figures and their numbers.
`dear.adapters.evaluation_page` measures what it shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from dear.errors import OutputError
from dear.evaluation.metrics import Bin, expected_error
from dear.report import evaluation_plots as plots
from dear.report.grid import csv_file
from dear.report.html import render_page
from dear.report.mistakes import MISTAKE_COLUMNS, MistakesSection, mistake_rows
from dear.report.svg import Drawing, figure_files
from dear.writing.folders import LIST, try_place, write_folder

PAGE = "evaluation.html"


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
        drawings.append(plots.reliability_diagram(self.bins))
        if self.epochs:
            drawings.append(plots.learning_curve(self.epochs))
        drawings += [
            plots.attention_figure(example.title, example.picture, example.heads, f"attention-{number}")
            for number, example in enumerate(self.attention, start=1)
        ]
        if self.features is not None:
            classes = self.mistakes.mistakes.classes
            drawings.append(plots.feature_map(self.features.points, self.features.labels.tolist(), classes))
        return {drawing.name: drawing for drawing in drawings}


def check_folder(folder: Path) -> None:
    """Raise OutputError if the folder of a page cannot be written to, before anything is computed."""
    try:
        try_place(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_evaluation_page(folder: Path, evaluation: Evaluation) -> tuple[Path, ...]:
    """Write the page, ``evaluation.html``, its tables as CSV, Markdown and LaTeX, and its figures as SVG,
    PNG, LaTeX and CSV; all files or none. Returns them, the page first. Raises OutputError.
    """
    figures = evaluation.figures()
    contents: dict[str, bytes] = {
        PAGE: evaluation_html(evaluation, figures).encode(),
        **evaluation.mistakes.classes.files(),
        "mistakes.csv": csv_file([MISTAKE_COLUMNS, *mistake_rows(evaluation.mistakes.mistakes)]),
        **figure_files(figures.values()),
    }
    try:
        write_folder(folder, {**contents, LIST: "\n".join(contents).encode()})
    except OSError as error:
        raise _unwritable(folder, error) from error
    return tuple(folder / name for name in contents)


def evaluation_html(evaluation: Evaluation, figures: Mapping[str, Drawing]) -> str:
    """The text of the page; a deterministic function of its input."""
    return render_page(
        "evaluation.html.j2",
        evaluation=evaluation,
        figures=figures,
        mistakes=evaluation.mistakes.mistakes,
        calibration_error=100 * expected_error(evaluation.bins),
        selected_epoch=any("val" in epoch for epoch in evaluation.epochs),
    )


def _unwritable(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write the page to {folder}: {error.strerror or error}; choose another --out.")
