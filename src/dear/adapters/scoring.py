"""Evaluate a bundle's classifier on a data set."""

import warnings
from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.adapters.calibration import calibration_error, log_loss
from dear.adapters.predictor import Predictor, Vocabulary
from dear.adapters.results import BundleScores
from dear.backbone.choice import warn_of_toy
from dear.backbone.precision import mixed
from dear.data.dataset import Dataset, Images
from dear.data.images.transforms import eval_views
from dear.data.sources.listing import first_few, plain_name
from dear.errors import DataError
from dear.methods.registry import frozen_clip
from dear.progress import Progress, silent

BATCH = 250

Watch = Callable[[Float[Tensor, "feature batch embed"], Float[Tensor, "batch class"]], None]
"""Is given the features and the scores of each batch."""


def unwatched(_features: Tensor, _logits: Tensor) -> None:
    """Look at nothing."""


def all_logits(known: Vocabulary, images: Images, watch: Watch = unwatched) -> Float[Tensor, "item class"]:
    """Scores of all images in the test view, on the CPU."""
    return logits_and_zero_shot(known, None, images, watch=watch)[0]


@torch.no_grad()
def logits_and_zero_shot(
    known: Vocabulary,
    plain: Vocabulary | None,
    images: Images,
    progress: Progress = silent,
    watch: Watch = unwatched,
) -> tuple[Float[Tensor, "item class"], Float[Tensor, "item class"]]:
    """The same, and those of the frozen backbone ``plain`` (empty without one), which goes on from the
    method's trunk outputs: each image is read, and goes through the first layers, once.
    """
    method, found, frozen = known.method, list[Tensor](), [torch.empty(0, len(known.classes))]
    like = method.clip.image.projection
    for chosen in torch.arange(len(images)).split(BATCH):
        views = eval_views(images.load(chosen), method.clip.image_size)
        with mixed(like.device, known.precision):
            trunk = method.image_trunk(views.to(like))
            features = method.image_features(trunk).to(like)
        found.append(method.logits(features, known.text, decoupled=known.decoupled).cpu())
        watch(features, found[-1])
        if plain is not None:
            with mixed(like.device, known.precision):
                rest = plain.method.continue_trunk(trunk, method.image_from)
                features = plain.method.image_features(rest).to(like)
            frozen.append(plain.method.logits(features, plain.text).cpu())
        progress("testing", min(int(chosen[-1]) + 1, len(images)), len(images))
    return torch.cat(found), torch.cat(frozen)


@torch.no_grad()
def evaluate_bundle(
    predictor: Predictor,
    dataset: Dataset,
    *,
    split: str = "test",
    own_classes: bool = True,
    cautious: bool = True,
    progress: Progress = silent,
    watch: Watch = unwatched,
) -> BundleScores:
    """Score a bundle on a split of a data set: among the bundle's classes, matched with the data set's by
    name or, where the names differ, by folder or label as in the data set that it was fitted on; or among the
    data set's own.

    Warns of the tiny CLIP on photographs, unless ``cautious`` is false because that has been told. Raises
    DataError for a split without images, or a class that the bundle does not have.
    """
    if cautious:
        warn_of_toy(predictor.bundle.model, world=dataset.world)
    images = images_of(dataset, split)
    known = predictor.vocabulary(None if own_classes else dataset.classnames)
    labels = places(known, dataset, predictor.bundle.keys)[images.labels.cpu()]
    plain = frozen_clip(predictor.clip)
    plain.set_classes(known.classes, predictor.bundle.templates)
    beside = Vocabulary.of(plain, known.precision)
    logits, frozen = logits_and_zero_shot(known, beside, images, progress, watch)
    ranked = logits.topk(min(5, len(known.classes)), dim=1).indices == labels[:, None]
    hits, t = ranked[:, 0], predictor.bundle.temperature
    return BundleScores(
        data=dataset.name,
        split=split,
        images=len(labels),
        classes=len(known.classes),
        accuracy=float(hits.double().mean()),
        top5=float(ranked.any(dim=1).double().mean()),
        zero_shot=float((frozen.argmax(dim=1) == labels).double().mean()),
        chance=1 / len(known.classes),
        log_loss=log_loss(logits, labels, t),
        calibration_error=calibration_error(logits, labels, t),
        per_class={
            name: float(hits[labels == at].double().mean())
            for at, name in enumerate(known.classes)
            if bool((labels == at).any())
        },
    )


def images_of(dataset: Dataset, split: str) -> Images:
    """The images of a split. Raises DataError if there are none."""
    images = {"train": dataset.train, "val": dataset.val, "test": dataset.test}[split]
    if images is None or not len(images):
        raise DataError(f"{dataset.name} has no {split} images.")
    return images


def places(
    known: Vocabulary, dataset: Dataset, fitted: Sequence[str], *, tell: bool = True
) -> Int[Tensor, "class"]:
    """The index of each of the data set's classes among the candidate classes; ``fitted`` are the folders or
    labels of the bundle's classes. Raises DataError for a class that is not among them; with ``tell`` warns
    of those that are known by folder or label alone.
    """
    by_name = {plain_name(name): at for at, name in enumerate(known.classes)}
    by_key = dict(zip(fitted, range(len(known.classes)), strict=False))
    found, told = list[int](), list[str]()
    for name, key in zip_longest(dataset.classnames, dataset.keys):
        at = by_name.get(plain_name(name))
        if at is None and (at := by_key.get(key)) is not None:
            told.append(f"{key} is {known.classes[at]}")
        if at is None:
            raise DataError(
                f"the data set's class {name!r} is not among the bundle's {len(known.classes)} classes: "
                "score among the data set's own with --classes data, or rename it with --dataset.classnames."
            )
        found.append(at)
    if told and tell:
        warnings.warn(
            f"{len(told)} classes have the names that the bundle has for these folders or labels: "
            f"{first_few(told)}",
            stacklevel=2,
        )
    return torch.tensor(found)
