"""The two convex problems of DeAR+: the correction of the class feature, and the strengths of its terms."""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.errors import warn

ITERATIONS = 100
"""Most iterations of each solver; both stop earlier where nothing changes."""
PRIOR = 1e-3
"""Weight of the squared strengths: they stay finite where the terms separate all training images."""
ENOUGH = 1e-8
"""Largest derivative of a mean loss at which a solution is taken."""
CLOSE = 1e-3
"""Share of the correction by which it may miss the minimum without a warning."""
SCORES_AT_ONCE = 2**17
"""Scores that are computed together: the numbers of more images leave the processor's cache."""

Terms = Callable[[Int[Tensor, "row"]], Float[Tensor, "term row class"]]
"""The terms of the scores of some images, by their rows."""


@torch.no_grad()
def fit_correction(
    features: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    text: Float[Tensor, "class embed"],
    penalty: float,
) -> Float[Tensor, "embed embed"]:
    """The linear map M that minimizes the mean cross-entropy of (f + f M) t over the classes, plus
    penalty / 2 |M|^2, from zero by L-BFGS. ``text`` is times 1 / tau. Warns if it stops far from the minimum.
    """
    rows = max(1, SCORES_AT_ONCE // len(text))
    batches = [*zip(features.split(rows), labels.split(rows), strict=True)]
    change = features.new_zeros(features.shape[1], features.shape[1]).requires_grad_()

    @torch.no_grad()  # which the solver turns off
    def closure() -> Tensor:
        """The objective; its gradient is left in ``change``."""
        loss, gradient = penalty / 2 * change.square().sum(), penalty * change
        directions = text.T + change @ text.T
        for part, of_part in batches:
            logarithms = (part @ directions).log_softmax(dim=1)
            picked = torch.arange(len(part), device=part.device), of_part
            loss -= logarithms[picked].sum() / len(features)
            residual = logarithms.exp_()
            residual[picked] -= 1
            gradient += part.T @ (residual @ text) / len(features)
        change.grad = gradient
        return loss

    solver = torch.optim.LBFGS(
        [change],
        max_iter=ITERATIONS,
        max_eval=2 * ITERATIONS,
        tolerance_grad=ENOUGH,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

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
    terms: Sequence[Terms],
    labels: Int[Tensor, "item"],
    minima: Float[Tensor, "term"],
    shares: Sequence[float] = (),
) -> Float[Tensor, "term"]:
    """The weights of terms, none below ``minima``, that minimize the mean cross-entropy of the weighted sums,
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
    terms: Sequence[Terms],
    labels: Int[Tensor, "item"],
    weights: Float[Tensor, "term"],
    shares: Sequence[float],
) -> tuple[Float[Tensor, ""], Float[Tensor, "term"], Float[Tensor, "term term"]]:
    """The objective of the strengths, its gradient and its second derivatives."""
    loss, gradient = PRIOR * weights.square().sum(), 2 * PRIOR * weights
    curvature = 2 * PRIOR * torch.eye(len(weights), dtype=weights.dtype, device=weights.device)
    for part, share in zip(terms, shares, strict=True):
        for rows, values in in_batches(part, len(labels) if share else 0, labels.device):
            logarithms = torch.tensordot(weights, values, dims=1).log_softmax(dim=1)
            picked = torch.arange(len(rows), device=rows.device), labels[rows]
            weighted = values * logarithms.exp()
            mean = weighted.sum(dim=2)
            second = weighted.flatten(1) @ values.flatten(1).T - mean @ mean.T
            loss = loss - share / len(labels) * logarithms[picked].sum()
            gradient = gradient + share / len(labels) * (mean - values[:, *picked]).sum(dim=1)
            curvature = curvature + share / len(labels) * second
    return loss, gradient, curvature


def in_batches(
    terms: Terms, items: int, device: torch.device
) -> Iterator[tuple[Int[Tensor, "row"], Float[Tensor, "term row class"]]]:
    """The terms of all images, of a few rows at a time."""
    if items:
        classes = terms(torch.arange(1, device=device)).shape[2]
        for rows in torch.arange(items, device=device).split(max(1, SCORES_AT_ONCE // classes)):
            yield rows, terms(rows)
