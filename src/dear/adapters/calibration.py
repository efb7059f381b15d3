"""The temperature of a bundle, by which the logits of its classes are divided."""

from collections.abc import Collection

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.adapters.results import FEWEST
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset
from dear.errors import DataError

LOW, HIGH = 1e-2, 1e2
"""Range of the temperature."""
STEPS = 60
"""Of its bisection."""


def calibration_images(images: Dataset, picked: Collection[int], calibrate: bool | None) -> Images | None:
    """Images to calibrate on: validation images, else the unused training images; None if that is not asked
    for, or without being asked if there are fewer than `FEWEST`.
    """
    if calibrate is False:
        return None
    held_out = images.val
    if held_out is None or not len(held_out):
        unused = sorted({*range(len(images.train))} - {*picked})
        held_out = Subset(images.train, torch.tensor(unused)) if unused else None
    if calibrate is None:
        return None if held_out is None or len(held_out) < FEWEST else held_out
    if held_out is None:
        raise DataError(
            f"{images.name} has no validation images, and all training images are used for training: "
            "there is nothing to calibrate on. Add a val/ folder, or limit the training images with --shots."
        )
    return held_out


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
    low, high = torch.tensor(1 / HIGH).double().log(), torch.tensor(1 / LOW).double().log()
    for _ in range(STEPS):
        middle = (low + high) / 2
        probabilities = (scores * middle.exp()).softmax(dim=1)
        slope = (probabilities * scores).sum(dim=1).mean() - of_labels
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float((-(low + high) / 2).exp())
