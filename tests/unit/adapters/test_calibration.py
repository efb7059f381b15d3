"""Temperature and calibration error against values by hand and a grid."""

import math

import pytest
import torch

from dear.adapters.calibration import best_temperature, calibration_error, log_loss


def test_log_loss_by_hand() -> None:
    logits, labels = torch.tensor([[0.0, 2.0], [4.0, 0.0]]), torch.tensor([1, 1])
    # Softmax at T = 2: 1 / (1 + e^-1) and 1 / (1 + e^2).
    want = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(2))) / 2
    assert log_loss(logits, labels, 2.0) == pytest.approx(want)


def test_calibration_error_by_hand() -> None:
    """Confidences 0.6 (right), 0.6 (wrong) and 0.9 (right): gaps of 0.1 over two, and of 0.1 over one."""
    shares = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]]).double()
    labels = torch.tensor([0, 1, 1])
    assert calibration_error(shares.log(), labels) == pytest.approx((2 * 0.1 + 0.1) / 3)


def test_the_best_temperature_is_that_of_a_grid() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(211, 7, generator=generator)
    labels = torch.multinomial((logits / 3).softmax(dim=1), 1, generator=generator).flatten()
    grid = torch.logspace(-1, 1.5, 2001).tolist()
    want = min(grid, key=lambda t: log_loss(logits, labels, t))
    assert best_temperature(logits, labels) == pytest.approx(want, rel=2e-3)


def test_bounds() -> None:
    logits = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    assert best_temperature(logits, torch.tensor([0, 1])) == pytest.approx(0.01, rel=1e-6)  # all right
    assert best_temperature(logits, torch.tensor([1, 0])) == pytest.approx(100, rel=1e-6)  # all wrong
