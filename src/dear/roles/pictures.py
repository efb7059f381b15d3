"""Images that a head responds to most and least, and where in them it looks: for the page of a role table,
never part of the table.

An image's score in a head is the projection of the head's contribution to its embedding, less the mean
contribution over the images, onto the direction of the head's first TEXTSPAN phrase.

Source: Gandelsman et al., ICLR 2024, the figure of the top images for a head's first description; their score
is not centered, which gives the same order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.patch_contributions import patch_contributions
from dear.data.dataset import Images
from dear.data.fewshot import Subset
from dear.data.images.transforms import load_test_views
from dear.progress import Progress, silent
from dear.reading.typed import Range, check_value
from dear.roles.decompose import Decomposition, batches
from dear.roles.table import Head

ImagesOfHead = Annotated[int, Range(0, 50)]
SIDE = 64
"""Pixels of a thumbnail's side, or the model's own if they are fewer."""
LOOKS = 2
"""Images of each head, those with the largest scores, on which it is shown where the head looks."""
LOOKED_AT_ONCE = 8
FLAT = 1e-6
"""A head whose scores vary less than this share of those of the head that varies most responds to nothing."""


@dataclass(frozen=True)
class RankedImage:
    """An image of a head: its number in the analyzed set and its score in standard deviations."""

    image: int
    score: float


@dataclass(frozen=True)
class HeadImages:
    """Images with the largest scores, largest first, and with the smallest, smallest first."""

    most: tuple[RankedImage, ...]
    least: tuple[RankedImage, ...]


@dataclass(frozen=True)
class Look:
    """Where a head looks in an image.

    Attributes:
        image: The number of the image.
        grid: What each patch adds to the head's contribution along its direction; no mean is taken off.
        class_token: What the class token adds; 0 for a tower without one.
    """

    image: int
    grid: Float[Tensor, "row column"]
    class_token: float


@dataclass(frozen=True)
class HeadGallery:
    """The images of a page.

    Attributes:
        considered: How many images the heads' images were chosen from.
        heads: By (layer, head); a head whose contributions do not vary has no images.
        thumbnails: The center square of each image that occurs, as the model sees it, 8-bit RGB.
        names: The file or the class of each.
        looks: By (layer, head), where the head looks in the images with its largest scores.
    """

    considered: int
    heads: dict[Head, HeadImages]
    thumbnails: dict[int, UInt8[Tensor, "3 side side"]]
    names: dict[int, str]
    looks: dict[Head, tuple[Look, ...]] = field(default_factory=dict)


def extremes(
    scores: Float[Tensor, "item"], count: int
) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Positions and values of the largest and of the smallest scores; ties: the first. No item is in both: of
    fewer than twice ``count`` items each list gets half.
    """
    count = min(count, len(scores) // 2)
    down = torch.sort(scores, descending=True, stable=True).indices[:count].tolist()
    up = torch.sort(scores, stable=True).indices[:count].tolist()
    return [(at, float(scores[at])) for at in down], [(at, float(scores[at])) for at in up]


@torch.no_grad()
def build_gallery(
    clip: Clip,
    images: Images,
    decomposition: Decomposition,
    directions: Float[Tensor, "layer head embed"],
    *,
    a_head: int = 10,
    name: Callable[[int], str] = "image {}".format,
    batch: int = 50,
    progress: Progress = silent,
) -> HeadGallery:
    """The images of each head by their scores along its direction, with thumbnails. ``decomposition`` must
    hold the coordinates of ``images``; ``name`` names an image by its number. Each image of the page is
    loaded once. Raises SettingsError for ``a_head``.
    """
    check_value("images_a_head", a_head, ImagesOfHead)
    scores = decomposition.project(directions)
    ranked: dict[Head, HeadImages] = {}
    deviations = scores.std(dim=0, unbiased=False)
    for at, layer in enumerate(decomposition.layers):
        for head in range(scores.shape[2]):
            scale = float(deviations[at, head])
            if scale <= FLAT * float(deviations.max()):
                continue
            sides = extremes(scores[:, at, head], a_head)
            ranked[layer, head] = HeadImages(
                *(tuple(RankedImage(item, value / scale) for item, value in side) for side in sides)
            )
    numbers = sorted({image.image for sides in ranked.values() for image in (*sides.most, *sides.least)})
    thumbnails: dict[int, Tensor] = {}
    side = min(SIDE, clip.image_size)
    preprocess = replace(clip.preprocess, size=side, short_side=None)
    for start in range(0, len(numbers), batch):
        part = numbers[start : start + batch]
        levels = load_test_views(images, torch.tensor(part), preprocess)
        thumbnails.update(zip(part, levels, strict=True))
        progress("pictures", start + len(part), len(numbers))
    names = {number: name(number) for number in numbers}
    looks = find_looks(clip, images, ranked, decomposition.layers, directions, progress)
    return HeadGallery(len(scores), ranked, thumbnails, names, looks)


def find_looks(
    clip: Clip,
    images: Images,
    ranked: Mapping[Head, HeadImages],
    layers: Sequence[int],
    directions: Float[Tensor, "layer head embed"],
    progress: Progress = silent,
) -> dict[Head, tuple[Look, ...]]:
    """Where each head looks in its first `LOOKS` images."""
    wanted = {head: [image.image for image in sides.most[:LOOKS]] for head, sides in ranked.items()}
    numbers = sorted({number for chosen in wanted.values() for number in chosen})
    patches, found, done = clip.image.side**2, dict[tuple[Head, int], Look](), 0
    for pixels in batches(clip, Subset(images, torch.tensor(numbers)), LOOKED_AT_ONCE) if numbers else ():
        parts = patch_contributions(clip.image, pixels, layers, directions).float().cpu()
        for row, number in enumerate(numbers[done : done + len(pixels)]):
            for (layer, head), chosen in wanted.items():
                if number in chosen:
                    values = parts[row, layers.index(layer), head]
                    grid = values[-patches:].unflatten(0, (clip.image.side, -1)).clone()
                    found[(layer, head), number] = Look(number, grid, float(values[:-patches].sum()))
        done += len(pixels)
        progress("where heads look", done, len(numbers))
    return {
        head: tuple(found[head, number] for number in chosen) for head, chosen in wanted.items() if chosen
    }
