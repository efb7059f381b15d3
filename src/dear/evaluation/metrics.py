"""The metrics of a classifier, each a function of its predictions, as fractions unless stated otherwise.

A new metric is a function here, named in `METRICS`; a result has it once a field bears its name: `Scores` and
`JointScores` for run records, `dear.adapters.facts.BundleScores` for bundles.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from dear.data.dataset import Images
from dear.data.fewshot import items_by_class
from dear.evaluation.predictions import Predictions, predict
from dear.methods.base import Method

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BINS = 15
Result = TypeVar("Result", bound="DataclassInstance")


@dataclass(frozen=True)
class Scores:
    """The scores of one part of a run's results, as run records have them. ``accuracy`` is as the method's
    authors score the part: by all features ("fused") or by the class feature alone ("decoupled").
    """

    accuracy: float
    fused: float
    decoupled: float
    log_loss: float
    calibration_error: float
    per_class: dict[str, float]


@dataclass(frozen=True)
class JointScores:
    """The scores of the images of the trained classes, or of the new ones, among the classes of both."""

    accuracy: float
    decoupled: float
    zero_shot_for_new: float
    per_class: dict[str, float]


def evaluate(method: Method, images: Images, **options: Any) -> Scores:
    """Score a method on all images; ``options`` are those of `predict`."""
    return compute_scores(predict(method, images, **options), Scores)


def compute_scores(predictions: Predictions, result: type[Result], **facts: Any) -> Result:
    """Fill in a result: a field that has the name of a metric gets its value, the others are ``facts``."""
    names = [field.name for field in fields(result) if field.name in METRICS]
    return result(**facts, **{name: METRICS[name](predictions) for name in names})


def accuracy(predictions: Predictions) -> float:
    """Share of the images that are classified correctly."""
    return _share(predictions.correct)


def fused(predictions: Predictions) -> float:
    """Accuracy by all features."""
    return _share(predictions.fused.argmax(dim=1) == predictions.labels)


def decoupled(predictions: Predictions) -> float:
    """Accuracy by the class feature alone."""
    return _share(predictions.decoupled.argmax(dim=1) == predictions.labels)


def top5(predictions: Predictions) -> float:
    """Share of the images whose class is among the five with the highest logits."""
    ranked = predictions.logits.topk(min(5, len(predictions.classes)), dim=1).indices
    return _share((ranked == predictions.labels[:, None]).any(dim=1))


def zero_shot(predictions: Predictions) -> float:
    """Accuracy of the frozen backbone, which must have been evaluated."""
    return _share(predictions.zero_shot_correct)


def zero_shot_for_new(predictions: Predictions) -> float:
    """Accuracy where the classes that the method was not trained on have the scores of the frozen backbone,
    which must have been evaluated.
    """
    assert predictions.zero_shot is not None
    new = [*predictions.new]
    logits = predictions.logits.clone()
    logits[:, new] = predictions.zero_shot[:, new].to(logits)
    return _share(logits.argmax(dim=1) == predictions.labels)


def gained(predictions: Predictions) -> int:
    """How many images are classified correctly, but not by the frozen backbone."""
    return int((predictions.correct & ~predictions.zero_shot_correct).sum())


def lost(predictions: Predictions) -> int:
    """How many images are classified correctly by the frozen backbone alone."""
    return int((~predictions.correct & predictions.zero_shot_correct).sum())


def chance(predictions: Predictions) -> float:
    """Accuracy of always naming the class with the most images; of guessing, if all images are of one."""
    counts = torch.bincount(predictions.labels)
    largest = float(counts.max() / counts.sum()) if int((counts > 0).sum()) > 1 else 0.0
    return max(largest, 1 / len(predictions.classes))


def log_loss(predictions: Predictions) -> float:
    """Mean negative log-likelihood of the labels, in nats."""
    logits = predictions.logits.double() / predictions.temperature
    return float(cross_entropy(logits, predictions.labels))


def calibration_error(predictions: Predictions) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy over 15 equal bins of
    confidence, weighted by their number of images. Source: Guo et al., ICML 2017, eq. 3.
    """
    confidence, predicted = predictions.probabilities().max(dim=1)
    return expected_error(reliability(confidence, predicted == predictions.labels))


def confidence(predictions: Predictions) -> float:
    """Mean probability of the predicted class."""
    return float(predictions.probabilities().max(dim=1).values.mean())


def per_class(predictions: Predictions) -> dict[str, float]:
    """Accuracy of each class that has images."""
    correct, count = predictions.correct, len(predictions.classes)
    images_of = zip(predictions.classes, items_by_class(predictions.labels, count), strict=True)
    return {name: _share(correct[images]) for name, images in images_of if len(images)}


def class_images(predictions: Predictions) -> dict[str, int]:
    """How many images each class has, if it has any."""
    counts = torch.bincount(predictions.labels, minlength=len(predictions.classes)).tolist()
    return {name: count for name, count in zip(predictions.classes, counts, strict=True) if count}


def confusions(predictions: Predictions) -> tuple[tuple[str, str, int], ...]:
    """The three most frequent confusions: the class, the predicted one, and how many images."""
    wrong = ~predictions.correct
    pairs = Counter(
        zip(predictions.labels[wrong].tolist(), predictions.predicted[wrong].tolist(), strict=True)
    )
    names = predictions.classes
    ranked = sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple((names[label], names[predicted], images) for (label, predicted), images in ranked[:3])


def separation(known: Float[Tensor, "item"], new: Float[Tensor, "item"]) -> float:
    """How well a score tells images of known classes from those of new ones: the area under the ROC curve,
    which is the share of pairs in which the image of a known class has the higher score, ties counting half.
    1 is perfect, 0.5 is chance.
    """
    ranked, scores = known.double().sort().values, new.double()
    below = torch.searchsorted(ranked, scores).double()
    tied = torch.searchsorted(ranked, scores, right=True).double() - below
    return float((len(ranked) - below - tied / 2).mean() / len(ranked))


METRICS: dict[str, Callable[[Predictions], Any]] = {
    metric.__name__: metric
    for metric in (
        accuracy, fused, decoupled, top5, zero_shot, zero_shot_for_new, gained, lost, chance, log_loss,
        calibration_error, confidence, confusions, per_class, class_images,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Bin:
    """The images whose confidence is above ``low`` and at most ``high``; means are 0 if there are none."""

    low: float
    high: float
    images: int
    confidence: float
    accuracy: float


def reliability(confidence: Float[Tensor, "item"], correct: Bool[Tensor, "item"]) -> tuple[Bin, ...]:
    """Accuracy and mean confidence in 15 equal bins of confidence. Source: Guo et al., ICML 2017."""
    bins = []
    numbers: Int[Tensor, item] = (confidence.double() * BINS).ceil().long().clamp(1, BINS) - 1
    for number in range(BINS):
        inside = numbers == number
        images = int(inside.sum())
        means = (float(confidence[inside].double().mean()), _share(correct[inside])) if images else (0.0, 0.0)
        bins.append(Bin(number / BINS, (number + 1) / BINS, images, *means))
    return tuple(bins)


def expected_error(bins: Sequence[Bin]) -> float:
    """The expected calibration error: the gaps of the bins, weighted by their images."""
    gaps = sum(bin.images * abs(bin.accuracy - bin.confidence) for bin in bins)
    return gaps / sum(bin.images for bin in bins)


def _share(correct: Bool[Tensor, "item"]) -> float:
    return float(correct.double().mean())
