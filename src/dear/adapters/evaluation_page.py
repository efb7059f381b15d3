"""The page of a bundle's classifier: verdict, mistakes, calibration, and where its core heads attend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from pandas import DataFrame
from torch import Tensor

from dear.adapters.attention import attention_maps, overlay
from dear.adapters.by_group import GroupAccuracy
from dear.adapters.facts import BundleScores
from dear.adapters.operating import OperatingPoint
from dear.adapters.operating_words import describe_decided, describe_point
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import find_refused
from dear.adapters.wording import list_metrics, verdict
from dear.data.dataset import Images
from dear.data.fewshot import leave_subsets
from dear.data.images.decode import as_image
from dear.data.images.transforms import load_test_views, to_unit
from dear.evaluation.metrics import expected_error, reliability
from dear.evaluation.predictions import ImagePredictions, Predictions
from dear.methods.optional import token_layout
from dear.methods.registry import frozen_clip
from dear.reading.files import expanded
from dear.report.grid import csv_file
from dear.report.mistakes import find_mistakes, mistakes_section
from dear.report.plots import describe_calibration, reliability_diagram, risk_coverage_plot
from dear.report.render import data_url, render_page, write_page
from dear.roles.table import HeadRole, RoleTable
from dear.text import without_surrogates

PAGE = "evaluation.html"
MISTAKES = 24
THUMBNAIL = 224
SIDE = 160  # pixels of a picture with attention over it
MOST_HEADS = 12
"""Core heads with attention: a role table may have 128 attributes."""


@dataclass(frozen=True)
class ImageAttention:
    """Where core heads attend in an image, with a title: each with pictures by token, as data URLs."""

    title: str
    heads: Sequence[tuple[HeadRole, Mapping[str, str]]]


@torch.no_grad()
def write_evaluation_page(
    folder: Path | str,
    predictor: Predictor,
    title: str,
    scores: BundleScores,
    predictions: Predictions,
    images: Images,
    *,
    point: OperatingPoint | None = None,
    by: str | None = None,
    groups: Sequence[GroupAccuracy] = (),
) -> tuple[Path, ...]:
    """Write the page ``evaluation.html`` on a data set of this ``title`` into a folder, with its tables and
    figures as files, and return these, the page first. ``groups`` have the accuracy by what ``by`` names.
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
    refused = find_refused(predictor, predictions)
    if refused is not None:
        confidence = confidence.where(~refused.cpu(), 0)  # these are the last to be decided
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
        attention=attention_by_attribute(predictor, images, predictions),
        left_out=scores.left_out,
        images=len(images),
        decisions=[*describe_point(point), *describe_decided(point, scores.decided if is_own else None)],
        by=by,
        groups=[row.cells for row in groups],
    )
    numbers = {name: value for name, value in vars(scores).items() if isinstance(value, int | float)}
    tables = mistakes.tables()
    if groups:
        tables["groups.csv"] = DataFrame([row.cells for row in groups])
    tables["scores.csv"] = DataFrame({"score": [*numbers], "value": [*map(float, numbers.values())]})
    files = {name: csv_file(table) for name, table in tables.items()}
    return write_page(folder, PAGE, text, files, figures.values())


def attention_by_attribute(
    predictor: Predictor, images: Images, predictions: Predictions
) -> list[ImageAttention]:
    """Where the core head of each attribute attends, in the plain CLIP and under the mask, on the most
    confident image that is classified correctly and on the most confident one that is not. Empty for a method
    without attribute tokens, or without core heads.
    """
    method, roles = predictor.method, predictor.bundle.roles
    heads = [] if roles is None or not token_layout(method).tokens_by_name else core_heads(roles)
    heads = [head for head in heads if head.layer >= method.image_from]
    if not heads:
        return []
    plain = frozen_clip(predictor.clip)
    confidence = predictions.probabilities().max(dim=1).values
    paths: Sequence[str] | None = getattr(images, "paths", None)
    found = list[ImageAttention]()
    for is_right, outcome in ((True, "correctly"), (False, "wrongly")):
        candidates = predictions.correct == is_right
        if not bool(candidates.any()):
            continue
        index = int(torch.where(candidates, confidence, -1.0).argmax())
        label = predictions.classes[int(predictions.labels[index])]
        name = f"image {index + 1}" if paths is None else without_surrogates(str(paths[index]))
        pixels = to_unit(load_view(predictor, images, index)).to(predictor.clip.image.projection.device)
        pictures = list[tuple[HeadRole, dict[str, str]]]()
        for head in heads:
            under_mask = attention_maps(method, pixels, head.layer, head.head)
            maps = {
                "plain CLIP, class token": attention_maps(plain, pixels, head.layer, head.head)["class"],
                "under the mask, class token": under_mask["class"],
                f"under the mask, {head.attribute} token": under_mask[str(head.attribute)],
            }
            urls = {
                token: data_url(overlay(pixels, grid, SIDE), "JPEG", quality=80)
                for token, grid in maps.items()
            }
            pictures.append((head, urls))
        found.append(ImageAttention(f"{name} ({label}), classified {outcome}", pictures))
    return found


def core_heads(roles: RoleTable) -> list[HeadRole]:
    """For each attribute of a table the core head with the largest share of it, the last of equals; of at
    most `MOST_HEADS` attributes, the first.
    """
    best = dict[str, HeadRole]()
    for head in sorted(roles.heads, key=lambda head: head.share.get(str(head.attribute), 0)):
        if head.attribute is not None:
            best[head.attribute] = head
    return [best[name] for name in roles.attributes if name in best][:MOST_HEADS]


def load_view(predictor: Predictor, images: Images, index: int) -> UInt8[Tensor, "3 size size"]:
    """An image as the model sees it."""
    return load_test_views(images, torch.tensor([index]), predictor.clip.preprocess)[0]
