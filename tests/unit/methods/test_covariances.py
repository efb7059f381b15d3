"""Inverses of symmetric positive matrices: against general ones, and where rounding has spoiled them."""

import pytest
import torch
from torch import Tensor

from dear.methods.covariances import (
    invert_nearly_positive,
    invert_positive,
    pseudo_invert,
    whiten,
)


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(items: int, width: int = 13) -> Tensor:
    return drawn(items, width, seed=items).T.cov()


def test_inverses_of_positive_matrices() -> None:
    matrices = torch.stack([covariance(items) for items in (29, 31, 37)])
    inverses, determinants = invert_nearly_positive(matrices)
    torch.testing.assert_close(inverses, torch.linalg.inv(matrices), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(determinants, torch.linalg.slogdet(matrices)[1], rtol=1e-12, atol=0)
    torch.testing.assert_close(invert_positive(matrices[0]), inverses[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("items", [5, 13, 29])
def test_the_pseudo_inverse_is_the_one_by_singular_values(items: int) -> None:
    """Of 5 and of 13 rows the covariance of 13 numbers is singular."""
    matrix = covariance(items)
    expected = torch.linalg.pinv(matrix)
    torch.testing.assert_close(
        pseudo_invert(matrix), expected, rtol=0, atol=1e-9 * float(expected.abs().max())
    )


def test_what_varies_by_rounding_alone_has_no_inverse() -> None:
    """Of diag(4, 1e-13) of unit features, by hand."""
    expected = torch.diag(torch.tensor([0.25, 0])).double()
    assert torch.equal(pseudo_invert(torch.diag(torch.tensor([4, 1e-13], dtype=torch.float64))), expected)
    assert not pseudo_invert(torch.full((3, 3), 1e-14, dtype=torch.float64)).any()


def test_an_eigenvalue_that_rounding_made_negative_counts_as_rounding() -> None:
    """Of diag(4, -1e-18) in a batch with diag(4, 1): the error is the width 2 times epsilon times 4."""
    matrices = torch.diag_embed(torch.tensor([[4, -1e-18], [4, 1]], dtype=torch.float64))
    error = 8 * torch.finfo(torch.float64).eps
    inverses, determinants = invert_nearly_positive(matrices)
    expected = torch.tensor([[4, error], [4, 1]], dtype=torch.float64)
    torch.testing.assert_close(inverses, torch.diag_embed(1 / expected))
    torch.testing.assert_close(determinants, expected.log().sum(dim=1))


@pytest.mark.parametrize("items", [5, 29])
def test_whitening_gives_the_unit_covariance(items: int) -> None:
    """In the directions that vary; of 5 rows there are 4."""
    rows = drawn(items, 13, seed=items)
    rows -= rows.mean(dim=0)
    whitened = rows @ whiten(rows.T.cov())
    values = torch.linalg.eigvalsh(whitened.T.cov())
    rank = min(13, items - 1)
    torch.testing.assert_close(values[-rank:], torch.ones(rank, dtype=torch.float64), rtol=1e-6, atol=0)
