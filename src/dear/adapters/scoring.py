"""Evaluate a bundle's classifier on a data set, or on its own training images by cross-validation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.calibration import fit_temperature
from dear.adapters.facts import CROSS_VALIDATION, FEWEST_TO_CALIBRATE, BundleScores, SteeredScores
from dear.adapters.leftout import LeftOut, LeftOutScores
from dear.adapters.operating import (
    DECIDED,
    Decided,
    OperatingGoal,
    OperatingPoint,
    choose_point,
    measure_point,
)
from dear.adapters.predictor import Predictor
from dear.adapters.vocabulary import Vocabulary
from dear.backbone.names import warn_of_toy
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset
from dear.data.images.photos import group_names, image_hashes, name_image, split_hashes
from dear.data.loading import as_dataset
from dear.data.settings import DataSettings
from dear.data.sources.class_names import plain_name, with_spaces, without_zeros
from dear.data.sources.shards import find_images
from dear.errors import DataError, SettingsError, warn
from dear.evaluation.metrics import compute_scores
from dear.evaluation.predictions import Encode, Predictions, predict
from dear.evaluation.trial import Trial
from dear.methods.registry import frozen_clip
from dear.progress import Progress, silent
from dear.stats import group_share_interval, paired_difference
from dear.text import FEW, list_names
from dear.training.cache import Cache

SUREST = 3
"""Wrong images that are named, because what can be decided depends on them."""


def evaluate_bundle(
    predictor: Predictor | Bundle | Path | str,
    dataset: Any,
    *,
    split: str = "test",
    own_classes: bool = True,
    progress: Progress = silent,
) -> BundleScores:
    """Score a bundle, or its folder or name on the hub, on a split of a data set, or of what `load_dataset`
    takes, where all images of data without a split are test images: among the bundle's
    classes, matched with the data set's by name or, where the names differ, by folder or label as in the data
    set that it was fitted on; or among the data set's own.

    Test images that the bundle was fitted on are left out, with a warning, and there is one of the tiny CLIP
    on photographs. Raises DataError for a split without (other) images, a picture with several labels, or a
    class that the bundle does not have, BundleError for results that are no numbers.
    """
    dataset = as_dataset(dataset, DataSettings().with_test_share(1.0).skip_broken())
    how: dict[str, Any] = {"split": split, "own_classes": own_classes, "progress": progress}
    return evaluate_images(Predictor.of(predictor), dataset, **how)[0]


@torch.no_grad()
def evaluate_images(
    predictor: Predictor,
    dataset: Dataset,
    *,
    split: str = "test",
    own_classes: bool = True,
    is_unseen: bool = False,
    cache: Cache | None = None,
    encode: Encode | None = None,
    progress: Progress = silent,
) -> tuple[BundleScores, Predictions, Images]:
    """The scores of `evaluate_bundle`, the predictions that they are computed from, with those of the frozen
    backbone, and the images. ``is_unseen`` says that the bundle was fitted on none of them: then neither
    this is checked, nor is there a warning about the tiny CLIP. ``cache`` and ``encode`` are as in `predict`.
    """
    bundle, left_out = predictor.bundle, 0
    dataset.require_single_labels()
    if not is_unseen:
        warn_of_toy(bundle.model, world=dataset.world, advice="fit without --model")
        dataset, left_out = without_fitted_images(dataset, split, bundle.image_hashes)
    images = {"train": dataset.train, "val": dataset.val, "test": dataset.test}[split]
    if images is None or not len(images):
        raise DataError(f"{dataset.name} has no {split} images.")
    vocabulary = predictor.vocabulary(None if own_classes else dataset.classnames)
    labels = matched_classes(vocabulary.classes, dataset, bundle.keys if own_classes else ())
    frozen = frozen_clip(predictor.clip)
    frozen.set_classes(vocabulary.classes, bundle.templates)
    options: dict[str, Any] = {"frozen": frozen, "cache": cache, "encode": encode, "progress": progress}
    options["keep_features"] = vocabulary.unchanged is not None
    predictions = predict_images(predictor, images, labels[images.labels.cpu()], vocabulary, **options)
    facts: dict[str, Any] = {"data": dataset.name, "split": split, "images": len(images)}
    if split == "test":
        twins = find_twins_of_training(dataset, images)
        facts |= {"twins": int(twins.sum()), "twins_right": int((twins & predictions.correct).sum())}
        facts |= count_groups(predictions, group_names(images))
    refused, refusal = find_refused(predictor, predictions), predictor.refusal(vocabulary.classes)
    if refused is not None and refusal is not None:
        facts["refused"] = float(refused.double().mean())
        unknown = [
            name for name, known in zip(vocabulary.classes, refusal.has_evidence, strict=True) if not known
        ]
        if unknown:
            warn(
                '"none of these" hardly works with a class that has no two training images '
                f"({list_names(unknown, FEW)}): what is taken for it, as most other things are, is never "
                "refused"
            )
    if predictions.features is not None and vocabulary.unchanged is not None:
        facts["steered"] = compare_weights(vocabulary, vocabulary.unchanged, predictions, group_names(images))
    if own_classes and vocabulary.unchanged is None:
        point = bundle.training.operating
        facts["decided"] = measure_decided(point, predictions, group_names(images), refused)
    scores = compute_scores(
        predictions, BundleScores, classes=len(vocabulary.classes), left_out=left_out, **facts
    )
    return scores, predictions, images


def predict_images(
    predictor: Predictor,
    images: Images,
    labels: Int[Tensor, "item"],
    vocabulary: Vocabulary | None = None,
    **options: Any,
) -> Predictions:
    """What a bundle predicts of images with these labels, among its own classes or a vocabulary; ``options``
    are further ones of `predict`. Raises BundleError for results that are no numbers.
    """
    vocabulary = vocabulary or predictor.vocabulary()
    predictions = predict(
        vocabulary.method,
        images,
        labels=labels,
        vocabulary=(vocabulary.classes, vocabulary.text),
        decoupled=vocabulary.decoupled,
        precision=vocabulary.precision,
        temperature=predictor.bundle.temperature,
        **options,
    )
    predictor.require_finite(predictions.logits, predictions.decoupled)
    return predictions


def count_groups(predictions: Predictions, groups: Sequence[Any]) -> dict[str, Any]:
    """How many groups images are from, and the intervals of the accuracy and of the gain by these."""
    right, was_right = (of.double().numpy() for of in (predictions.correct, predictions.zero_shot_correct))
    gain = paired_difference(right - was_right, groups)
    interval = group_share_interval(right, groups)
    return {"groups": len({*groups}), "interval": interval, "gain_interval": (gain.low, gain.high)}


def compare_weights(
    steered: Vocabulary, own: Vocabulary, predictions: Predictions, groups: Sequence[Any]
) -> SteeredScores:
    """The steered predictions beside those by the bundle's own weights, from the features that they hold."""
    assert predictions.features is not None
    parts = predictions.features.split(own.method.clip.image.images_at_once)
    logits = torch.cat([own.logits(part.transpose(0, 1).to(own.text)).cpu() for part in parts])
    is_right, was_right = predictions.correct, logits.argmax(dim=1) == predictions.labels
    gain = paired_difference(is_right.double().numpy() - was_right.double().numpy(), groups)
    return SteeredScores(
        steered.weights() or {},
        own.weights() or {},
        float(was_right.double().mean()),
        int((is_right & ~was_right).sum()),
        int((was_right & ~is_right).sum()),
        (gain.low, gain.high),
    )


