"""Which images to label next: those that a classifier is least sure of, no two alike."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

MEASURED = 2000
"""Images, spread evenly, that say how near to each other images are."""


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
