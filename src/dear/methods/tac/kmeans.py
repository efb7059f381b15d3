"""k-means by the cosine, as in the package that TAC's code uses."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

ROUNDS = 1000
"""Rounds after which the search ends in any case; tens of classes take a few."""


def kmeans(
    points: Float[Tensor, "point embed"], clusters: int, draw: torch.Generator, tolerance: float = 1e-4
) -> Float[Tensor, "cluster embed"]:
    """Centres of clusters of unit vectors, not normalised: each is the mean of the points to which it has the
    highest cosine. They start at ``clusters`` distinct points, and it ends when the square of their summed
    shift is below the tolerance. A cluster that loses all its points keeps its centre [ours].

    Source: kmeans-pytorch 0.3, with the distance "cosine"; there an empty cluster has a centre of NaN.
    """
    centres = points[start(len(points), clusters, draw)]
    for _ in range(ROUNDS):
        nearest = (normalize(points, dim=-1) @ normalize(centres, dim=-1).T).argmax(dim=1)
        before, centres = centres, centres.clone()
        for number in nearest.unique().tolist():
            centres[number] = points[nearest == number].mean(dim=0)
        if (centres - before).norm(dim=1).sum() ** 2 < tolerance:
            break
    return centres


def start(points: int, clusters: int, draw: torch.Generator) -> list[int]:
    """Which points the centres start at."""
    found: list[int] = torch.randperm(points, generator=draw)[:clusters].tolist()
    return found
