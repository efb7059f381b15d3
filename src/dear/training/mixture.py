"""Weights for several variants of a method, learned together with them: the differentiable choice of one."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dear.backbone.precision import mixed, precision_for
from dear.data.dataset import Images
from dear.data.images.transforms import eval_views
from dear.errors import SettingsError, TrainingDiverged
from dear.methods.base import Method
from dear.training.batches import Batches
from dear.training.devices import make_fabric
from dear.training.settings import TrainSettings
from dear.training.trunks import TrunkCache

AT_ONCE = 100
"""Validation images in a step of the weights, as the batches of tests in CoOp's code."""

ADVICE = "Try a lower learning rate."

Progress = Callable[[int, list[float]], None]


def mixture_weights(
    methods: Sequence[Method],
    images: Images,
    val: Images,
    settings: TrainSettings,
    *,
    seed: int,
    weight_lr: float = 0.02,
    progress: Progress = lambda _epoch, _weights: None,
) -> list[list[float]]:
    """Train variants of a method as one classifier whose scores are their mixture; returns the mixture's
    weights after each epoch, which sum to 1.

    Each step is one of SGD for the parameters of all variants, on a batch of ``images``, and one of Adam for
    the weights, on the next batch of ``val``: both lower the cross-entropy of sum_v softmax(a)_v scores_v.
    The variants have their classes set, and their spans begin at the same layer of the image tower.

    Source: the attribute search of ATPrompt, arXiv 2412.09442; github.com/zhengli97/ATPrompt at 86980a1,
    trainers/attributecompute.py. Differs from the code: weights start equal, where the code draws them, and
    in a short search the draw decides; they see all of ``val`` in turn, where the code takes its first batch
    in every step; no part is cast to half precision.

    Raises SettingsError for no variants or ones that differ in their trunk, or no images; TrainingDiverged at
    the first loss that is not finite.
    """
    if len({method.image_from for method in methods}) != 1:
        raise SettingsError("a mixture needs variants whose spans begin at one layer of the image tower.")
    if not len(images) or not len(val):
        raise SettingsError("a mixture needs images to train on and images to choose with.")
    first = methods[0]
    settings = replace(settings, precision=precision_for(first.clip, settings.precision))
    device = first.clip.image.projection.device
    for method in methods:
        method.text_chunk = settings.text_chunk
    raw = nn.Parameter(torch.zeros(len(methods), device=device))
    parameters = [one for method in methods for one in method.trainable]
    sgd = torch.optim.SGD(
        parameters, settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    adam = torch.optim.Adam([raw], weight_lr, betas=(0.5, 0.999))
    fabric = make_fabric(device, settings.precision)
    batches = Batches(first, images, settings, seed, fabric, TrunkCache(0), None)
    held, history, step = _in_turn(first, val, settings), [], 0
    for epoch in range(settings.epochs):
        for group in sgd.param_groups:
            group["lr"] = settings.lr_at(epoch)
        for batch in batches.of(epoch):
            step += 1
            with mixed(device, settings.precision):
                found = _scores(methods, batch.trunk)
            _take(sgd, _loss(found, raw.detach(), images.labels[batch.chosen].to(device)), step)
            trunk, labels = next(held)
            with torch.no_grad(), mixed(device, settings.precision):
                found = _scores(methods, trunk)
            _take(adam, _loss(found, raw, labels), step)
        history.append(raw.detach().softmax(dim=0).tolist())
        progress(epoch + 1, history[-1])
    return history


def _take(optimizer: torch.optim.Optimizer, loss: Tensor, step: int) -> None:
    if not math.isfinite(loss.item()):
        raise TrainingDiverged(step, ADVICE)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _scores(
    methods: Sequence[Method], trunk: Float[Tensor, "batch token width"]
) -> Float[Tensor, "variant batch class"]:
    return torch.stack(
        [method.logits(method.image_features(trunk), method.text_features()) for method in methods]
    )


def _loss(
    scores: Float[Tensor, "variant batch class"],
    raw: Float[Tensor, "variant"],
    labels: Int[Tensor, "batch"],
) -> Float[Tensor, ""]:
    """Cross-entropy of the mixture of scores, in float32 or wider."""
    weights = raw.softmax(dim=0)
    return cross_entropy(torch.einsum("v,vbc->bc", weights, scores.to(weights.dtype)), labels)


def _in_turn(
    method: Method, images: Images, settings: TrainSettings
) -> Iterator[tuple[Float[Tensor, "batch token width"], Int[Tensor, "batch"]]]:
    """Trunk outputs of the test views of images and their labels, batch after batch without an end."""
    device = method.clip.image.projection.device
    known: dict[int, Tensor] = {}
    parts = torch.arange(len(images)).split(AT_ONCE)
    while True:
        for at, chosen in enumerate(parts):
            if at not in known:
                views = eval_views(images.load(chosen), method.clip.image_size)
                with mixed(device, settings.precision):
                    known[at] = method.image_trunk(views.to(device))
            yield known[at], images.labels[chosen].to(device)
