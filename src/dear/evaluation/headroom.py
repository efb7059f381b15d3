"""How much a task has to teach: zero-shot and linear-probe accuracy on its training images."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.data.fewshot import base_novel
from dear.data.images.transforms import eval_views
from dear.methods.registry import frozen_clip


@dataclass(frozen=True)
class Headroom:
    """Percent of training images: zero-shot on each half of the classes, linear probe on the base half."""

    base: float
    novel: float
    probe: float


@torch.no_grad()
def headroom(clip: Clip, dataset: Dataset, shots: int = 16) -> Headroom:
    """Zero-shot accuracy on ``shots`` training images per class; a linear probe trains on the next ``shots``.

    A shift that can be learned leaves a wide gap between the two on the base classes; noise does not.
    """
    labels = dataset.train.labels
    halves = base_novel(len(dataset.classnames))
    measured = [_rows(labels, half, 0, shots) for half in halves]
    method = frozen_clip(clip)
    percent = []
    for half, rows in zip(halves, measured, strict=True):
        method.set_classes([dataset.classnames[label] for label in half], dataset.templates)
        scores = _features(clip, dataset, rows) @ method.frozen_text.T
        percent.append(100 * _accuracy(scores, labels[rows] - half[0]))
    taught = _rows(labels, halves[0], shots, 2 * shots)
    weights = linear_probe(_features(clip, dataset, taught), labels[taught])
    scores = _features(clip, dataset, measured[0]).to(weights) @ weights
    return Headroom(percent[0], percent[1], 100 * _accuracy(scores, labels[measured[0]]))


@torch.enable_grad()
def linear_probe(
    features: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], penalty: float = 3e-4
) -> Float[Tensor, "embed class"]:
    """Multinomial logistic regression with an L2 penalty, by L-BFGS in float64.

    Features are scaled by 20, because unit features alone would need large weights.
    """
    inputs = 20 * features.double()
    weights = torch.zeros(features.shape[1], int(labels.max()) + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(inputs @ weights, labels) + penalty * weights.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights.detach()


def _rows(labels: Tensor, classes: range, first: int, last: int) -> Int[Tensor, "item"]:
    """Row indices of images ``first`` to ``last`` (exclusive) of each class."""
    return torch.cat([(labels == label).nonzero()[first:last, 0] for label in classes])


def _features(clip: Clip, dataset: Dataset, rows: Int[Tensor, "item"]) -> Float[Tensor, "item embed"]:
    batches = [eval_views(dataset.train.load(batch), clip.image_size) for batch in rows.split(250)]
    like = clip.image.projection
    features = [clip.image(clip.normalize_pixels(views.to(like))) for views in batches]
    return normalize(torch.cat(features), dim=-1).cpu()


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return float((scores.argmax(dim=1) == labels.to(scores.device)).double().mean())
