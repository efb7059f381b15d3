"""The page of a bundle's classifier: its verdict, its mistakes, its calibration."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from pandas import DataFrame
from torch import Tensor

from dear.adapters.facts import BundleScores
from dear.adapters.operating import OperatingPoint, describe_decided, describe_point
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import evaluate_images
from dear.adapters.wording import list_metrics, verdict
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import leave_subsets
from dear.data.images.decode import as_image
from dear.data.images.transforms import load_test_views
from dear.evaluation.metrics import expected_error, reliability
from dear.evaluation.predictions import ImagePredictions, Predictions
from dear.reading.files import expanded
from dear.report.grid import csv_file
from dear.report.mistakes import find_mistakes, mistakes_section
from dear.report.plots import describe_calibration, reliability_diagram, risk_coverage_plot
from dear.report.render import render_page, write_page
from dear.writing import require_writable

PAGE = "evaluation.html"
MISTAKES = 24
THUMBNAIL = 224


@torch.no_grad()
def write_evaluation(
    folder: Path | str,
    predictor: Predictor,
    dataset: Dataset,
    *,
    split: str = "test",
    own_classes: bool = True,
    let_through: float | None = None,
) -> tuple[BundleScores, tuple[Path, ...]]:
    """Score a bundle, and write the page ``evaluation.html`` into a folder, with its
    tables and figures as files. ``let_through`` is the share of images of no class that look like one
    (`measure_others`), for the scores. Returns these and the files, the page first.

    Raises DataError as `evaluate_bundle`, OutputError for a folder that cannot be written to.
    """
    require_writable(Path(folder), "the page to", folder=True)
    scores, predictions, images = evaluate_images(predictor, dataset, split=split, own_classes=own_classes)
    scores = replace(scores, let_through=let_through)
    point = predictor.bundle.training.operating if own_classes else None
    return scores, write_page_of(folder, predictor, dataset.title, scores, predictions, images, point=point)


@torch.no_grad()
def write_page_of(
    folder: Path | str,
    predictor: Predictor,
    title: str,
    scores: BundleScores,
    predictions: Predictions,
    images: Images,
    *,
    point: OperatingPoint | None = None,
    by: str | None = None,
    groups: Sequence[tuple[Any, ...]] = (),
) -> tuple[Path, ...]:
    """Write the page of `write_evaluation` for what was found of a data set of this ``title``, and return its
    files. ``groups`` are rows of accuracy by what ``by`` names.
    """
    bundle, folder = predictor.bundle, expanded(folder)
    is_own = point is bundle.training.operating
    mistakes = find_mistakes([ImagePredictions.of(predictions, images)])
    whole, _ = leave_subsets(images, torch.arange(len(images)))  # of which the mistakes have the numbers
    pictures = [
        as_image(load_view(predictor, whole, index)).resize((THUMBNAIL, THUMBNAIL))
        for index in mistakes.examples.image[:MISTAKES]
    ]
    section = mistakes_section(mistakes, pictures)
    bins = reliability(predictions.probabilities().max(dim=1).values, predictions.correct)
    confidence, _ = predictions.probabilities().max(dim=1)
    threshold = None if point is None or point.by_class is not None else point.threshold
    coverage = risk_coverage_plot(confidence.numpy(), predictions.correct.numpy(), threshold)
    drawings = (section.matrix, reliability_diagram(bins), coverage)
    figures = {drawing.name: drawing for drawing in drawings if drawing is not None}
    f1 = f"{100 * mistakes.class_scores().F1.mean():.1f}%"
    metrics = {**list_metrics(scores, 1), "mean F1 of the classes": f1}
    text = render_page(
        "evaluation.html.j2",
        subject=f"{bundle.method} on {bundle.weights}",
        data=title,
        split=scores.split,
        verdict=verdict(scores),
        metrics=metrics,
        columns=next((n for n in (4, 3, 5) if len(metrics) % n != 1), 4),  # no tile alone in its row
        classes=scores.classes,
        section=section,
        figures=figures,
        bins=bins,
        calibration_error=100 * expected_error(bins),
        direction=describe_calibration(bins),
        left_out=scores.left_out,
        images=len(images),
        decisions=[*describe_point(point), *describe_decided(point, scores.decided if is_own else None)],
        by=by,
        groups=groups,
    )
    numbers = {name: value for name, value in vars(scores).items() if isinstance(value, int | float)}
    tables = mistakes.tables()
    if groups:
        columns = ["group", "images", "accuracy", "interval", "confusions"]
        tables["groups.csv"] = DataFrame(groups, columns=columns)
    tables["scores.csv"] = DataFrame({"score": [*numbers], "value": [*map(float, numbers.values())]})
    files = {name: csv_file(table) for name, table in tables.items()}
    return write_page(folder, PAGE, text, files, figures.values())


def load_view(predictor: Predictor, images: Images, index: int) -> UInt8[Tensor, "3 size size"]:
    """An image as the model sees it."""
    return load_test_views(images, torch.tensor([index]), predictor.clip.preprocess)[0]
