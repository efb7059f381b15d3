"""The minimum of a smooth convex function, by scipy's L-BFGS-B.

How many steps it takes depends on the coordinates: it takes few where the function curves alike along all of
them. Features of CLIP lie in a narrow cone, so methods give it coordinates along the axes of their features,
scaled by a bound of the second derivatives (Boehning, Annals of the Institute of Statistical Mathematics 44,
1992): those of a mean cross-entropy are at most half the mean square of the features.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dear.methods.shared import find_basis

HISTORY = 10
"""Steps that it remembers."""

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The value at a place, and the gradient."""


@torch.no_grad()
def find_minimum(
    objective: Objective, start: Tensor, *, enough: float, steps: int, is_positive: bool = False
) -> Tensor:
    """Where the function is least, from ``start`` on, until no derivative is above ``enough``; after so many
    ``steps`` at the latest. No coordinate is below 0 if ``is_positive``.
    """
    from scipy.optimize import minimize  # predictions do without it

    def evaluate(values: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(torch.from_numpy(values).to(start).view_as(start))
        return float(value), gradient.double().flatten().cpu().numpy()

    options = {"maxcor": HISTORY, "ftol": 0, "gtol": enough, "maxiter": steps, "maxfun": 2 * steps}
    bounds: Any = [(0, None)] * start.numel() if is_positive else None
    first = start.double().flatten().cpu().numpy()
    found = minimize(evaluate, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return torch.from_numpy(found.x).to(start).view_as(start)


def find_axes(
    vectors: Float[Tensor, "item embed"],
) -> tuple[Float[Tensor, "axis"], Float[Tensor, "embed axis"]]:
    """The mean square of vectors along each of their principal axes, and these, which are orthonormal."""
    basis = find_basis(vectors)
    inside = vectors @ basis
    squares, axes = torch.linalg.eigh(inside.T @ inside / len(vectors))
    return squares.clamp(min=0), basis @ axes
