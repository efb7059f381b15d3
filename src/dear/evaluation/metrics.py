"""Accuracies of a method on labelled images. Accuracies are fractions."""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool
from torch import Tensor

from dear.data.dataset import Images
from dear.data.views import eval_views
from dear.methods.contract import Method
from dear.training.loop import trunk_facts
from dear.training.trunks import TrunkCache


@dataclass(frozen=True)
class Scores:
    """Accuracy among the method's classes, fused and by the class feature alone, and by class."""

    accuracy: float
    decoupled: float
    per_class: dict[str, float]


@torch.no_grad()
def evaluate(
    method: Method,
    images: Images,
    *,
    batch: int = 250,
    cache: TrunkCache | None = None,
    novel: bool = False,
) -> Scores:
    """Score a method on all images; text features are computed once. Ties go to the first class.

    ``novel`` says that the method was not trained on these classes: it is then scored as its authors do.
    """
    fused, decoupled = hits(method, images, batch=batch, cache=cache)
    if novel and method.novel_decoupled:
        fused = decoupled
    per_class = {
        name: float(fused[images.labels == label].double().mean())
        for label, name in enumerate(method.classnames)
        if bool((images.labels == label).any())
    }
    return Scores(float(fused.double().mean()), float(decoupled.double().mean()), per_class)


@torch.no_grad()
def hits(
    method: Method, images: Images, *, batch: int = 250, cache: TrunkCache | None = None
) -> tuple[Bool[Tensor, "item"], Bool[Tensor, "item"]]:
    """Which images are classified rightly: fused, and by the class feature alone."""
    cache = cache or TrunkCache(0)
    text = method.text_features()
    fused, decoupled = [], []
    for start in range(0, len(images), batch):
        chosen = torch.arange(start, min(start + batch, len(images)))
        key = (images.identity, *trunk_facts(method), start, batch)
        features = method.image_features(cache.get(key, partial(eval_trunk, method, images, chosen)))
        labels = images.labels[chosen]
        fused.append(method.logits(features, text).argmax(dim=1).cpu() == labels)
        if len(features) == 1:  # nothing to decouple
            decoupled.append(fused[-1])
        else:
            decoupled.append(method.logits(features, text, decoupled=True).argmax(dim=1).cpu() == labels)
    return torch.cat(fused), torch.cat(decoupled)


def eval_trunk(method: Method, images: Images, chosen: Tensor) -> Tensor:
    """Trunk outputs of images in the test view."""
    views = eval_views(images.load(chosen), method.clip.image_size)
    return method.image_trunk(views.to(method.clip.image.projection))
