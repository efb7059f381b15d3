"""Calibrate a bundle: the temperature by which its probabilities fit images that it was not trained on."""

from collections.abc import Collection
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.results import FEWEST
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset
from dear.errors import DataError
from dear.evaluation.predictions import predict
from dear.evaluation.trial import Trial
from dear.training.trunks import TrunkCache

COLDEST, HOTTEST, BISECTIONS = 1e-2, 1e2, 60  # of the temperature


def calibration_images(dataset: Dataset, picked: Collection[int], calibrate: bool | None) -> Images | None:
    """Images to calibrate on: validation images, else the unused training images; None if that is not asked
    for, or without being asked if there are fewer than `FEWEST`.
    """
    if calibrate is False:
        return None
    held_out = dataset.val
    if held_out is None or not len(held_out):
        unused = sorted({*range(len(dataset.train))} - {*picked})
        held_out = Subset(dataset.train, torch.tensor(unused)) if unused else None
    if calibrate is None:
        return None if held_out is None or len(held_out) < FEWEST else held_out
    if held_out is None:
        raise DataError(
            f"{dataset.name} has no validation images, and all training images are used for training: "
            "there is nothing to calibrate on. Add a val/ folder, or limit the training images with --shots."
        )
    return held_out


def calibrate_bundle(bundle: Bundle, trial: Trial, images: Images | None) -> Bundle:
    """The bundle with the best temperature for these images; as it is without any."""
    if images is None:
        return bundle
    cache = TrunkCache(0, trial.context.cache.store)
    held_out = predict(trial.method, images, precision=trial.run.training.precision, cache=cache)
    temperature = best_temperature(held_out.logits.float(), held_out.labels)
    return replace(
        bundle, temperature=temperature, training={**bundle.training, "calibration_images": len(images)}
    )


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
