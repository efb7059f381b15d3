"""The weights of terms, against a general solver of scipy and by hand."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from dear.methods import stacking
from dear.methods.stacking import Batches, fit_term_weights

CLASSES, ITEMS, PENALTY = 5, 83, 1e-3


def draw_terms(*factors: float) -> tuple[Tensor, Tensor]:
    """Terms of which each tells the classes by its factor, beside noise, and the labels."""
    draw = torch.Generator().manual_seed(5)
    labels = torch.randint(CLASSES, (ITEMS,), generator=draw)
    truth = torch.eye(CLASSES, dtype=torch.float64)[labels]
    noise = torch.randn(len(factors), ITEMS, CLASSES, generator=draw, dtype=torch.float64)
    return torch.stack([factor * truth for factor in factors]) + noise, labels


def split(terms: Tensor, labels: Tensor, rows: int = ITEMS) -> Batches:
    parts = [*zip(terms.split(rows, dim=1), labels.split(rows), strict=True)]
    return lambda: parts


def objective(weights: np.ndarray, terms: Tensor, labels: Tensor) -> float:
    mixed = sum(weight * term for weight, term in zip(weights.tolist(), terms, strict=True))
    return float(cross_entropy(mixed, labels)) + PENALTY * float((weights**2).sum())  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [ITEMS, 7])
def test_they_are_the_best_that_are_allowed(rows: int) -> None:
    terms, labels = draw_terms(2.0, -2.0, 0.0, 1.0)
    least = torch.tensor([0.01, 0.2, 0.0, 0.0], dtype=torch.float64)
    weights = fit_term_weights(split(terms, labels, rows), least, PENALTY)
    bounds, options = [(float(value), None) for value in least], {"ftol": 1e-14}
    best = minimize(objective, [0.3] * 4, (terms, labels), bounds=bounds, method="SLSQP", options=options)
    assert weights.tolist() == pytest.approx(best.x.tolist(), abs=1e-4)
    assert weights[1] == least[1]


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e6])
def test_they_are_found_in_few_evaluations_whatever_the_size_of_a_term(
    size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A term of which a tiny weight is the best, for it misleads where it is large, beside one that is half
    of it with opposite sign.
    """
    terms, labels = draw_terms(2.0)
    terms, evaluations = torch.cat([size * terms, -size / 2 * terms]), list[int]()
    derivatives = stacking._derivatives
    monkeypatch.setattr(stacking, "_derivatives", lambda *words: evaluations.append(1) or derivatives(*words))
    weights = fit_term_weights(split(terms, labels), torch.zeros(2).double(), PENALTY)
    best = minimize_scalar(lambda weight: objective(np.array([weight, 0.0]) / size, terms, labels))
    assert float(weights[0]) * size == pytest.approx(float(best.x), rel=1e-3)
    assert weights[1] == 0
    assert len(evaluations) < 50
