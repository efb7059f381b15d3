"""How much a task has to teach: zero-shot, a linear probe and constants alone, on its training images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

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
    """Percent of training images that nothing was fitted on.

    Attributes:
        base: zero-shot on the base half of the classes, among these.
        novel: the same for the novel half.
        probe: linear probe of the frozen features, on the base half.
        bias_base: zero-shot scores with one constant for each class, fitted on other base images.
        bias_novel: these constants carried over to novel classes that share words with base ones.
    """

    base: float
    novel: float
    probe: float
    bias_base: float
    bias_novel: float


@torch.no_grad()
def headroom(clip: Clip, dataset: Dataset, shots: int = 16) -> Headroom:
    """Fit a linear probe and constants on the first ``shots`` training images of each base class; measure on
    the other training images of all classes.

    Looks that can be learned leave a wide gap between zero-shot and the probe; noise does not. Constants show
    how much of it is only that some classes win too often.
    """
    labels = dataset.train.labels
    base, novel = base_novel(len(dataset.classnames))
    names = [[dataset.classnames[label] for label in half] for half in (base, novel)]
    texts = [_texts(clip, half, dataset.templates) for half in names]
    taught, others = _rows(labels, base, 0, shots), _rows(labels, base, shots, len(labels))
    unknown = _rows(labels, novel, shots, len(labels))
    inputs, of_base = _features(clip, dataset, taught), _features(clip, dataset, others)
    on_base, on_novel = of_base @ texts[0], _features(clip, dataset, unknown) @ texts[1]
    constants = class_constants(inputs @ texts[0], labels[taught])
    probe = linear_probe(inputs, labels[taught])
    of_novel = carried_over(constants, *names)
    return Headroom(
        base=_percent(on_base, labels[others]),
        novel=_percent(on_novel, labels[unknown] - novel[0]),
        probe=_percent(of_base.double() @ probe, labels[others]),
        bias_base=_percent(on_base + constants, labels[others]),
        bias_novel=_percent(on_novel + of_novel, labels[unknown] - novel[0]),
    )


@torch.enable_grad()
def class_constants(
    scores: Float[Tensor, "item class"], labels: Int[Tensor, "item"], penalty: float = 1e-3
) -> Float[Tensor, "class"]:
    """One constant for each class, added to its scores: the minimum of the cross-entropy with an L2 penalty
    on their mean square, by L-BFGS in float64; centred.
    """
    inputs = scores.double()
    constants = torch.zeros(scores.shape[1], dtype=torch.float64, requires_grad=True)
    _minimize(
        lambda: cross_entropy(inputs + constants, labels) + penalty * constants.square().mean(), constants
    )
    found = constants.detach()
    return (found - found.mean()).float()


def carried_over(
    constants: Float[Tensor, "class"], base: Sequence[str], novel: Sequence[str]
) -> Float[Tensor, "novel"]:
    """Constants of novel classes: the mean over the words that base classes have too of the mean constant of
    those; 0 for a class without such words.
    """
    of_word: dict[str, list[float]] = {}
    for name, constant in zip(base, constants.tolist(), strict=True):
        for word in set(name.split()):
            of_word.setdefault(word, []).append(constant)
    found = []
    for name in novel:
        known = [fmean(of_word[word]) for word in sorted(set(name.split()) & of_word.keys())]
        found.append(fmean(known) if known else 0.0)
    return torch.tensor(found)


@torch.enable_grad()
def linear_probe(
    features: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], penalty: float = 3e-4
) -> Float[Tensor, "embed class"]:
    """Multinomial logistic regression with an L2 penalty, by L-BFGS in float64.

    Features are scaled by 20, because unit features alone would need large weights.
    """
    inputs = 20 * features.double()
    weights = torch.zeros(features.shape[1], int(labels.max()) + 1, dtype=torch.float64, requires_grad=True)
    _minimize(lambda: cross_entropy(inputs @ weights, labels) + penalty * weights.square().sum(), weights)
    return weights.detach()


def _minimize(loss: Callable[[], Tensor], parameters: Tensor) -> None:
    """Minimize a smooth convex loss in place."""
    optimizer = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def _rows(labels: Tensor, classes: range, first: int, last: int) -> Int[Tensor, "item"]:
    """Row indices of images ``first`` to ``last`` (exclusive) of each class."""
    return torch.cat([(labels == label).nonzero()[first:last, 0] for label in classes])


def _features(clip: Clip, dataset: Dataset, rows: Int[Tensor, "item"]) -> Float[Tensor, "item embed"]:
    batches = [eval_views(dataset.train.load(batch), clip.preprocess) for batch in rows.split(250)]
    like = clip.image.projection
    features = [clip.image(clip.normalize_pixels(views.to(like))) for views in batches]
    return normalize(torch.cat(features), dim=-1).cpu()


def _texts(clip: Clip, names: Sequence[str], templates: Sequence[str]) -> Float[Tensor, "embed class"]:
    """Text features divided by the temperature."""
    method = frozen_clip(clip)
    method.set_classes(names, templates)
    return (clip.scale * method.frozen_text.T).cpu()


def _percent(scores: Float[Tensor, "item class"], labels: Int[Tensor, "item"]) -> float:
    return 100 * float((scores.argmax(dim=1) == labels).double().mean())
