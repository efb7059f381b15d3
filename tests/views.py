"""Preprocessing and views of several pictures at once, as the tests want them."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dear.backbone.features_only import image_side
from dear.backbone.preprocess import Preprocess, Triple
from dear.data.images.transforms import eval_view, to_unit, train_view, whole_view


def usual_view(model: Any, mean: Triple, std: Triple) -> Preprocess:
    """CLIP's usual preprocessing at the size of a model of open_clip."""
    return Preprocess(image_side(model.visual), mean, std)


def train_views(
    images: Sequence[Tensor] | Tensor,
    size: int,
    numbers: Float[Tensor, "batch draw"],
    scale: tuple[float, float] = (0.5, 1.0),
) -> Float[Tensor, "batch 3 size size"]:
    """A random view of each picture, from the numbers of its row."""
    rows = numbers.tolist()
    return torch.stack([train_view(image, size, row, scale) for image, row in zip(images, rows, strict=True)])


def eval_views(images: Sequence[Tensor] | Tensor, size: int) -> Float[Tensor, "batch 3 size size"]:
    """The test view of each picture, by CLIP's usual preprocessing."""
    return to_unit(torch.stack([eval_view(image, Preprocess(size)) for image in images]))


def whole_views(images: Sequence[Tensor] | Tensor, size: int) -> Float[Tensor, "batch 3 size size"]:
    """Each whole picture, resized to a square."""
    return torch.stack([whole_view(image, size) for image in images])
