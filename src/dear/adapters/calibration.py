"""Calibrate a bundle: the temperature by which its probabilities fit images that it was not fitted on."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.adapters.facts import FEWEST_TO_CALIBRATE
from dear.adapters.leftout import LeftOutScores
from dear.curation.wrong_labels import score_labels
from dear.data.dataset import Images
from dear.data.images.photos import number_groups
from dear.evaluation.predictions import predict
from dear.evaluation.trial import Trial
from dear.methods.optional import keep_known_scores
from dear.methods.stacking import SCORES_AT_ONCE
from dear.text import plural

COLDEST, HOTTEST = 1e-2, 1e2  # of the temperature
EXACT = 1e-12
"""How near its logarithm is to the best one."""
ENOUGH_LABELS, MOST_WRONG = 100, 0.25
"""From so many groups on, labels that look wrong take no part, unless they are more than this share: with few
images, or classes that are hardly told apart, right labels look wrong too.
"""


@dataclass(frozen=True)
class Calibration:
    """The temperature of a bundle.

    Attributes:
        images, doubted: How many images it was fitted on, and how many were left aside because their labels
            look wrong.
        missing: Why it could not be fitted.
    """

    temperature: float = 1.0
    images: int = 0
    doubted: int = 0
    missing: str = ""


def calibrate(trial: Trial, images: Images) -> Calibration:
    """The best temperature for images that a trained method was not fitted on."""
    precision, cache = trial.run.training.precision, trial.session.cache
    keep_known_scores(trial.method)
    held_out = predict(trial.method, images, precision=precision, cache=cache)
    numbers = number_groups(images)
    groups = torch.arange(len(held_out.labels)) if numbers is None else numbers
    return _calibrate(held_out.logits.float(), held_out.labels, groups)


def calibrate_by_left_out(left_out: LeftOutScores) -> Calibration:
    """The best temperature for training images that were left out of a fit; with fewer than
    `FEWEST_TO_CALIBRATE` groups of them it says that they are too few.
    """
    images, groups = len(left_out.labels), len(left_out.groups.unique())
    if groups < FEWEST_TO_CALIBRATE:
        of_groups = f" of {plural(groups, 'group')}" if groups < images else ""
        reason = f"only {plural(images, 'training image')}{of_groups} can be left out, and none is spared"
        return Calibration(missing=reason)
    return _calibrate(left_out.scores[0], left_out.labels, left_out.groups)


def _calibrate(
    logits: Float[Tensor, "item class"], labels: Int[Tensor, "item"], groups: Int[Tensor, "item"]
) -> Calibration:
    temperature, is_used = fit_temperature(logits, labels, groups)
    images = int(is_used.sum())
    return Calibration(temperature, images, len(labels) - images)


def fit_temperature(
    logits: Float[Tensor, "item class"], labels: Int[Tensor, "item"], groups: Int[Tensor, "item"]
) -> tuple[float, Bool[Tensor, "item"]]:
    """The best temperature for labels that do not look wrong, and which these are, among the classes of the
    labels, so that classes by name alone do not change it. Wrong labels, which a classifier rightly
    contradicts, would make it too modest. All are used where they are of fewer groups than `ENOUGH_LABELS`,
    more than `MOST_WRONG` of them are taken to be wrong, or the classifier mostly is.
    """
    labels, with_images = labels.to(logits.device), labels.unique().to(logits.device)
    logits, labels = logits[:, with_images], torch.searchsorted(with_images, labels)
    of_images = score_labels(logits, labels)
    is_right = float((logits.argmax(dim=1) == labels).double().mean())
    is_believed = (
        len(groups.unique()) >= ENOUGH_LABELS and of_images.wrong_share <= MOST_WRONG and is_right > 1 / 2
    )
    is_believed = is_believed and of_images.is_precise
    is_used = ~of_images.looks_wrong if is_believed else torch.ones_like(of_images.looks_wrong)
    per_group = len(labels) / len(groups.unique())
    return best_temperature(logits[is_used], labels[is_used], per_group), is_used


def best_temperature(
    logits: Float[Tensor, "item class"], labels: Int[Tensor, "item"], per_group: float = 1
) -> float:
    """The temperature between 0.01 and 100 whose softmax(logits / T) has the lowest negative log-likelihood.

    The loss is convex in b = 1 / T, and its slope is the mean over items of E_p[z] - z_y: its root is found
    over log b. Source: Guo et al., ICML 2017, section 4.2. If every item is classified correctly, any
    confidence fits the better the larger it is; then one more item, like the mean of these, is taken to be of
    its second best class [ours]. If items are in groups of ``per_group`` on average, a whole group more is,
    whatever is correct: a few groups say little, and their items err together [ours].
    """
    from scipy.optimize import brentq  # predictions do without it

    scores = logits.double()
    labels = labels.to(scores.device)
    of_labels = scores.gather(1, labels[:, None]).mean()
    if scores.shape[1] > 1 and (per_group > 1 or bool((scores.argmax(dim=1) == labels).all())):
        items, seconds = len(labels), scores.topk(2, dim=1).values[:, 1]
        of_labels = (items * of_labels + per_group * seconds.mean()) / (items + per_group)
    parts = scores.split(max(1, SCORES_AT_ONCE // scores.shape[1]))

    def slope(logarithm: float) -> float:
        factor = math.exp(logarithm)
        expected = sum(float(((part * factor).softmax(dim=1) * part).sum()) for part in parts)
        return expected / len(scores) - float(of_labels)

    low, high = math.log(1 / HOTTEST), math.log(1 / COLDEST)
    if slope(low) >= 0:
        return HOTTEST
    if slope(high) <= 0:
        return COLDEST
    return math.exp(-brentq(slope, low, high, xtol=EXACT))
