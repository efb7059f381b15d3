"""Calibration: a temperature for logits, and the calibration error of probabilities."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from dear.evaluation.diagnosis import expected_error, reliability

LOW, HIGH = 1e-2, 1e2
STEPS = 60


def best_temperature(logits: Float[Tensor, "item class"], labels: Int[Tensor, "item"]) -> float:
    """The temperature between 0.01 and 100 whose softmax(logits / T) has the lowest negative log-likelihood.

    The loss is convex in b = 1 / T, and its slope is the mean over items of E_p[z] - z_y: bisection over log
    b. If every item is classified correctly there is no best T, and the lowest is returned. Source: Guo et
    al., ICML 2017, section 4.2.
    """
    scores = logits.double()
    wanted = scores.gather(1, labels[:, None]).mean()
    low, high = torch.tensor(1 / HIGH).double().log(), torch.tensor(1 / LOW).double().log()
    for _ in range(STEPS):
        middle = (low + high) / 2
        shares = (scores * middle.exp()).softmax(dim=1)
        slope = (shares * scores).sum(dim=1).mean() - wanted
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float((-(low + high) / 2).exp())


def log_loss(
    logits: Float[Tensor, "item class"], labels: Int[Tensor, "item"], temperature: float = 1.0
) -> float:
    """Mean negative log-likelihood, in nats, of the labels under softmax(logits / T)."""
    return float(cross_entropy(logits.double() / temperature, labels))


def calibration_error(
    logits: Float[Tensor, "item class"], labels: Int[Tensor, "item"], temperature: float = 1.0
) -> float:
    """Expected calibration error (fraction): the mean gap between confidence and accuracy over 15 equal bins
    of confidence, weighted by their number of items. Source: Guo et al., ICML 2017, eq. 3.
    """
    confidence, guess = probabilities(logits, temperature).max(dim=1)
    return expected_error(reliability(confidence, guess == labels))


def probabilities(
    logits: Float[Tensor, "item class"], temperature: float = 1.0
) -> Float[Tensor, "item class"]:
    """softmax(logits / T), in float64."""
    return (logits.double() / temperature).softmax(dim=1)
