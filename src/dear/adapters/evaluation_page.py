"""The page of a bundle's classifier: its verdict, its mistakes, its calibration, attention of core heads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from pandas import DataFrame
from torch import Tensor

from dear.adapters.attention import attention_maps, overlay
from dear.adapters.facts import BundleScores
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import evaluate_images
from dear.adapters.wording import list_metrics, verdict
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import leave_subsets
from dear.data.images.decode import as_image
from dear.data.images.transforms import load_test_views, to_unit
from dear.evaluation.metrics import expected_error, reliability
from dear.evaluation.predictions import ImagePredictions, Predictions
from dear.methods.registry import frozen_clip
from dear.report.drawing import Drawing
from dear.report.grid import csv_file
from dear.report.mistakes import Mistakes, find_mistakes, mistakes_section
from dear.report.plots import (
    attention_figure,
    describe_calibration,
    reliability_diagram,
    training_curves,
)
from dear.report.render import render_page, write_page
from dear.roles.table import HeadRole, RoleTable
from dear.text import without_surrogates
from dear.writing import require_writable

PAGE = "evaluation.html"
MISTAKES = 24
THUMBNAIL = 224
SIDE = 160  # pixels of a picture with attention over it
MOST_SHOWN = 12
"""Core heads with attention: a role table may have 128 attributes."""


@dataclass(frozen=True)
class EvaluationPage:
    """The text of a page, its figures by name, the mistakes that it shows, and what is left out of it."""

    text: str
    figures: dict[str, Drawing]
    mistakes: Mistakes
    notes: list[str]


def write_evaluation(
    folder: Path | str,
    predictor: Predictor,
    dataset: Dataset,
    **options: Any,
) -> tuple[BundleScores, tuple[Path, ...]]:
    """Score a bundle, and write the page ``evaluation.html`` into a folder, with its tables and figures as
    files; ``options`` are those of `evaluation_page`. Returns the scores and the files, the page first.

    Raises DataError as `evaluate_bundle`, OutputError for a folder that cannot be written to.
    """
    require_writable(Path(folder), "the page to", folder=True)
    scores, page = evaluation_page(predictor, dataset, **options)
    numbers = {name: value for name, value in vars(scores).items() if isinstance(value, int | float)}
    tables = page.mistakes.tables()
    tables["scores.csv"] = DataFrame({"score": [*numbers], "value": [*map(float, numbers.values())]})
    files = {name: csv_file(table) for name, table in tables.items()}
    return scores, write_page(Path(folder), PAGE, page.text, files, page.figures.values())


@torch.no_grad()
def evaluation_page(
    predictor: Predictor,
    dataset: Dataset,
    *,
    split: str = "test",
    own_classes: bool = True,
    let_through: float | None = None,
) -> tuple[BundleScores, EvaluationPage]:
    """The scores of `evaluate_bundle` and their page. Each image is scored once; a few are read again for
    their attention. ``let_through`` is the share of images of no class that look like one (`measure_others`),
    for the scores. Raises as `evaluate_bundle`.
    """
    bundle = predictor.bundle
    scores, predictions, images = evaluate_images(predictor, dataset, split=split, own_classes=own_classes)
    scores = replace(scores, let_through=let_through)
    mistakes = find_mistakes([ImagePredictions.of(predictions, images)])
    whole, _ = leave_subsets(images, torch.arange(len(images)))  # of which the mistakes have the numbers
    pictures = [
        as_image(load_view(predictor, whole, index)).resize((THUMBNAIL, THUMBNAIL))
        for index in mistakes.examples.image[:MISTAKES]
    ]
    section = mistakes_section(mistakes, pictures)
    bins = reliability(predictions.probabilities().max(dim=1).values, predictions.correct)
    epochs = bundle.training.epochs
    losses, validated = [e.loss for e in epochs], [e.val for e in epochs if e.val is not None]
    curve = (
        training_curves({"": losses}, {"": validated} if validated else {}, "learning") if losses else None
    )
    attention, no_attention = _attention(predictor, images, predictions)
    drawings = (section.matrix, reliability_diagram(bins), curve, *attention)
    figures = {drawing.name: drawing for drawing in drawings if drawing is not None}
    seen = f"{scores.left_out} of {scores.left_out + len(images)} images, which the bundle was fitted on."
    no_curve = "" if epochs else "The learning curve: the bundle holds none (not trained in epochs)."
    notes = [*filter(None, (seen if scores.left_out else "", no_attention, no_curve))]
    f1 = f"{100 * mistakes.class_scores().F1.mean():.1f}%"
    metrics = {**list_metrics(scores, 1), "mean F1 of the classes": f1}
    text = render_page(
        "evaluation.html.j2",
        subject=f"{bundle.method} on {bundle.weights}",
        data=dataset.title,
        split=split,
        verdict=verdict(scores),
        metrics=metrics,
        columns=next((n for n in (4, 3, 5) if len(metrics) % n != 1), 4),  # no tile alone in its row
        classes=scores.classes,
        section=section,
        figures=figures,
        attention=attention,
        bins=bins,
        calibration_error=100 * expected_error(bins),
        direction=describe_calibration(bins),
        selected_epoch=bool(validated),
        notes=notes,
    )
    return scores, EvaluationPage(text, figures, mistakes, notes)


def _attention(predictor: Predictor, images: Images, predictions: Predictions) -> tuple[list[Drawing], str]:
    """Attention of the core heads, in the plain CLIP and in the adapted one, on the most confident image that
    is classified correctly and on the most confident one that is not; or why there is none.
    """
    heads = [] if predictor.bundle.roles is None else core_heads(predictor.bundle.roles)
    if not heads:
        method = predictor.bundle.method
        return [], f"Attention of core heads: the bundle's {method} has no table of core heads."
    plain = frozen_clip(predictor.clip)
    plain.set_classes(predictor.classes, predictor.bundle.templates)
    confidence = predictions.probabilities().max(dim=1).values
    paths: Sequence[str] | None = getattr(images, "paths", None)
    figures = list[Drawing]()
    for correct, outcome in ((True, "correctly"), (False, "wrongly")):
        candidates = predictions.correct == correct
        if not bool(candidates.any()):
            continue
        index = int(torch.where(candidates, confidence, -1.0).argmax())
        view = load_view(predictor, images, index)
        label = predictions.classes[int(predictions.labels[index])]
        name = f"image {index + 1}" if paths is None else without_surrogates(str(paths[index]))
        overlays, pixels = [], to_unit(view)
        for head in heads:
            adapted = attention_maps(predictor.method, pixels, head.layer, head.head)
            maps = {
                "plain CLIP, class": attention_maps(plain, pixels, head.layer, head.head)["class"],
                "adapted, class": adapted["class"],
                "adapted, its attribute": adapted.get(str(head.attribute)),
            }
            of_head = {token: overlay(pixels, grid, SIDE) for token, grid in maps.items() if grid is not None}
            overlays.append((head, of_head))
        title = f"{name} ({label}), classified {outcome}"
        figures.append(attention_figure(f"attention-{len(figures) + 1}", title, as_image(view), overlays))
    return figures, ""


def load_view(predictor: Predictor, images: Images, index: int) -> UInt8[Tensor, "3 size size"]:
    """An image as the model sees it."""
    return load_test_views(images, torch.tensor([index]), predictor.clip.preprocess)[0]


def core_heads(roles: RoleTable) -> list[HeadRole]:
    """For each attribute of a table the core head with the largest share of it, the last of equals; of at
    most ``MOST_SHOWN`` attributes, the first.
    """
    best: dict[str, HeadRole] = {}
    for head in sorted(roles.heads, key=lambda head: head.share.get(str(head.attribute), 0)):
        if head.attribute is not None:
            best[head.attribute] = head
    return [best[name] for name in roles.attributes if name in best][:MOST_SHOWN]
