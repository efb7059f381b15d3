"""Images that are alike: images that are there twice, in two classes or on both sides of the split; and
images to label next, no two alike.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.data.images.near_duplicates import MOST_COMPARED, find_near_duplicates
from dear.data.images.thumbnails import Thumbnails, coarse_features, picture_distances

RESAVED = 0.2
"""The distance of thumbnails up to which pictures are there twice: 98% of photographs and drawings that were
saved as JPEG with quality 60, resized or brightened have at most that."""
ROWS_AT_ONCE = 1024
LOOSE, ROUNDING = 0.2, 1e-6
"""The share of nearest neighbors that may be too far from each other for a group of a new class."""

MEASURED = 2000
"""Images, spread evenly, that say how near to each other images are."""


def find_twins(
    thumbnails: Thumbnails, labels: Int[Tensor, "item"], sides: Int[Tensor, "item"]
) -> list[tuple[int, int]]:
    """Pairs of pictures of different classes or sides of a split that differ by no more than saving again,
    resizing or other light would, each picture with the most alike of its near-duplicates.
    """
    if not 1 < len(thumbnails) <= MOST_COMPARED:
        return []
    features, places = coarse_features(thumbnails), labels + (int(labels.max()) + 1) * sides
    pairs = set[tuple[int, int]]()
    for group in find_near_duplicates(thumbnails, labels).groups:
        items = torch.tensor(group)
        for rows in items.split(ROWS_AT_ONCE):
            cosines = features[rows] @ features[items].T
            cosines[places[rows][:, None] == places[items]] = -1
            best = cosines.max(dim=1)
            ends = zip(rows.tolist(), items[best.indices].tolist(), best.values.tolist(), strict=True)
            pairs |= {(min(row, other), max(row, other)) for row, other, cosine in ends if cosine > -1}
    ordered = sorted(pairs)
    if not ordered:
        return []
    first, second = torch.tensor(ordered).T
    distances = torch.minimum(
        picture_distances(thumbnails, first, second[:, None]),
        picture_distances(thumbnails, second, first[:, None]),
    )
    return [pair for pair, near in zip(ordered, distances[:, 0] <= RESAVED, strict=True) if near]


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
    groups = link_groups(features[others], find_limit(features, LOOSE) - ROUNDING)
    ranked = sorted(groups, key=lambda group: (-len(group), min(group)))
    new = [
        (int(others[item]), number) for number, group in enumerate(ranked, start=1) for item in sorted(group)
    ]
    return picked + new[:count]


def link_groups(features: Float[Tensor, "item embed"], limit: float) -> list[list[int]]:
    """Single linkage: items whose cosine exceeds the limit are in one group. Each is compared once with those
    that are in no group yet.
    """
    groups, left = list[list[int]](), torch.arange(len(features), device=features.device)
    while len(left):
        group, reached, left = list[int](), left[:1], left[1:]
        while len(reached):
            group += reached.tolist()
            found = torch.zeros_like(left, dtype=torch.bool)
            for rows in reached.split(ROWS_AT_ONCE):
                found |= (features[rows] @ features[left].T > limit).any(dim=0)
            reached, left = left[found], left[~found]
        groups.append(group)
    return groups


def margins(probabilities: Float[Tensor, "item class"]) -> Float[Tensor, "item"]:
    """How much likelier the best class is than the second."""
    best = probabilities.topk(min(2, probabilities.shape[1]), dim=1).values
    return best[:, 0] - best[:, -1]


def find_limit(features: Float[Tensor, "item embed"], share: float = 0.5) -> float:
    """The cosine beyond which two images are alike: the quantile at ``share`` of the cosines between images
    and their nearest neighbors.
    """
    items = torch.arange(0, len(features), max(1, len(features) // MEASURED))
    cosines = features[items] @ features.T
    cosines[torch.arange(len(items)), items] = -1
    nearest = cosines.max(dim=1).values.sort().values
    return float(nearest[int(share * (len(nearest) - 1))])
