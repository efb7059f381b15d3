"""Covariances of unit features, and inverses of these and of other symmetric positive matrices.

A general inverse or pseudo-inverse finds singular values by an iteration, which with some libraries and
several threads does not converge on matrices that are nowhere near singular. Cholesky's factors need no
iteration, and eigenvalues of a symmetric matrix are found by one that converges.
"""

import torch
from jaxtyping import Float
from torch import Tensor

NEGLIGIBLE = 1e-12
"""Mean squared distance of unit features from their class's mean, in all directions or in one, up to which
they do not vary.
"""


def invert_positive(matrix: Float[Tensor, "row row"]) -> Float[Tensor, "row row"]:
    """The inverse of a positive definite matrix that is far from singular."""
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix))


def invert_nearly_positive(
    matrices: Float[Tensor, "*item row row"],
) -> tuple[Float[Tensor, "*item row row"], Float[Tensor, "*item"]]:
    """The inverses of positive definite matrices, and the logarithms of their determinants. Where rounding
    left one that is not, its eigenvalues are taken for at least the rounding error of the largest.
    """
    factors, failed = torch.linalg.cholesky_ex(matrices)
    if not failed.any():
        return torch.cholesky_inverse(factors), 2 * factors.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    values, vectors = _positive_eigenvalues(matrices)
    return (vectors / values.unsqueeze(-2)) @ vectors.mT, values.log().sum(dim=-1)


def whiten(covariance: Float[Tensor, "embed embed"]) -> Float[Tensor, "embed embed"]:
    """A W with C^-1 = W W', of a C that is as in `invert_nearly_positive`."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed:
        values, vectors = _positive_eigenvalues(covariance)
        return vectors * values.rsqrt()
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    inverse: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return inverse.T


def _positive_eigenvalues(
    matrices: Float[Tensor, "*item row row"],
) -> tuple[Float[Tensor, "*item row"], Float[Tensor, "*item row row"]]:
    """Eigenvalues, none below the rounding error of the largest, and eigenvectors."""
    values, vectors = torch.linalg.eigh(matrices)
    error = torch.finfo(values.dtype).eps * values.shape[-1] * values.abs().amax(dim=-1, keepdim=True)
    return values.maximum(error), vectors


def pseudo_invert(covariance: Float[Tensor, "embed embed"]) -> Float[Tensor, "embed embed"]:
    """The pseudo-inverse of a covariance of unit features, which may be singular: `torch.linalg.pinv` by
    eigenvalues and with its cutoff, or `NEGLIGIBLE` where that is more, for rounding errors of features.
    """
    cutoff = torch.finfo(covariance.dtype).eps * len(covariance)
    inverse: Tensor = torch.linalg.pinv(covariance, atol=NEGLIGIBLE, rtol=cutoff, hermitian=True)
    return inverse
