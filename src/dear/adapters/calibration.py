"""Calibration: the temperature of a classifier's logits."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

LOW, HIGH = 1e-2, 1e2
STEPS = 60


def best_temperature(logits: Float[Tensor, "item class"], labels: Int[Tensor, "item"]) -> float:
    """The temperature between 0.01 and 100 whose softmax(logits / T) has the lowest negative log-likelihood.

    The loss is convex in b = 1 / T, and its slope is the mean over items of E_p[z] - z_y: bisection over log
    b. If every item is classified correctly there is no best T, and the lowest is returned. Source: Guo et
    al., ICML 2017, section 4.2.
    """
    scores = logits.double()
    of_labels = scores.gather(1, labels[:, None]).mean()
    low, high = torch.tensor(1 / HIGH).double().log(), torch.tensor(1 / LOW).double().log()
    for _ in range(STEPS):
        middle = (low + high) / 2
        probabilities = (scores * middle.exp()).softmax(dim=1)
        slope = (probabilities * scores).sum(dim=1).mean() - of_labels
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float((-(low + high) / 2).exp())
