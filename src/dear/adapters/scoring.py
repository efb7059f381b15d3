"""Evaluate a bundle's classifier on a data set."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.adapters.calibration import calibration_error, log_loss
from dear.adapters.predictor import Predictor, Vocabulary
from dear.adapters.results import BundleScores
from dear.data.dataset import Dataset, Images
from dear.data.images.transforms import eval_views
from dear.data.sources.listing import plain_name
from dear.errors import DataError

BATCH = 250


@torch.no_grad()
def all_logits(known: Vocabulary, images: Images) -> Float[Tensor, "item class"]:
    """Scores of all images in the test view, on the CPU."""
    method, found = known.method, []
    for chosen in torch.arange(len(images)).split(BATCH):
        features = known.image_features(eval_views(images.load(chosen), method.clip.image_size))
        found.append(method.logits(features, known.text, decoupled=known.decoupled).cpu())
    return torch.cat(found)


def evaluate_bundle(
    predictor: Predictor, dataset: Dataset, *, split: str = "test", own_classes: bool = True
) -> BundleScores:
    """Score a bundle on a split of a data set: among the bundle's classes, matched with the data set's by
    name, or among the data set's own.

    Raises DataError for a split without images, or a class that the bundle does not have.
    """
    images = {"train": dataset.train, "val": dataset.val, "test": dataset.test}[split]
    if images is None or not len(images):
        raise DataError(f"{dataset.name} has no {split} images.")
    known = predictor.vocabulary(None if own_classes else dataset.classnames)
    labels = _places(known, dataset.classnames)[images.labels.cpu()]
    logits = all_logits(known, images)
    ranked = logits.topk(min(5, len(known.classes)), dim=1).indices == labels[:, None]
    hits, t = ranked[:, 0], predictor.bundle.temperature
    return BundleScores(
        data=dataset.name,
        split=split,
        images=len(labels),
        classes=len(known.classes),
        accuracy=float(hits.double().mean()),
        top5=float(ranked.any(dim=1).double().mean()),
        log_loss=log_loss(logits, labels, t),
        calibration_error=calibration_error(logits, labels, t),
        per_class={
            name: float(hits[labels == at].double().mean())
            for at, name in enumerate(known.classes)
            if bool((labels == at).any())
        },
    )


def _places(known: Vocabulary, classnames: tuple[str, ...]) -> Int[Tensor, "class"]:
    """The index of each of the data set's classes among the candidate classes."""
    places = {plain_name(name): at for at, name in enumerate(known.classes)}
    for name in classnames:
        if plain_name(name) not in places:
            raise DataError(
                f"the data set's class {name!r} is not among the bundle's {len(known.classes)} classes: "
                "score among the data set's own with --classes data, or rename it with --dataset.classnames."
            )
    return torch.tensor([places[plain_name(name)] for name in classnames])
