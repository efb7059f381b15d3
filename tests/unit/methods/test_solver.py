"""The solver of smooth convex problems, against minima that are known."""

import torch
from torch import Tensor

from dear.methods.solver import find_axes, find_minimum


def quadratic(solution: Tensor) -> tuple[Tensor, Tensor]:
    """(x - 3)^2 + 100 (y + 2)^2, and its gradient."""
    away = solution - torch.tensor([[3.0, -2.0]]).double()
    weights = torch.tensor([[1.0, 100.0]]).double()
    return (weights * away.square()).sum(), 2 * weights * away


def test_the_minimum_of_a_quadratic() -> None:
    found = find_minimum(quadratic, torch.zeros(1, 2).double(), enough=1e-10, steps=50)
    torch.testing.assert_close(found, torch.tensor([[3.0, -2.0]]).double())


def test_it_stops_after_so_many_steps() -> None:
    found = find_minimum(quadratic, torch.zeros(1, 2).double(), enough=1e-10, steps=1)
    assert quadratic(found)[0] > 1e-3


def test_axes_hold_the_vectors_and_their_squares() -> None:
    vectors = torch.randn(5, 11, generator=torch.Generator().manual_seed(1)).double()
    squares, axes = find_axes(vectors)
    assert axes.shape == (11, 5)
    torch.testing.assert_close(axes.T @ axes, torch.eye(5).double())
    torch.testing.assert_close(vectors @ axes @ axes.T, vectors)
    torch.testing.assert_close((vectors @ axes).square().mean(dim=0), squares)
    assert (squares.diff() >= 0).all()
