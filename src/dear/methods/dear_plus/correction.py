"""M, the linear correction of DeAR+'s class feature."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.errors import warn
from dear.methods.shared import find_basis

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
    # Each gradient is made of features and text features, so what they span is all that M needs. In an
    # orthonormal basis of it, the solver takes the same steps, in fewer numbers.
    of_images, of_texts = find_basis(features), find_basis(text)
    rows = max(1, SCORES_AT_ONCE // len(text))
    batches = [
        *zip(
            (features @ text.T).split(rows),
            (features @ of_images).split(rows),
            labels.split(rows),
            strict=True,
        )
    ]
    texts = text @ of_texts
    solution = features.new_zeros(of_images.shape[1], of_texts.shape[1]).requires_grad_()

    @torch.no_grad()  # which the solver turns off
    def closure() -> Tensor:
        """The objective; its gradient is left in ``solution``."""
        loss, gradient = penalty / 2 * solution.square().sum(), penalty * solution
        directions = solution @ texts.T
        for scores, part, of_part in batches:
            logarithms = torch.addmm(scores, part, directions).log_softmax(dim=1)
            picked = torch.arange(len(part), device=part.device), of_part
            loss -= logarithms[picked].sum() / len(features)
            residual = logarithms.exp_()
            residual[picked] -= 1
            gradient += part.T @ (residual @ texts) / len(features)
        solution.grad = gradient
        return loss

    solver = torch.optim.LBFGS(
        [solution],
        max_iter=ITERATIONS,
        max_eval=2 * ITERATIONS,
        tolerance_grad=ENOUGH,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    solver.step(closure)
    closure()  # the gradient of the last step
    assert solution.grad is not None
    # The objective curves by the penalty at least, so that the minimum is at most |gradient| / penalty away.
    if solution.grad.norm() > CLOSE * penalty * solution.detach().norm() + ENOUGH * penalty:
        warn(
            f"dear+: the correction of the class feature has not converged in {ITERATIONS} iterations; a "
            "larger penalty (--dear-plus.penalty) takes fewer."
        )
    return of_images @ solution.detach() @ of_texts.T
