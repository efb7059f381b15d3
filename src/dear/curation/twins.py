"""Images that are alike: images that are there twice, in two classes or on both sides of the split; and
images to label next, no two alike.
"""

from collections.abc import Callable
from itertools import chain

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from dear.data.image_check import SAME, thumbnail

ALIKE = 0.75
"""Cosine of image features from which the nearest picture is looked at. Photographs of lite that were resized
to 60% have at least 0.78."""
ROWS_AT_ONCE = 1024
LOOSE, ROUNDING = 0.2, 1e-6
"""The share of nearest neighbors that may be too far from each other for a group of a new class."""

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


def choose_all(
    probabilities: Float[Tensor, "item class"],
    features: Float[Tensor, "item embed"],
    unlike: Bool[Tensor, "item"],
    count: int,
) -> list[tuple[int, int]]:
    """`choose_next` among the images of the classes, each with 0, then as many of those ``unlike`` them, by
    groups that are alike, the largest first, with the number of the group from 1.
    """
    of_classes, others = (~unlike).nonzero().flatten(), unlike.nonzero().flatten()
    picked: list[tuple[int, int]] = []
    if len(of_classes):
        chosen = choose_next(probabilities[of_classes], features[of_classes], count)
        picked = [(int(item), 0) for item in of_classes[chosen]]
    groups, limit = list[list[int]](), find_limit(features, LOOSE) - ROUNDING
    for item in others.tolist():
        near = [group for group in groups if float((features[group] @ features[item]).max()) > limit]
        groups = [group for group in groups if group not in near] + [[*chain(*near), item]]
    ranked = sorted(groups, key=lambda group: (-len(group), min(group)))
    new = [(item, number) for number, group in enumerate(ranked, start=1) for item in sorted(group)]
    return picked + new[:count]


def margins(probabilities: Float[Tensor, "item class"]) -> Float[Tensor, "item"]:
    """How much likelier the best class is than the second."""
    best = probabilities.topk(min(2, probabilities.shape[1]), dim=1).values
    return best[:, 0] - best[:, -1]


def find_limit(features: Float[Tensor, "item embed"], share: float = 0.5) -> float:
    """The cosine beyond which two images are alike: by default the median of those of images and the one
    nearest, else that below which a share of these is.
    """
    items = torch.arange(0, len(features), max(1, len(features) // MEASURED))
    cosines = features[items] @ features.T
    cosines[torch.arange(len(items)), items] = -1
    nearest = cosines.max(dim=1).values.sort().values
    return float(nearest[int(share * (len(nearest) - 1))])
