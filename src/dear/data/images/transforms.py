"""Views of pictures: 8-bit pictures of any size in, float batches of one size out. Values are in [0, 1]."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from dear.data.dataset import Pictures

ATTEMPTS = 10
DRAWS = 2 * ATTEMPTS + 3
"""Random numbers per image: area and aspect ratio for each attempt, then top, left and flip."""
FLIP = 2 * ATTEMPTS + 2
RATIO = (3 / 4, 4 / 3)
THIN = 8
"""Aspect ratio above which the ends of a picture are cut off before it is resized for its centre."""

PIXELS_AT_ONCE = 2**20
"""Pixels of pictures of one size that are resized together: a few photographs."""

Box = tuple[int, int, int, int]
"""top, left, height, width"""


def view_numbers(count: int, generator: torch.Generator) -> Float[Tensor, "item draw"]:
    """The uniform numbers in [0, 1) of so many random views: `DRAWS` each, whatever the size of a picture."""
    return torch.rand(count, DRAWS, generator=generator, dtype=torch.float64, device=generator.device)


def train_views(
    images: Pictures,
    size: int,
    numbers: Float[Tensor, "batch draw"],
    scale: tuple[float, float] = (0.5, 1.0),
) -> Float[Tensor, "batch 3 size size"]:
    """A random part of each picture, resized (bicubic, antialiased) and mirrored half of the time.

    ``numbers`` are those of `view_numbers`, a row per picture; ``scale`` bounds the part's share of the area.
    """
    rows, parts = numbers.tolist(), []
    for image, row in zip(images, rows, strict=True):
        top, left, height, width = crop_box(row, image.shape[-2], image.shape[-1], scale)
        parts.append(image[:, top : top + height, left : left + width])
    views = _by_size(parts, lambda batch: _resized(batch, size, size))
    return _to_unit(
        torch.stack(
            [view.flip(-1) if row[FLIP] < 0.5 else view for view, row in zip(views, rows, strict=True)]
        )
    )


def eval_views(images: Pictures, size: int) -> Float[Tensor, "batch 3 size size"]:
    """The centre square of each picture, after resizing its short side to `size` (bicubic, antialiased).

    Differs from CLIP's preprocessing only in not rounding values to 8 bits after resizing.
    """
    if all(image.shape[-2:] == (size, size) for image in images):
        return _to_unit(images if isinstance(images, Tensor) else torch.stack([*images]))
    return _to_unit(torch.stack(_by_size(map(_without_ends, images), lambda batch: _centre(batch, size))))


def whole_views(images: Pictures, size: int) -> Float[Tensor, "batch 3 size size"]:
    """Each whole picture, resized to a square whatever its aspect ratio (bicubic, antialiased)."""
    return _to_unit(torch.stack(_by_size(images, lambda batch: _resized(batch, size, size))))


def crop_box(numbers: Sequence[float], height: int, width: int, scale: tuple[float, float]) -> Box:
    """The box of torchvision's RandomResizedCrop, from uniform numbers in [0, 1) in the order of `DRAWS`.

    Ten attempts at a box of random area (uniform) and aspect ratio (log-uniform) that fits; else the largest
    central box within the bounds of the ratio.
    """
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for attempt in range(ATTEMPTS):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * numbers[2 * attempt])
        ratio = math.exp(low + (high - low) * numbers[2 * attempt + 1])
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(numbers[2 * ATTEMPTS] * (height - tall + 1))
            left = int(numbers[2 * ATTEMPTS + 1] * (width - wide + 1))
            return top, left, tall, wide
    tall = round(width / RATIO[0]) if width / height < RATIO[0] else height
    wide = round(height * RATIO[1]) if width / height > RATIO[1] else width
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _by_size(
    images: Iterable[Tensor], view: Callable[[Tensor], Float[Tensor, "batch 3 size size"]]
) -> list[Float[Tensor, "3 size size"]]:
    """The views of pictures in their order. Pictures of one size are computed together, as many as have no
    more than ``PIXELS_AT_ONCE``: with the same numbers as each alone, in fewer steps on a GPU.
    """
    pictures = [*images]
    indices: dict[tuple[int, int], list[int]] = {}
    for index, picture in enumerate(pictures):
        indices.setdefault((picture.shape[-2], picture.shape[-1]), []).append(index)
    views: dict[int, Tensor] = {}
    for (height, width), same in indices.items():
        count = max(1, PIXELS_AT_ONCE // (height * width))
        for first in range(0, len(same), count):
            part = same[first : first + count]
            batch = [pictures[index] for index in part]
            joined = torch.stack(batch) if len(batch) > 1 else batch[0][None]  # a single one is not copied
            views.update(zip(part, view(joined), strict=True))
    return [views[index] for index in range(len(pictures))]


def _centre(images: Tensor, size: int) -> Float[Tensor, "batch 3 size size"]:
    height, width = images.shape[-2:]
    short = min(height, width)
    height, width = size * height // short, size * width // short
    top, left = round((height - size) / 2), round((width - size) / 2)
    return _resized(images, height, width)[..., top : top + size, left : left + size]


def _without_ends(image: Tensor) -> Tensor:
    """The middle of a thin picture, half of ``THIN`` short sides long: a strip of 1 x 1,000,000 pixels would
    take gigabytes after its short side is resized.
    """
    short, long = sorted(image.shape[-2:])
    if long <= THIN * short:
        return image
    length = THIN // 2 * short + long % 2  # of the same parity, so that the centre does not move
    return image.narrow(-2 if image.shape[-2] == long else -1, (long - length) // 2, length)


def _resized(images: Tensor, height: int, width: int) -> Float[Tensor, "batch 3 height width"]:
    pictures = images.to(torch.float32)
    if images.shape[-2:] != (height, width):
        pictures = F.interpolate(pictures, (height, width), mode="bicubic", antialias=True)
    return pictures


def _to_unit(levels: Tensor) -> Float[Tensor, "batch 3 size size"]:
    """8-bit levels to [0, 1]; bicubic filters overshoot at edges, so it clips."""
    return levels.to(torch.float32).div(255).clamp_(0, 1)