def find_twins_of_training(dataset: Dataset, images: Images) -> Bool[Tensor, "item"]:
    """Which images are near-duplicates of training images of a data set, or in a group with them. None are
    in the Attribute World, which draws each image anew.
    """
    if not all(len(part) and image_hashes(part, [0]) for part in (dataset.train, images)):
        return torch.zeros(len(images), dtype=torch.bool)
    trained = {*group_names(dataset.train)}
    return torch.tensor([name in trained for name in group_names(images)], dtype=torch.bool)


def find_refused(predictor: Predictor, predictions: Predictions) -> Bool[Tensor, "item"] | None:
    """Which images look like none of the predicted classes; None if nothing is refused."""
    refusal = predictor.refusal(predictions.classes)
    if predictions.frozen is None or refusal is None:
        return None
    like = predictor.own_vocabulary.text
    refused: Tensor = refusal(predictions.frozen.to(like), predictions.predicted.to(like.device))
    return refused


def measure_others(predictor: Predictor, folder: Path | str) -> tuple[float, int, int | None]:
    """The share of the images in a folder, of no class of the bundle, that look like one of its classes, how
    many images there are, and how many of them its operating point decides; None without one. Raises
    DataError for a folder without images, SettingsError for a bundle that refuses nothing.
    """
    if predictor.refusal_threshold == -math.inf:
        raise SettingsError(
            f"{predictor.bundle.title} refuses no image: fit it with more images of each class."
        )
    found = predictor.predict(find_images(folder, DataSettings()), 1)
    decided = sum(one.decision == DECIDED for one in found) if any(one.decision for one in found) else None
    return 1 - sum(one.none_of_these for one in found) / len(found), len(found), decided


