"""The weights of the terms of scores, fitted to images that the terms have not seen, none below its least
(Breiman, Stacked Regressions, Machine Learning 24, 1996).
"""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

STEPS = 100
"""Most steps of the solver; it stops earlier where nothing changes."""
ENOUGH = 1e-8
"""Largest derivative of the objective, by weights that can change, at which they are taken."""
ROUNDING = 1e-13
"""Share of the objective that is not worth a step."""
SCORES_AT_ONCE = 2**17
"""Scores that are computed together: the numbers of more images leave the processor's cache."""

Values = Float[Tensor, "term row class"]
Batches = Callable[[], Iterable[tuple[Values, Int[Tensor, "row"]]]]
"""The terms of images and their labels, a few images at a time."""


@torch.no_grad()
def fit_term_weights(batches: Batches, least: Float[Tensor, "term"], penalty: float) -> Float[Tensor, "term"]:
    """Weights of terms, at least ``least``, that minimize the mean cross-entropy of the weighted sums, plus
    ``penalty`` times their squares: a convex problem. A term that does not help gets its least weight.

    Newton's method with step halving, where each step minimizes the quadratic approximation among the weights
    that are allowed.
    """
    # From where the probabilities are neither even nor sure, since a step tells little there.
    weights = least + _derivatives(batches, torch.zeros_like(least), penalty)[2].diagonal().rsqrt()
    loss, gradient, curvature = _derivatives(batches, weights, penalty)
    for _ in range(STEPS):
        free = (weights > least) | (gradient < 0)
        if not free.any() or gradient[free].abs().max() < ENOUGH:
            break
        step = _newton_step(weights - least, gradient, curvature)
        if -gradient @ step <= ROUNDING * loss:  # what is left to gain is rounding
            break
        size = 1.0
        while size > ENOUGH:
            trial = torch.maximum(weights + size * step, least)
            at_trial = _derivatives(batches, trial, penalty)
            if at_trial[0] <= loss + 1e-4 * size * gradient @ step:
                break
            size /= 2
        else:
            break
        weights, (loss, gradient, curvature) = trial, at_trial
    return weights


def _newton_step(
    above: Float[Tensor, "term"], gradient: Float[Tensor, "term"], curvature: Float[Tensor, "term term"]
) -> Float[Tensor, "term"]:
    """The step to the least value of the quadratic approximation where no weight is below its least, which is
    a problem of nonnegative least squares. ``above`` is how far each is above.
    """
    from scipy.optimize import nnls  # predictions do without it

    scale = curvature.diagonal().rsqrt()  # terms differ by orders of magnitude
    values, axes = torch.linalg.eigh(scale[:, None] * curvature * scale)
    error = torch.finfo(values.dtype).eps * len(values) * values.max()
    roots = values.maximum(error).sqrt()
    matrix = roots[:, None] * axes.T
    target = matrix @ (above / scale) - axes.T @ (scale * gradient) / roots
    solution, _ = nnls(matrix.cpu().numpy(), target.cpu().numpy())
    return scale * torch.from_numpy(solution).to(above) - above


def _derivatives(
    batches: Batches, weights: Float[Tensor, "term"], penalty: float
) -> tuple[Float[Tensor, ""], Float[Tensor, "term"], Float[Tensor, "term term"]]:
    """The objective of the weights, its gradient and its second derivatives."""
    loss, gradient, items = weights.new_zeros(()), torch.zeros_like(weights), 0
    curvature = weights.new_zeros(len(weights), len(weights))
    for values, labels in batches():
        logarithms = torch.tensordot(weights, values, dims=1).log_softmax(dim=1)
        picked = torch.arange(len(labels), device=labels.device), labels
        loss = loss - logarithms[picked].sum()
        probabilities = logarithms.exp()
        centered = values - (values * probabilities).sum(dim=2, keepdim=True)
        gradient = gradient - centered[:, *picked].sum(dim=1)
        curvature = curvature + (centered * probabilities).flatten(1) @ centered.flatten(1).T
        items += len(labels)
    unit = torch.eye(len(weights)).to(weights)
    return (
        loss / items + penalty * weights.square().sum(),
        gradient / items + 2 * penalty * weights,
        curvature / items + 2 * penalty * unit,
    )
