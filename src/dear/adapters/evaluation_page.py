"""The page of a bundle's classifier: its mistakes, its calibration, where its core heads look, what its
features set apart.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from dear.adapters.attention import attention_maps, overlay
from dear.adapters.predictor import Predictor
from dear.adapters.results import BundleScores, shown_metrics
from dear.adapters.scoring import evaluate_images
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import leave_subsets
from dear.data.images.decode import as_image
from dear.data.images.transforms import load_test_views, to_unit
from dear.errors import installation, without_surrogates
from dear.evaluation.metrics import reliability
from dear.evaluation.predictions import ImagePredictions, Predictions
from dear.methods.base import Method
from dear.methods.registry import frozen_clip
from dear.report.evaluation_page import (
    AttentionExample,
    Evaluation,
    FeatureMap,
    HeadAttention,
    check_folder,
    write_evaluation_page,
)
from dear.report.mistakes import find_mistakes, mistakes_section
from dear.roles.table import HeadRole, RoleTable

MISTAKES = 24
MAPPED = 500  # images in the map of features
FEWEST = 10  # images for which a map is made
PERPLEXITY = 30.0
THUMBNAIL = 224
SIDE = 160  # pixels of a picture with attention over it
MOST_SHOWN = 12
"""Features with a map, and core heads with attention: a role table may have 128 attributes."""


def write_evaluation(
    folder: Path | str,
    predictor: Predictor,
    dataset: Dataset,
    *,
    split: str = "test",
    own_classes: bool = True,
) -> tuple[BundleScores, tuple[Path, ...]]:
    """Score a bundle as `evaluate_bundle`, and write the page ``evaluation.html`` into a folder, with its
    tables and figures as files. Returns the scores and the files, the page first.

    Raises DataError as `evaluate_bundle`, OutputError for a folder that cannot be written to.
    """
    check_folder(Path(folder))
    scores, evaluation = measure_bundle(predictor, dataset, split=split, own_classes=own_classes)
    return scores, write_evaluation_page(Path(folder), evaluation)


@torch.no_grad()
def measure_bundle(
    predictor: Predictor, dataset: Dataset, *, split: str = "test", own_classes: bool = True
) -> tuple[BundleScores, Evaluation]:
    """The scores of `evaluate_bundle` and what the page of an evaluation shows. Each image is scored once; a
    few are read again for their attention. Raises as `evaluate_bundle`.
    """
    bundle = predictor.bundle
    scores, predictions, images = evaluate_images(
        predictor, dataset, split=split, own_classes=own_classes, keep_features=True
    )
    mistakes = find_mistakes([ImagePredictions.of(predictions, images)])
    whole, _ = leave_subsets(images, torch.arange(len(images)))  # of which the mistakes have the numbers
    pictures = [
        as_image(_view(predictor, whole, index)).resize((THUMBNAIL, THUMBNAIL))
        for index in mistakes.examples.image[:MISTAKES]
    ]
    attention, no_attention = _attention(predictor, images, predictions)
    features, no_features = _feature_map(predictor.features, predictions)
    epochs = tuple(bundle.training.get("epochs") or ())
    seen = f"{scores.left_out} of {scores.left_out + len(images)} images, which the bundle was fitted on."
    no_curve = "" if epochs else "The learning curve: the bundle holds none (not trained in epochs)."
    f1 = f"{100 * mistakes.class_scores().F1.mean():.1f}%"
    evaluation = Evaluation(
        subject=f"{bundle.method} on {bundle.weights}",
        data=dataset.title,
        split=split,
        metrics={**shown_metrics(vars(scores), 1), "mean F1 of the classes": f1},
        mistakes=mistakes_section(mistakes, pictures),
        bins=reliability(predictions.probabilities().max(dim=1).values, predictions.correct),
        epochs=epochs,
        attention=attention,
        features=features,
        notes=tuple(filter(None, (seen if scores.left_out else "", no_attention, no_features, no_curve))),
    )
    return scores, evaluation


def _attention(
    predictor: Predictor, images: Images, predictions: Predictions
) -> tuple[tuple[AttentionExample, ...], str]:
    """Attention of the core heads, in the plain CLIP and in the adapted one, on the most confident image that
    is classified correctly and on the most confident one that is not; or why there is none.
    """
    heads = [] if predictor.bundle.roles is None else core_heads(predictor.bundle.roles)
    if not heads:
        method = predictor.bundle.method
        return (), f"Attention of core heads: the bundle's {method} has no table of core heads."
    plain = frozen_clip(predictor.clip)
    plain.set_classes(predictor.classes, predictor.bundle.templates)
    confidence = predictions.probabilities().max(dim=1).values
    paths: Sequence[str] | None = getattr(images, "paths", None)
    examples = []
    for correct, outcome in ((True, "correctly"), (False, "wrongly")):
        candidates = predictions.correct == correct
        if not bool(candidates.any()):
            continue
        index = int(torch.where(candidates, confidence, -1.0).argmax())
        view = _view(predictor, images, index)
        label = predictions.classes[int(predictions.labels[index])]
        name = f"image {index + 1}" if paths is None else without_surrogates(str(paths[index]))
        shown = tuple(_head_attention(predictor, plain, to_unit(view), head) for head in heads)
        examples.append(AttentionExample(as_image(view), f"{name} ({label}), classified {outcome}", shown))
    return tuple(examples), ""


def _head_attention(
    predictor: Predictor, plain: Method, pixels: Float[Tensor, "3 size size"], head: HeadRole
) -> HeadAttention:
    adapted = attention_maps(predictor.method, pixels, head.layer, head.head)
    maps = {
        "plain CLIP, class": attention_maps(plain, pixels, head.layer, head.head)["class"],
        "adapted, class": adapted["class"],
    }
    if head.attribute in adapted:
        maps["adapted, its attribute"] = adapted[head.attribute]
    overlays = {token: overlay(pixels, grid, SIDE) for token, grid in maps.items()}
    return HeadAttention(head.layer, head.head, str(head.attribute), overlays)


def _view(predictor: Predictor, images: Images, index: int) -> UInt8[Tensor, "3 size size"]:
    """An image as the model sees it."""
    return load_test_views(images, torch.tensor([index]), predictor.clip.preprocess)[0]


def core_heads(roles: RoleTable) -> list[HeadRole]:
    """For each attribute of a table the core head with the largest share of it, the last of equals; of at
    most ``MOST_SHOWN`` attributes, the first.
    """
    best: dict[str, HeadRole] = {}
    for head in roles.heads:
        if head.role == "core" and head.attribute is not None:
            other = best.get(head.attribute)
            if other is None or head.share.get(head.attribute, 0) >= other.share.get(head.attribute, 0):
                best[head.attribute] = head
    return [best[name] for name in roles.attributes if name in best][:MOST_SHOWN]


def _feature_map(names: Sequence[str], predictions: Predictions) -> tuple[FeatureMap | None, str]:
    """The plane of t-SNE for each feature, the first ``MOST_SHOWN``, of some images, evenly spaced, or why
    there is none. Source: van der Maaten and Hinton, 2008.
    """
    count = len(predictions.labels)
    if count < FEWEST:
        return None, f"A map of the features: {count} images are too few, {FEWEST} are needed."
    try:
        from sklearn.manifold import TSNE
    except ModuleNotFoundError:
        return None, f"A map of the features: it needs scikit-learn, {installation('roles')}."
    assert predictions.features is not None
    rows: Int[Tensor, item] = torch.linspace(0, count - 1, min(count, MAPPED)).long()
    features = predictions.features[rows]
    start = "pca" if features.shape[-1] > 1 else "random"  # a number alone has no second component
    plane = TSNE(perplexity=min(PERPLEXITY, (len(rows) - 1) / 3), init=start, random_state=0)
    points = {
        name: torch.from_numpy(plane.fit_transform(features[:, number].float().numpy()))
        for number, name in enumerate(names[:MOST_SHOWN])
    }
    note = f"Features beyond the first {MOST_SHOWN} of {len(names)}." if len(names) > MOST_SHOWN else ""
    return FeatureMap(points, predictions.labels[rows]), note
