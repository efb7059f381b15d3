"""The temperature against a grid."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from dear.adapters.calibration import best_temperature


def test_the_best_temperature_is_that_of_a_grid() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(211, 7, generator=generator)
    labels = torch.multinomial((logits / 3).softmax(dim=1), 1, generator=generator).flatten()
    grid = torch.logspace(-1, 1.5, 2001).tolist()
    want = min(grid, key=lambda t: cross_entropy(logits / t, labels))
    assert best_temperature(logits, labels) == pytest.approx(want, rel=2e-3)


def test_bounds() -> None:
    logits = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    assert best_temperature(logits, torch.tensor([0, 1])) == pytest.approx(0.01, rel=1e-6)  # all right
    assert best_temperature(logits, torch.tensor([1, 0])) == pytest.approx(100, rel=1e-6)  # all wrong
