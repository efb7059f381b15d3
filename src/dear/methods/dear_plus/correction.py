"""M, the linear correction of DeAR+'s class feature."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.errors import warn
from dear.methods.solver import find_axes, find_minimum
from dear.methods.stacking import SCORES_AT_ONCE

STEPS = 100
"""Most steps of the solver; it stops earlier where nothing changes."""
ENOUGH = 1e-8
"""Largest derivative of the objective at which a solution is taken."""
CLOSE = 1e-3
"""Share of the correction by which it may miss the minimum without a warning."""


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
    from zero. ``text`` is times 1 / tau. Warns if it stops far from the minimum.
    """
    # Each gradient is made of features and of differences of text features, so what they span is all that M
    # needs.
    texts = text - text.mean(dim=0)
    of_images, image_axes = find_axes(features)
    of_texts, text_axes = find_axes(texts)
    scale = (torch.outer(of_images, of_texts) * len(texts) / 2 + penalty).rsqrt()
    rows = max(1, SCORES_AT_ONCE // len(text))
    parts = (features @ text.T).split(rows), (features @ image_axes).split(rows), labels.split(rows)
    batches, texts = [*zip(*parts, strict=True)], texts @ text_axes

    def objective(solution: Tensor) -> tuple[Tensor, Tensor]:
        """What is minimized."""
        correction = scale * solution
        loss, gradient = penalty / 2 * correction.square().sum(), penalty * correction
        directions = correction @ texts.T
        for scores, part, of_part in batches:
            logarithms = torch.addmm(scores, part, directions).log_softmax(dim=1)
            picked = torch.arange(len(part), device=part.device), of_part
            loss -= logarithms[picked].sum() / len(features)
            residual = logarithms.exp_()
            residual[picked] -= 1
            gradient += part.T @ (residual @ texts) / len(features)
        return loss, scale * gradient

    found = find_minimum(objective, torch.zeros_like(scale), enough=ENOUGH, steps=STEPS)
    correction, gradient = scale * found, objective(found)[1] / scale
    # The objective curves by the penalty at least, so that the minimum is at most |gradient| / penalty away.
    if gradient.norm() > CLOSE * penalty * correction.norm() + ENOUGH * penalty:
        warn(
            f"dear+: the correction of the class feature has not converged in {STEPS} steps; a larger "
            "penalty (--dear-plus.penalty) takes fewer."
        )
    return image_axes @ correction @ text_axes.T
