"""The minimum of a smooth convex function, by scipy's L-BFGS-B.

How many steps it takes depends on the coordinates: it takes few where the function curves alike along all of
them. Features of CLIP lie in a narrow cone, so methods give it coordinates along the axes of their features,
scaled by a bound of the second derivatives (Boehning, Annals of the Institute of Statistical Mathematics 44,
1992): those of a mean cross-entropy are at most half the mean square of the features.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from dear.methods.shared import find_basis

HISTORY = 10
"""Steps that it remembers."""

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The value at a place, and the gradient."""


@torch.no_grad()
def find_minimum(objective: Objective, start: Tensor, *, enough: float, steps: int) -> Tensor:
    """Where the function is least, from ``start`` on, until no derivative is above ``enough``; after so many
    ``steps`` at the latest.
    """
    from scipy.optimize import minimize  # predictions do without it

    def evaluate(values: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(torch.from_numpy(values).to(start).view_as(start))
        return float(value), gradient.double().flatten().cpu().numpy()

    options = {"maxcor": HISTORY, "ftol": 0, "gtol": enough, "maxiter": steps, "maxfun": 2 * steps}
    first = start.double().flatten().cpu().numpy()
    found = minimize(evaluate, first, jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x).to(start).view_as(start)


def find_axes(
    vectors: Float[Tensor, "item embed"],
) -> tuple[Float[Tensor, "axis"], Float[Tensor, "embed axis"]]:
    """The mean square of vectors along each of their principal axes, and these, which are orthonormal."""
    basis = find_basis(vectors)
    inside = vectors @ basis
    squares, axes = torch.linalg.eigh(inside.T @ inside / len(vectors))
    return squares.clamp(min=0), basis @ axes


class RegressionCoordinates:
    """The coordinates in which a logistic regression W f + b with a penalty on |W|^2 is solved, a row of them
    for each class. Around the mean of the features, W and b do not depend on each other.

    Attributes:
        features: The features in these coordinates, the last of which is that of b.
        penalties: What the square of each coordinate is penalized by.
    """

    def __init__(self, features: Float[Tensor, "item embed"], penalty: float) -> None:
        """``penalty`` is that of |W|^2 / 2 beside the mean cross-entropy."""
        self._center = features.mean(dim=0)
        squares, self._axes = find_axes(features - self._center)
        self._scale = (squares / 2 + penalty).rsqrt()
        inside = (features - self._center) @ self._axes * self._scale
        self.features = pad(inside, (0, 1), value=math.sqrt(2))
        self.penalties = pad(penalty * self._scale**2, (0, 1))

    def start(self, classes: int) -> Float[Tensor, "class coordinate"]:
        """Where W and b are 0."""
        return self.features.new_zeros(classes, self.features.shape[1])

    def read(
        self, solution: Float[Tensor, "class coordinate"]
    ) -> tuple[Float[Tensor, "class embed"], Float[Tensor, "class"]]:
        """W and b."""
        weight = solution[:, :-1] * self._scale @ self._axes.T
        return weight, math.sqrt(2) * solution[:, -1] - weight @ self._center
