"""Gaussians by loops over views, and images in groups, for tests of DeAR+."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dear.methods.dear_plus.fitting import Examples

CLASSES, VIEWS, EMBED, SHRINKAGE = 4, 3, 7, 0.2


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow(points: Tensor, labels: Tensor, shrinkage: float = SHRINKAGE) -> tuple[list[Tensor], Tensor, float]:
    """Means by class, shrunk covariance and degrees of freedom, by loops over views."""
    means = [points[labels == label].flatten(0, 1).mean(dim=0) for label in range(CLASSES)]
    scatter, count = torch.zeros(EMBED, EMBED, dtype=torch.float64), 0
    for item, label in zip(points, labels.tolist(), strict=True):
        for view in item:
            scatter += torch.outer(view - means[label], view - means[label])
            count += 1
    identity = torch.eye(EMBED, dtype=torch.float64)
    within = scatter / count
    covariance = (1 - shrinkage) * within + shrinkage * within.trace() / EMBED * identity
    return means, covariance, float(((1 - shrinkage) * torch.linalg.inv(covariance) @ within).trace())


def log_normal(point: Tensor, mean: Tensor, covariance: Tensor) -> float:
    """Up to the constant in the dimension and the determinant of the covariance."""
    gap = point - mean
    return float(-0.5 * gap @ torch.linalg.solve(covariance, gap))


def build_clips() -> tuple[Examples, Tensor]:
    """8 clips of 5 frames that hardly differ, two of each class, in any order; classes mean nothing."""
    clips = torch.arange(8).repeat_interleave(5)[drawn(40, seed=5).argsort()]
    centers, noise = drawn(8, EMBED, seed=6), drawn(40, VIEWS, EMBED, seed=7)
    points = normalize(centers[clips][:, None] + 0.02 * noise, dim=-1)
    text = 10 * normalize(drawn(CLASSES, EMBED, seed=8), dim=-1)
    return Examples(points, points.unsqueeze(2), clips // 2, text, torch.arange(CLASSES), clips), clips
