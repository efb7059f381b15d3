"""Retrieval on the Attribute World, where all factors are known: which feature finds which factor?

Neighbours are those by cosine among all images of a task; no index is made.
"""

import base64
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.data.dataset import Images
from dear.data.images.decode import as_image, encode_png
from dear.data.images.transforms import load_test_views, to_unit
from dear.data.world.factors import FACTORS
from dear.data.world.tasks import WorldImages
from dear.methods.base import Method

QUERIES, VISIBLE, K = (3, 170, 431), 6, 10
"""Numbers of images, modulo that of a task's; how many neighbors are shown; of how many is the precision."""


def world_retrieval(method: Method, images: WorldImages) -> dict[str, Any]:
    """Retrieve among a task's images with each feature of an adapted method, as data for the report: the
    first neighbours of some images, pictures as base64 PNG; and the precision of every feature for every
    factor over all images, with that of randomly drawn neighbours ("chance").
    """
    names = list(FACTORS)
    ranked = {
        name: nearest(features, K)
        for name, features in zip(method.features, all_features(method, images), strict=True)
    }

    def card(item: int) -> dict[str, Any]:
        picture = encode_png(as_image(images.load(torch.tensor([item]))[0]))
        values = zip(names, images.factors[item].tolist(), strict=True)
        labels = {name: FACTORS[name].values[value] for name, value in values}
        return {"image": base64.b64encode(picture).decode(), "factors": labels}

    def panel(item: int) -> dict[str, Any]:
        query = card(item)
        near = {name: [card(int(i)) for i in rows[item, :VISIBLE]] for name, rows in ranked.items()}
        return query | {"title": ", ".join(query["factors"].values()), "neighbours": near}

    return {
        "queries": [panel(number % len(images)) for number in QUERIES],
        "precision": {
            name: precision_by_factor(rows, images.factors, names) for name, rows in ranked.items()
        },
        "chance": chance_by_factor(images.factors, names),
    }


@torch.no_grad()
def all_features(method: Method, images: Images) -> Float[Tensor, "feature item embed"]:
    """Unit features of all images in the test view."""
    parts = []
    for indices in torch.arange(len(images)).split(method.clip.image.images_at_once):
        views = to_unit(load_test_views(images, indices, method.clip.preprocess))
        parts.append(method.image_features(method.image_trunk(views.to(method.clip.image.projection))))
    return torch.cat(parts, dim=1)


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
