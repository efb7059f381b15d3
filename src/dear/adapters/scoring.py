"""Evaluate a bundle's classifier on a data set."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.adapters.predictor import Predictor
from dear.adapters.results import BundleScores
from dear.backbone.choice import warn_of_toy
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset
from dear.data.images.photos import HASH_BYTES, image_hashes
from dear.data.sources.folder import image_files
from dear.data.sources.listing import first_few, plain_name
from dear.errors import DataError, SettingsError, warn
from dear.evaluation.metrics import measure
from dear.evaluation.predictions import Predictions, predict
from dear.methods.registry import frozen_clip
from dear.progress import Progress, silent

COLDEST, HOTTEST, BISECTIONS = 1e-2, 1e2, 60  # of the temperature


def evaluate_bundle(
    predictor: Predictor,
    dataset: Dataset,
    *,
    split: str = "test",
    own_classes: bool = True,
    progress: Progress = silent,
) -> BundleScores:
    """Score a bundle on a split of a data set: among the bundle's classes, matched with the data set's by
    name or, where the names differ, by folder or label as in the data set that it was fitted on; or among the
    data set's own.

    Test images that the bundle was fitted on are left out, with a warning, and there is one of the tiny CLIP
    on photographs. Raises DataError for a split without (other) images, or a class that the bundle does not
    have, BundleError for results that are no numbers.
    """
    warn_of_toy(predictor.bundle.model, world=dataset.world)
    dataset, left_out = unseen(dataset, split, predictor.bundle.image_hashes)
    return score(
        predictor, dataset, split=split, own_classes=own_classes, left_out=left_out, progress=progress
    )[0]


@torch.no_grad()
def score(
    predictor: Predictor,
    dataset: Dataset,
    *,
    split: str = "test",
    own_classes: bool = True,
    left_out: int = 0,
    keep_features: bool = False,
    progress: Progress = silent,
) -> tuple[BundleScores, Predictions]:
    """The scores of a bundle on all images of a split, ``left_out`` being those left out of it before, and
    the predictions that they are computed from, with those of the frozen backbone.
    """
    images, bundle = images_of(dataset, split), predictor.bundle
    vocabulary = predictor.vocabulary(None if own_classes else dataset.classnames)
    frozen = frozen_clip(predictor.clip)
    frozen.set_classes(vocabulary.classes, bundle.templates)
    predictions = predict(
        vocabulary.method,
        images,
        labels=matched_classes(vocabulary.classes, dataset, bundle.keys)[images.labels.cpu()],
        vocabulary=(vocabulary.classes, vocabulary.text),
        frozen=frozen,
        novel=vocabulary.decoupled,
        precision=vocabulary.precision,
        temperature=bundle.temperature,
        keep_features=keep_features,
        progress=progress,
    )
    predictor.require_finite(predictions.logits, predictions.decoupled)
    facts: dict[str, Any] = {
        "data": dataset.name,
        "split": split,
        "images": len(images),
        "left_out": left_out,
    }
    if predictor.limit > -math.inf and predictions.frozen is not None:
        refused = predictor.refused(predictions.frozen, predictions.predicted, vocabulary.classes)
        facts["refused"] = float(refused.double().mean())
    return measure(predictions, BundleScores, classes=len(vocabulary.classes), **facts), predictions


def measure_others(predictor: Predictor, folder: Path | str) -> float:
    """The share of the images in a folder, of no class of the bundle, that look like one of its classes.
    Raises DataError for a folder without images, SettingsError for a bundle that refuses nothing.
    """
    if predictor.limit == -math.inf:
        raise SettingsError(
            f"{predictor.bundle.title} refuses no image: fit it with more images of each class."
        )
    return float(1 - predictor.none_of_these([*image_files(Path(folder))]).mean())


def unseen(dataset: Dataset, split: str, hashes: bytes) -> tuple[Dataset, int]:
    """A data set without the test images that a bundle with these ``image_hashes`` was fitted on, and how
    many these are, with a warning. Other splits, which are asked for by name, stay as they are. Raises
    DataError if no test image is left.
    """
    known = {hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)}
    seen = [digest in known for digest in image_hashes(dataset.test)] if known and split == "test" else []
    if not any(seen):
        return dataset, 0
    if all(seen):
        raise DataError(
            f"`dear fit` was given all {len(seen)} test images of {dataset.name} to train on: test on other "
            "images."
        )
    warn(f"{dataset.name}: {sum(seen)} of {len(seen)} test images are left out: `dear fit` trained on them")
    test = Subset(dataset.test, torch.tensor(seen).logical_not().nonzero().flatten())
    return replace(dataset, test=test), sum(seen)


def images_of(dataset: Dataset, split: str) -> Images:
    """The images of a split. Raises DataError if there are none."""
    images = {"train": dataset.train, "val": dataset.val, "test": dataset.test}[split]
    if images is None or not len(images):
        raise DataError(f"{dataset.name} has no {split} images.")
    return images


def matched_classes(
    classes: Sequence[str], dataset: Dataset, bundle_keys: Sequence[str]
) -> Int[Tensor, "class"]:
    """The number of each of the data set's classes among the candidate classes; ``bundle_keys`` are the
    folders or labels of the bundle's classes. Warns of those that are matched by folder or label alone;
    raises DataError for a class that is not among them.
    """
    by_name = {plain_name(name): number for number, name in enumerate(classes)}
    by_key = dict(zip(bundle_keys, range(len(classes)), strict=False))
    numbers, renamed = list[int](), list[str]()
    for name, key in zip_longest(dataset.classnames, dataset.keys):
        number = by_name.get(plain_name(name))
        if number is None and (number := by_key.get(key)) is not None:
            renamed.append(f"{key} is {classes[number]}")
        if number is None:
            raise DataError(
                f"the data set's class {name!r} is not among the bundle's {len(classes)} classes: "
                "score among the data set's own with --classes data, or rename it with --dataset.classnames."
            )
        numbers.append(number)
    if renamed:
        warn(f"the names that the bundle has for these folders or labels are used: {first_few(renamed)}")
    return torch.tensor(numbers)


def best_temperature(logits: Float[Tensor, "item class"], labels: Int[Tensor, "item"]) -> float:
    """The temperature between 0.01 and 100 whose softmax(logits / T) has the lowest negative log-likelihood.

    The loss is convex in b = 1 / T, and its slope is the mean over items of E_p[z] - z_y: bisection over log
    b. If every item is classified correctly there is no best T, for none contradicts any confidence, and T is
    1. Source: Guo et al., ICML 2017, section 4.2.
    """
    if bool((logits.argmax(dim=1) == labels).all()):
        return 1.0
    scores = logits.double()
    of_labels = scores.gather(1, labels[:, None]).mean()
    low, high = torch.tensor(1 / HOTTEST).double().log(), torch.tensor(1 / COLDEST).double().log()
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        probabilities = (scores * middle.exp()).softmax(dim=1)
        slope = (probabilities * scores).sum(dim=1).mean() - of_labels
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float((-(low + high) / 2).exp())
