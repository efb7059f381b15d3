"""M, the linear correction of DeAR+'s class feature."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.errors import warn

ITERATIONS = 100
"""Most iterations of the solver; it stops earlier where nothing changes."""
ENOUGH = 1e-8
"""Largest derivative of the objective at which a solution is taken."""
CLOSE = 1e-3
"""Share of the correction by which it may miss the minimum without a warning."""
SCORES_AT_ONCE = 2**17
"""Scores that are computed together: the numbers of more images leave the processor's cache."""


def corrected(
    frozen: Float[Tensor, "*any embed"], correction: Float[Tensor, "embed embed"]
) -> Float[Tensor, "*any embed"]:
    """u(f + M' f)."""
    return normalize(frozen + frozen @ correction, dim=-1)


@torch.no_grad()
def fit_correction(
    features: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    text: Float[Tensor, "class embed"],
    penalty: float,
) -> Float[Tensor, "embed embed"]:
    """The M that minimizes the mean cross-entropy of (f + f M) t over the classes, plus penalty / 2 |M|^2,
    from zero by L-BFGS. ``text`` is times 1 / tau. Warns if it stops far from the minimum.
    """
    rows = max(1, SCORES_AT_ONCE // len(text))
    batches = [*zip(features.split(rows), labels.split(rows), strict=True)]
    correction = features.new_zeros(features.shape[1], features.shape[1]).requires_grad_()

    @torch.no_grad()  # which the solver turns off
    def closure() -> Tensor:
        """The objective; its gradient is left in ``correction``."""
        loss, gradient = penalty / 2 * correction.square().sum(), penalty * correction
        directions = text.T + correction @ text.T
        for part, of_part in batches:
            logarithms = (part @ directions).log_softmax(dim=1)
            picked = torch.arange(len(part), device=part.device), of_part
            loss -= logarithms[picked].sum() / len(features)
            residual = logarithms.exp_()
            residual[picked] -= 1
            gradient += part.T @ (residual @ text) / len(features)
        correction.grad = gradient
        return loss

    solver = torch.optim.LBFGS(
        [correction],
        max_iter=ITERATIONS,
        max_eval=2 * ITERATIONS,
        tolerance_grad=ENOUGH,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    solver.step(closure)
    closure()  # the gradient of the last step
    assert correction.grad is not None
    # The objective curves by the penalty at least, so that the minimum is at most |gradient| / penalty away.
    if correction.grad.norm() > CLOSE * penalty * correction.detach().norm() + ENOUGH * penalty:
        warn(
            f"dear+: the correction of the class feature has not converged in {ITERATIONS} iterations; a "
            "larger penalty (--dear-plus.penalty) takes fewer."
        )
    return correction.detach()
