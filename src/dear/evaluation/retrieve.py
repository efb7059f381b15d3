"""Retrieval among the test images of a data set: which feature finds which factor? On the Attribute World all
factors are known, of photographs the class alone.

Neighbors are those by cosine among all images; no index is made.
"""

import base64
import io
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.data.dataset import Dataset, Images, Picture
from dear.data.images.decode import as_image, encode_png
from dear.evaluation.predictions import load_trunks
from dear.methods.base import Method
from dear.training.cache import Cache
from dear.world.factors import FACTORS
from dear.world.tasks import WorldImages

QUERIES, VISIBLE, K = 3, 6, 10
"""How many queries and neighbors of each are shown; of how many neighbors is the precision."""
SIDE = 112  # pixels of the longer side of a photograph in the report
ROWS = 1000  # images whose similarities are in memory at once


def retrieve(method: Method, dataset: Dataset, queries: Sequence[int] = ()) -> dict[str, Any]:
    """Retrieve among the test images with each feature of an adapted method, as data for the report: the
    first neighbors of the images with the numbers ``queries`` (by default of a few that are evenly spread),
    pictures as base64 PNG or JPEG; and the precision of every feature for every factor over all images, with
    that of randomly drawn neighbors ("chance").
    """
    images, values = dataset.test, {"class": dataset.classnames}
    factors = images.labels[:, None]
    if isinstance(images, WorldImages):
        factors, values = images.factors, {name: factor.values for name, factor in FACTORS.items()}
    names, k = [*values], min(K, len(images) - 1)
    ranked = {
        name: nearest(features, k)
        for name, features in zip(method.features, all_features(method, images), strict=True)
    }

    def card(item: int) -> dict[str, Any]:
        picture = images.load(torch.tensor([item]))[0]
        content = encode_png(as_image(picture)) if dataset.world else thumbnail(picture)
        labels = {
            name: values[name][value] for name, value in zip(names, factors[item].tolist(), strict=True)
        }
        return {"image": base64.b64encode(content).decode(), "factors": labels}

    def panel(item: int) -> dict[str, Any]:
        query = card(item)
        near = {name: [card(int(i)) for i in rows[item, :VISIBLE]] for name, rows in ranked.items()}
        return query | {"title": ", ".join(query["factors"].values()), "neighbors": near}

    return {
        "queries": [panel(number) for number in dict.fromkeys(queries or spread(len(images)))],
        "precision": {name: precision_by_factor(rows, factors, names) for name, rows in ranked.items()},
        "chance": chance_by_factor(factors, names),
    }


def spread(items: int, count: int = QUERIES) -> list[int]:
    """The middle item of each of ``count`` equal parts, as many as there are items at most."""
    return [*dict.fromkeys((2 * part + 1) * items // (2 * count) for part in range(count))]


def thumbnail(picture: Picture) -> bytes:
    """A photograph as a small JPEG."""
    image, file = as_image(picture), io.BytesIO()
    image.thumbnail((SIDE, SIDE))
    image.save(file, "JPEG", quality=80)
    return file.getvalue()


@torch.no_grad()
def all_features(method: Method, images: Images) -> Float[Tensor, "feature item embed"]:
    """Unit features of all images in the test view."""
    trunks = load_trunks(method, images, method.clip.image.images_at_once, Cache(0), "32-true")
    return torch.cat([*map(method.image_features, trunks)], dim=1)


def nearest(features: Float[Tensor, "item embed"], k: int) -> Int[Tensor, "item k"]:
    """The k most similar other items of each item, nearest first."""
    found = []
    for rows in torch.arange(len(features)).split(ROWS):
        similarity = features[rows] @ features.T
        similarity[torch.arange(len(rows)), rows] = float("-inf")
        found.append(similarity.topk(k, dim=1).indices)
    return torch.cat(found)


def precision_by_factor(
    neighbors: Int[Tensor, "item k"], factors: Int[Tensor, "item factor"], names: Sequence[str]
) -> dict[str, float]:
    """Share of neighbors that have the query's value of each factor."""
    same = factors[neighbors] == factors[:, None]
    return dict(zip(names, same.double().mean(dim=(0, 1)).tolist(), strict=True))


def chance_by_factor(factors: Int[Tensor, "item factor"], names: Sequence[str]) -> dict[str, float]:
    """The precision of randomly drawn neighbors: the share of the other items with an item's value."""
    same = torch.stack([torch.bincount(values)[values] for values in factors.T], dim=1).double() - 1
    return dict(zip(names, (same / (len(factors) - 1)).mean(dim=0).tolist(), strict=True))
