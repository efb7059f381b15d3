"""Data for displaying retrieval: query pictures and their neighbours by each feature, as base64 PNG."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dear.data.dataset import Images
from dear.data.images.decode import as_image
from dear.methods.base import Method
from dear.retrieval.neighbours import all_features, chance_by_factor, nearest, precision_by_factor


def retrieval_panels(
    method: Method,
    images: Images,
    factors: Int[Tensor, "item factor"],
    values: Mapping[str, Sequence[str]],
    *,
    queries: Sequence[int],
    shown: int = 6,
    k: int = 10,
) -> dict[str, Any]:
    """Neighbours of some images by each feature, and the precision at ``k`` of every feature for every factor
    over all images, with that of randomly drawn neighbours ("chance").

    ``values`` names the factors (in column order) and their values.
    """
    names = list(values)

    def card(item: int) -> dict[str, Any]:
        known = {n: values[n][int(factors[item, f])] for f, n in enumerate(names)}
        return {"image": png(images.load(torch.tensor([item]))[0]), "factors": known}

    ranked = {
        name: nearest(each, k)
        for name, each in zip(method.features, all_features(method, images), strict=True)
    }

    def panel(item: int) -> dict[str, Any]:
        own = card(item)
        near = {name: [card(int(i)) for i in rows[item, :shown]] for name, rows in ranked.items()}
        return own | {"title": ", ".join(own["factors"].values()), "neighbours": near}

    return {
        "queries": [panel(item) for item in queries],
        "precision": {name: precision_by_factor(rows, factors, names) for name, rows in ranked.items()},
        "chance": chance_by_factor(factors, names),
    }


def png(picture: UInt8[Tensor, "3 height width"]) -> str:
    """A picture as base64 PNG."""
    stream = io.BytesIO()
    as_image(picture).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()
