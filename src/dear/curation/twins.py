"""Images that are alike: pictures that are there twice, in two classes or on both sides of the split; and
images to label next, no two alike.
"""

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
ROWS_AT_ONCE = 1024

MEASURED = 2000
"""Images, spread evenly, that say how near to each other images are."""

Load = Callable[[int], UInt8[Tensor, "3 height width"]]


def find_twins(
    features: Float[Tensor, "item embed"], groups: Int[Tensor, "item"], load: Load
) -> list[tuple[int, int]]:
    """Pairs of pictures of different groups that are nearly the same, each picture with its nearest by unit
    image features; ``load`` gives the picture of an item.
    """
    pairs = set[tuple[int, int]]()
    for rows in torch.arange(len(features)).split(ROWS_AT_ONCE):
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


def choose_next(
    probabilities: Float[Tensor, "item class"], features: Float[Tensor, "item embed"], count: int
) -> Int[Tensor, "pick"]:
    """The ``count`` images with the smallest margins between their two best classes, in that order, without
    those that are too similar to one before them (`find_limit`). Where too few remain, these follow. Features
    are of unit length.
    """
    limit, picked, alike = find_limit(features), list[int](), list[int]()
    for item in margins(probabilities).argsort(stable=True).tolist():
        if len(picked) == count:
            break
        is_alike = bool(picked) and float((features[picked] @ features[item]).max()) > limit
        (alike if is_alike else picked).append(item)
    return torch.tensor([*picked, *alike][:count], dtype=torch.long)


def margins(probabilities: Float[Tensor, "item class"]) -> Float[Tensor, "item"]:
    """How much likelier the best class is than the second."""
    best = probabilities.topk(min(2, probabilities.shape[1]), dim=1).values
    return best[:, 0] - best[:, -1]


def find_limit(features: Float[Tensor, "item embed"]) -> float:
    """The cosine beyond which two images are alike: the median of those of images and the one nearest."""
    items = torch.arange(0, len(features), max(1, len(features) // MEASURED))
    cosines = features[items] @ features.T
    cosines[torch.arange(len(items)), items] = -1
    return float(cosines.max(dim=1).values.median())
