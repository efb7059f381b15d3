"""Nearest neighbours of images by each of a method's features, and how often they share a factor with the
query.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.data.dataset import Images
from dear.data.images.transforms import eval_views
from dear.methods.base import Method


@torch.no_grad()
def all_features(method: Method, images: Images, *, batch: int = 250) -> Float[Tensor, "feature item embed"]:
    """Unit features of all images in the test view."""
    found = []
    for start in range(0, len(images), batch):
        views = eval_views(
            images.load(torch.arange(start, min(start + batch, len(images)))), method.clip.image_size
        )
        found.append(method.image_features(method.image_trunk(views.to(method.clip.image.projection))))
    return torch.cat(found, dim=1)


def nearest(features: Float[Tensor, "item embed"], k: int) -> Int[Tensor, "item k"]:
    """The k most similar other items of each item, nearest first."""
    similarity = features @ features.T
    similarity.fill_diagonal_(float("-inf"))
    return similarity.topk(k, dim=1).indices


def precision_by_factor(
    neighbours: Int[Tensor, "item k"], factors: Int[Tensor, "item factor"], names: Sequence[str]
) -> dict[str, float]:
    """Share of neighbours that have the query's value of each factor."""
    same = factors[neighbours] == factors[:, None]
    return dict(zip(names, same.double().mean(dim=(0, 1)).tolist(), strict=True))


def chance_by_factor(factors: Int[Tensor, "item factor"], names: Sequence[str]) -> dict[str, float]:
    """The precision of randomly drawn neighbours: the share of the other items with an item's value."""
    same = (factors[:, None] == factors[None]).double().sum(dim=1) - 1
    return dict(zip(names, (same / (len(factors) - 1)).mean(dim=0).tolist(), strict=True))