def without_fitted_images(
    dataset: Dataset, split: str, hashes: bytes, *, need_others: bool = True
) -> tuple[Dataset, int]:
    """A data set without the test images that a bundle with these ``image_hashes`` was fitted on, and how
    many these are, with a warning. Other splits, which are asked for by name, stay as they are. Raises
    DataError if no test image is left although others are needed.
    """
    known = split_hashes(hashes)
    seen = [digest in known for digest in image_hashes(dataset.test)] if known and split == "test" else []
    if not any(seen):
        return dataset, 0
    if all(seen) and need_others:
        raise DataError(
            f"`dear fit` was given all {len(seen)} test images of {dataset.name} to train on: test on other "
            "images."
        )
    warn(f"{dataset.name}: {sum(seen)} of {len(seen)} test images are left out: `dear fit` trained on them")
    test = Subset(dataset.test, torch.tensor(seen).logical_not().nonzero().flatten())
    return replace(dataset, test=test), sum(seen)


def matched_classes(
    classes: Sequence[str], dataset: Dataset, bundle_keys: Sequence[str]
) -> Int[Tensor, "class"]:
    """As `find_classes` for the classes of a data set. Raises DataError for one that is not there."""
    numbers = list[int]()
    found = find_classes(classes, bundle_keys, dataset.classnames, dataset.keys)
    for name, number in zip(dataset.classnames, found, strict=True):
        if number is None:
            raise DataError(
                f"the data set's class {name!r} is not among the bundle's {len(classes)} classes: "
                "score among the data set's own with --classes data, or rename it with --dataset.classnames."
            )
        numbers.append(number)
    return torch.tensor(numbers)


def find_classes(
    classes: Sequence[str], bundle_keys: Sequence[str], names: Sequence[str], keys: Sequence[str]
) -> list[int | None]:
    """The number of each named class among the candidate classes, None for one that is not there; ``keys``
    are the folders or labels of these, ``bundle_keys`` those of the candidates. Warns of those that are
    matched by folder or label alone. A name that is only the folder or label counts last.
    """
    by_name = {plain_name(name): number for number, name in enumerate(classes)}
    pairs = zip(bundle_keys, range(len(classes)), strict=False)
    by_key = {without_zeros(key): number for key, number in pairs}
    numbers, renamed = list[int | None](), list[str]()
    for name, key in zip_longest(names, keys):
        of_name, of_key = by_name.get(plain_name(name)), by_key.get(without_zeros(key or ""))
        is_named = name != with_spaces(key or "")
        number = of_key if of_name is None or (of_key is not None and not is_named) else of_name
        if number is not None and number != of_name:
            renamed.append(f"{key} is {classes[number]}")
        numbers.append(number)
    if renamed:
        warn(
            f"the names that the bundle has for these folders or labels are used: {list_names(renamed, FEW)}"
        )
    return numbers


@dataclass(frozen=True)
class CrossValidation:
    """What a fit promises by its training images, each predicted by a fit without it.

    Attributes:
        images, groups: The images, and the number of the group of each.
        refused: Which of them look like none of the classes, each where it is left out; None if none can.
    """

    scores: BundleScores
    predictions: Predictions
    images: Images
    groups: Sequence[int]
    refused: Bool[Tensor, "image"] | None = None


