"""Scores among trained and new classes at once, from what tests of each part computed."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dear.backbone.names import Precision
from dear.data.dataset import Images
from dear.evaluation.metrics import JointScores, compute_scores, separation
from dear.evaluation.predictions import Predictions, predict
from dear.methods.base import Method, TextFeatures
from dear.training.cache import Cache

AT_ONCE = 250  # images whose features are scored together


class Tested(NamedTuple):
    """What a test of a method computed: the scores for its record, and the predictions for some images."""

    scores: dict[str, Any]
    predictions: Predictions
    images: Images


@torch.no_grad()
def score_jointly(
    method: Method,
    parts: Sequence[Tested],
    *,
    frozen: Method,
    templates: Sequence[str],
    cache: Cache,
    precision: Precision,
    decoupled: bool,
) -> list[dict[str, Any]]:
    """The scores on the images of each part among the classes of all parts, which the method is set to in
    this order. Each was tested with its features kept; the method was trained on the classes of the first.
    ``decoupled`` scores the others by the class feature alone. They also have "auroc": how well the highest
    probability among the trained classes alone tells their images from those of the trained classes. Source
    of this score: Hendrycks and Gimpel, ICLR 2017.
    """
    scores, confidences, first = list[dict[str, Any]](), list[Tensor](), 0
    classes, trained = tuple(method.classnames), len(parts[0].predictions.classes)
    vocabulary = classes, _frozen_text(frozen, classes, tuple(templates), cache)
    for part in parts:
        zero_shot = predict(frozen, part.images, vocabulary=vocabulary, cache=cache, precision=precision)
        labels, features = part.predictions.labels + first, part.predictions.features
        assert features is not None, "they were kept"

        def encode(_: Images, features: Tensor = features) -> Sequence[Tensor]:
            batches: Sequence[Tensor] = features.split(AT_ONCE)
            return batches

        joint = predict(method, part.images, labels=labels, precision=precision, encode=encode)
        new_scores = joint.decoupled if decoupled else joint.fused
        joint = replace(
            joint,
            logits=torch.cat([joint.fused[:, :trained], new_scores[:, trained:]], dim=1),
            zero_shot=zero_shot.logits,
            new=tuple(range(trained, len(classes))),
        )
        scores.append(asdict(compute_scores(joint, JointScores)))
        confidences.append(joint.logits[:, :trained].double().softmax(dim=1).amax(dim=1))
        if first:
            scores[-1]["auroc"] = separation(confidences[0], confidences[-1])
        first += len(part.predictions.classes)
    return scores


def _frozen_text(
    frozen: Method, classes: tuple[str, ...], templates: tuple[str, ...], cache: Cache
) -> TextFeatures:
    like = frozen.clip.image.projection

    def compute() -> Tensor:
        frozen.set_classes(classes, templates)
        return frozen.frozen_text

    key = frozen.clip.identity.sha256, like.dtype, like.device, classes, templates
    return cache.get("text", key, compute)
