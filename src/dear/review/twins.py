"""Pictures that are nearly the same although they have other labels, or are on both sides of the split."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn.functional import interpolate, normalize

ALIKE = 0.75
"""Cosine of image features from which the nearest picture is looked at. Photographs of lite that were resized
to 60% have at least 0.78."""
SAME, SIDE = 0.97, 16
"""Correlation of thumbnails, of as many gray pixels a side, from which two pictures are the same: drawings
and photographs that were saved again, resized or brightened have at least 0.986, others at most 0.92."""
AT_ONCE = 1024

Load = Callable[[int], UInt8[Tensor, "3 height width"]]


def find_twins(
    features: Float[Tensor, "item embed"], groups: Int[Tensor, "item"], load: Load
) -> list[tuple[int, int]]:
    """Pairs of pictures of different groups that are nearly the same, each picture with its nearest by unit
    image features; ``load`` gives the picture of an item.
    """
    pairs = set[tuple[int, int]]()
    for rows in torch.arange(len(features)).split(AT_ONCE):
        cosines = features[rows] @ features.T
        cosines[groups[rows, None] == groups] = -1
        best = cosines.max(dim=1)
        for row in (best.values >= ALIKE).nonzero().flatten().tolist():
            first, second = sorted((int(rows[row]), int(best.indices[row])))
            pairs.add((first, second))
    thumbnails = {item: thumbnail(load(item)) for item in sorted({*sum(pairs, ())})}
    return [pair for pair in sorted(pairs) if float(thumbnails[pair[0]] @ thumbnails[pair[1]]) >= SAME]


def thumbnail(picture: UInt8[Tensor, "3 height width"]) -> Float[Tensor, "pixel"]:
    """Gray pixels with mean 0 and length 1, so that products are correlations."""
    gray = picture.double().mean(dim=0)[None, None]
    small = interpolate(gray, (SIDE, SIDE), mode="bilinear", antialias=True).flatten()
    return normalize(small - small.mean(), dim=0)