@torch.no_grad()
def cross_validate(
    bundle: Bundle,
    trial: Trial,
    left_out: LeftOut,
    choice: LeftOutScores,
    ranks: Float[Tensor, "picture"] | None = None,
) -> CrossValidation:
    """The accuracy that a fit promises, over all training images that can be left out: each is scored by the
    whole procedure, the choice and the temperature too, repeated without its part of the images. ``ranks``
    are those of the pictures that are left out of `Bundle.known`.

    With few images the temperature is 1, as that of the bundle is.
    """
    logits, labels, groups = choice.scores[0].clone(), choice.labels, choice.groups
    for fold in choice.folds[0].unique():
        others = choice.folds[0] != fold
        if len(groups[others].unique()) >= FEWEST_TO_CALIBRATE:
            logits[~others] /= fit_temperature(choice.scores[0][others], labels[others], groups[others])[0]
    frozen = left_out.frozen_features()[choice.judged.to(trial.method.clip.image.projection.device)]
    zero_shot = trial.method.clip.scale * frozen @ trial.method.frozen_text.T
    predictions = Predictions(
        bundle.classes, labels, logits, logits, logits, zero_shot=zero_shot.cpu(), frozen=frozen.cpu()
    )
    facts: dict[str, Any] = {"data": bundle.training.data, "split": CROSS_VALIDATION, "left_out": 0}
    facts |= {"images": len(labels), "classes": len(bundle.classes)}
    facts |= count_groups(predictions, groups.tolist())
    scores = compute_scores(predictions, BundleScores, **facts)
    refused = None
    if bundle.known is not None and ranks is not None:
        is_known = torch.isin(predictions.predicted.cpu(), bundle.known.classes.cpu())
        refused = is_known & (ranks.cpu()[choice.judged.cpu()] <= bundle.known.threshold(bundle.refuse))
    images = Subset(left_out.pictures, choice.judged.cpu())
    return CrossValidation(scores, predictions, images, groups.tolist(), refused)


def choose_operating_point(
    goal: OperatingGoal,
    predictions: Predictions,
    images: Images,
    groups: Sequence[Any],
    split: str,
    refused: Bool[Tensor, "item"] | None,
) -> OperatingPoint:
    """The operating point for a goal, from predictions of images that the bundle was not fitted on and the
    groups that these are in. Those that are ``refused`` as of none of the classes go to a person.
    """
    probabilities, labels = predictions.probabilities().cpu().numpy(), predictions.labels.cpu().numpy()
    is_refused = np.zeros(len(labels), dtype=bool) if refused is None else refused.cpu().numpy()
    point = choose_point(goal, probabilities, labels, groups, predictions.classes, split, is_refused)
    wrong = (~is_refused & (probabilities.argmax(axis=1) != labels)).nonzero()[0]
    surest = wrong[np.argsort(-probabilities.max(axis=1)[wrong], kind="stable")][:SUREST].tolist()
    if goal.precision is not None and surest:
        names = list_names([name_image(images, item) for item in surest], SUREST)
        warn(
            f"these images are wrong although they are the surest of all, look at their labels first: {names}"
        )
    return point


def decide_images(
    point: OperatingPoint, predictions: Predictions, refused: Bool[Tensor, "item"] | None
) -> Int[np.ndarray, "item"]:
    """What an operating point decides of images (`OperatingPoint.decide`)."""
    probabilities = predictions.probabilities().cpu().numpy()
    is_refused = None if refused is None else refused.cpu().numpy()
    return point.decide(probabilities, predictions.classes, is_refused)


def measure_decided(
    point: OperatingPoint | None,
    predictions: Predictions,
    groups: Sequence[Any],
    refused: Bool[Tensor, "item"] | None = None,
) -> Decided | None:
    """What an operating point decides of images on which it was not chosen; None without a point. Those that
    are ``refused`` as of none of the classes go to a person.
    """
    if point is None:
        return None
    probabilities, labels = predictions.probabilities().cpu().numpy(), predictions.labels.cpu().numpy()
    is_refused = None if refused is None else refused.cpu().numpy()
    return measure_point(point, probabilities, labels, groups, predictions.classes, is_refused)
