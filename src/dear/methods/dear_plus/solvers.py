"""The two convex problems of DeAR+: the correction of the class feature, and the strengths of its terms."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from dear.errors import warn

ITERATIONS = 100
"""Most iterations of each solver; both stop earlier where nothing changes."""
PRIOR = 1e-3
"""Weight of the squared strengths: they stay finite where the terms separate all training images."""
ENOUGH = 1e-8
"""Largest derivative of a mean loss at which a solution is taken."""
CLOSE = 1e-3
"""Share of the correction by which it may miss the minimum without a warning."""


@torch.enable_grad()
def fit_correction(
    features: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    text: Float[Tensor, "class embed"],
    penalty: float,
) -> Float[Tensor, "embed embed"]:
    """The linear map M that minimises the mean cross-entropy of (f + f M) t over the classes, plus
    penalty / 2 |M|^2, from zero by L-BFGS. ``text`` is times 1 / tau. Warns if it stops far from the minimum.
    """
    scores = features @ text.T
    change = features.new_zeros(features.shape[1], features.shape[1]).requires_grad_()
    solver = torch.optim.LBFGS(
        [change],
        max_iter=ITERATIONS,
        max_eval=2 * ITERATIONS,
        tolerance_grad=ENOUGH,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        solver.zero_grad()
        fit = cross_entropy(scores + features @ (change @ text.T), labels)
        loss: Tensor = fit + penalty / 2 * change.square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    closure()  # the gradient of the last step
    assert change.grad is not None
    # The objective curves by the penalty at least, so that the minimum is at most |gradient| / penalty away.
    if change.grad.norm() > CLOSE * penalty * change.detach().norm() + ENOUGH * penalty:
        warn(
            f"dear+: the correction of the class feature has not converged in {ITERATIONS} iterations; a "
            "larger penalty (--dear-plus.penalty) takes fewer."
        )
    return change.detach()


def fit_strengths(
    terms: Sequence[Float[Tensor, "item class term"]],
    labels: Int[Tensor, "item"],
    minima: Float[Tensor, "term"],
    shares: Sequence[float] = (),
) -> Float[Tensor, "term"]:
    """The weights of terms, none below ``minima``, that minimise the mean cross-entropy of the weighted sums,
    plus a small multiple of their squares: a term that does not help gets its least weight. ``terms`` are of
    the same images in several settings, which count by their ``shares``, by default alike.

    Newton's method on the weights that the gradient does not hold at their least, with step halving.
    """
    weights, shares = minima + 0.1, shares or [1 / len(terms)] * len(terms)
    loss, gradient, curvature = _derivatives(terms, labels, weights, shares)
    for _ in range(ITERATIONS):
        free = ((weights > minima) | (gradient < 0)).nonzero().flatten()
        if not len(free) or gradient[free].abs().max() < ENOUGH:
            break
        step = torch.zeros_like(weights)
        step[free] = torch.linalg.solve(curvature[free][:, free], gradient[free])
        size = 1.0
        while size > ENOUGH:
            trial = torch.maximum(weights - size * step, minima)
            at_trial = _derivatives(terms, labels, trial, shares)
            if at_trial[0] <= loss - 1e-4 * gradient @ (weights - trial):
                break
            size /= 2
        else:
            break
        weights, (loss, gradient, curvature) = trial, at_trial
    return weights


def _derivatives(
    terms: Sequence[Float[Tensor, "item class term"]],
    labels: Int[Tensor, "item"],
    weights: Float[Tensor, "term"],
    shares: Sequence[float],
) -> tuple[Float[Tensor, ""], Float[Tensor, "term"], Float[Tensor, "term term"]]:
    """The objective of the strengths, its gradient and its second derivatives."""
    loss, gradient = PRIOR * weights.square().sum(), 2 * PRIOR * weights
    curvature = 2 * PRIOR * torch.eye(len(weights), dtype=weights.dtype, device=weights.device)
    for part, share in zip(terms, shares, strict=True):
        scores = part @ weights
        probabilities = scores.softmax(dim=1)
        mean = torch.einsum("nk,nkc->nc", probabilities, part)
        of_label = part[torch.arange(len(labels), device=labels.device), labels]
        second = torch.einsum("nk,nkc,nkd->cd", probabilities, part, part) - mean.T @ mean
        loss = loss + share * cross_entropy(scores, labels)
        gradient = gradient + share * (mean - of_label).mean(dim=0)
        curvature = curvature + share * second / len(labels)
    return loss, gradient, curvature
