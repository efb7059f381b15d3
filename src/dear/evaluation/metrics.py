"""Accuracies of a method on labelled images, as fractions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.backbone.choice import Precision
from dear.backbone.precision import mixed, precision_for
from dear.data.dataset import Images, Pictures
from dear.data.images.prefetch import prefetch
from dear.data.images.transforms import eval_views
from dear.methods.base import Method
from dear.training.batches import trunk_facts
from dear.training.trunks import TrunkCache


@dataclass(frozen=True)
class Scores:
    """Accuracy among the method's classes: fused, by the class feature alone, and per class."""

    accuracy: float
    decoupled: float
    per_class: dict[str, float]


@dataclass(frozen=True)
class Answers:
    """A method's answers on labelled images, on the CPU.

    Attributes:
        guesses: The class with the highest score, the first of equals.
        confidence: Its probability, the softmax of the scores.
        probability: That of the image's own class.
    """

    guesses: Int[Tensor, "item"]
    confidence: Float[Tensor, "item"]
    probability: Float[Tensor, "item"]


@torch.no_grad()
def evaluate(
    method: Method,
    images: Images,
    *,
    batch: int = 250,
    cache: TrunkCache | None = None,
    novel: bool = False,
    precision: Precision = "auto",
    watch: Callable[[Answers], None] | None = None,
) -> Scores:
    """Score a method on all images; text features are computed once. Ties go to the first class.

    ``novel`` means that the method was not trained on these classes or this data set: it is then scored as
    by its authors. ``precision`` is as in training; the scores themselves are computed in the type of the
    CLIP's weights, float32 but for 16-true. ``watch`` is given the answers that are scored.
    """
    said, alone = answers(method, images, batch=batch, cache=cache, precision=precision)
    if novel and method.novel_decoupled:
        said = alone
    if watch is not None:
        watch(said)
    labels = images.labels.cpu()
    fused, decoupled = said.guesses == labels, alone.guesses == labels
    per_class = {
        name: float(fused[images.labels == label].double().mean())
        for label, name in enumerate(method.classnames)
        if bool((images.labels == label).any())
    }
    return Scores(float(fused.double().mean()), float(decoupled.double().mean()), per_class)


@torch.no_grad()
def hits(
    method: Method,
    images: Images,
    *,
    batch: int = 250,
    cache: TrunkCache | None = None,
    precision: Precision = "auto",
) -> tuple[Bool[Tensor, "item"], Bool[Tensor, "item"]]:
    """Which images are classified correctly: fused, and by the class feature alone."""
    labels = images.labels.cpu()
    said, alone = answers(method, images, batch=batch, cache=cache, precision=precision)
    return said.guesses == labels, alone.guesses == labels


@torch.no_grad()
def answers(
    method: Method,
    images: Images,
    *,
    batch: int = 250,
    cache: TrunkCache | None = None,
    precision: Precision = "auto",
) -> tuple[Answers, Answers]:
    """The answers on all images: fused, and by the class feature alone."""
    like, precision = method.clip.image.projection, precision_for(method.clip, precision)
    with mixed(like.device, precision):
        text = method.text_features().to(like)
    seen = trunks(method, images, batch, cache or TrunkCache(0), precision)
    labels = images.labels.to(like.device).split(batch)
    fused, decoupled = [], []
    for own, trunk in zip(labels, seen, strict=True):
        with mixed(like.device, precision):
            features = method.image_features(trunk).to(like)
        fused.append(_said(method.logits(features, text), own))
        if len(features) == 1:  # nothing to decouple
            decoupled.append(fused[-1])
        else:
            decoupled.append(_said(method.logits(features, text, decoupled=True), own))
    return _joined(fused), _joined(decoupled)


Said = tuple[Int[Tensor, "batch"], Float[Tensor, "batch"], Float[Tensor, "batch"]]


def _said(logits: Float[Tensor, "batch class"], labels: Int[Tensor, "batch"]) -> Said:
    """The fields of `Answers` for a batch, on the device."""
    guesses, shares = logits.argmax(dim=1), logits.float().softmax(dim=1)
    first, own = (shares.gather(1, one[:, None])[:, 0] for one in (guesses, labels))
    return guesses, first, own


def _joined(batches: Sequence[Said]) -> Answers:
    """All batches, on the CPU: it waits for the GPU only here, not after each batch."""
    guesses, confidence, probability = (torch.cat(parts).cpu() for parts in zip(*batches, strict=True))
    return Answers(guesses, confidence, probability)


def trunks(
    method: Method, images: Images, batch: int, cache: TrunkCache, precision: Precision
) -> Iterator[Float[Tensor, "item token width"]]:
    """Trunk outputs of all images in the test view; images of the next batches are loaded in the background.
    An output cached at an earlier layer, for a method whose span begins there, is continued from that layer.
    """
    device, precision = method.clip.image.projection.device, precision_for(method.clip, precision)

    def key(start: int, layer: int) -> tuple[object, ...]:
        return (images.identity, *trunk_facts(method, precision, layer), start, batch)

    def held_at(start: int) -> int | None:
        layers = range(method.image_from, 0, -1)
        return next((layer for layer in layers if key(start, layer) in cache), None)

    batches = torch.arange(len(images)).split(batch)
    missing = [chosen for chosen in batches if held_at(int(chosen[0])) is None]
    with closing(prefetch(images, missing, device)) as ahead:
        waiting = {int(chosen[0]) for chosen in missing}
        for chosen in batches:
            start = int(chosen[0])
            pictures = next(ahead) if start in waiting else None

            def compute(
                start: int = start, chosen: Tensor = chosen, pictures: Pictures | None = pictures
            ) -> Tensor:
                layer = held_at(start)
                with mixed(device, precision):
                    if layer is not None:
                        return method.continue_trunk(cache[key(start, layer)], layer)
                    return eval_trunk(method, images.load(chosen) if pictures is None else pictures)

            yield cache.get(key(start, method.image_from), compute)


def eval_trunk(method: Method, pictures: Pictures) -> Float[Tensor, "item token width"]:
    """Trunk outputs of images in the test view."""
    views = eval_views(pictures, method.clip.image_size)
    return method.image_trunk(views.to(method.clip.image.projection.device))
