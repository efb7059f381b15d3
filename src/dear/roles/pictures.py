"""Images that a head responds to most and least: for the page of a discovery, never part of a role table.

An image's score in a head is the projection of the head's contribution to its embedding, less the mean
contribution over the images, onto the direction of the head's first TEXTSPAN phrase.

Source: Gandelsman et al., ICLR 2024, the figure of the top images for a head's first description; their score
is not centred, which gives the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from dear.backbone.class_attention import class_attention
from dear.backbone.clip import Clip
from dear.data.dataset import Images
from dear.data.fewshot import Subset
from dear.data.images.transforms import eval_views
from dear.errors import SettingsError
from dear.progress import Progress, silent
from dear.roles.decompose import Decomposition, batches
from dear.roles.table import Head

MOST_A_HEAD = 50
SIDE = 64
"""Pixels of a thumbnail's side, or the model's own if they are fewer."""
WITH_ATTENTION = 2
"""Of so many images at the top, the head's attention is kept."""
FLAT = 1e-6
"""A head whose scores vary less than this share of those of the head that varies most responds to nothing."""


@dataclass(frozen=True)
class Shown:
    """An image of a head: its number in the analysed set and its score in standard deviations."""

    image: int
    score: float


@dataclass(frozen=True)
class HeadImages:
    """Images with the largest scores, largest first, and with the smallest, smallest first. ``attention`` is
    that of the class token to the patches in the first images of ``most``.
    """

    most: tuple[Shown, ...]
    least: tuple[Shown, ...]
    attention: tuple[Float[Tensor, "row column"], ...]


@dataclass(frozen=True)
class Pictures:
    """What a page shows of the images.

    Attributes:
        considered: Among how many images those of the heads were chosen.
        heads: By (layer, head); a head whose contributions do not vary has no images.
        thumbnails: The centre square of each image that occurs, as the model sees it, 8-bit RGB.
        names: What each is called: its file or its class.
    """

    considered: int
    heads: dict[Head, HeadImages]
    thumbnails: dict[int, UInt8[Tensor, "3 side side"]]
    names: dict[int, str]


def check_count(a_head: int) -> None:
    """Raise SettingsError unless so many images of a head can be shown."""
    if not 0 <= a_head <= MOST_A_HEAD:
        raise SettingsError(f"images a head is {a_head}: it must be from 0 to {MOST_A_HEAD}.")


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
def pictures(
    clip: Clip,
    images: Images,
    found: Decomposition,
    directions: Float[Tensor, "layer head embed"],
    *,
    a_head: int = 10,
    name: Callable[[int], str] = "image {}".format,
    batch: int = 50,
    progress: Progress = silent,
) -> Pictures:
    """The images of each head by their scores along its direction, with thumbnails, and the attention in the
    first of them. ``found`` must hold the coordinates of ``images``; ``name`` is given the number of one.
    Each shown image is loaded once or twice. Raises SettingsError for ``a_head``.
    """
    check_count(a_head)
    assert found.coordinates is not None, "images are chosen by their contributions"
    items, layers = found.coordinates.items.tolist(), found.layers
    scores = found.coordinates.along(directions, found.moments.mean)
    chosen: dict[Head, HeadImages] = {}
    wanted: dict[int, list[tuple[int, int, int]]] = {}
    spread = scores.std(dim=0, unbiased=False)
    for at, layer in enumerate(layers):
        for head in range(scores.shape[2]):
            scale = float(spread[at, head])
            if scale <= FLAT * float(spread.max()):
                continue
            sides = tuple(
                tuple(Shown(items[item], value / scale) for item, value in side)
                for side in extremes(scores[:, at, head], a_head)
            )
            chosen[layer, head] = HeadImages(sides[0], sides[1], ())
            for one in sides[0][:WITH_ATTENTION]:
                wanted.setdefault(one.image, []).append((at, layer, head))
    looks = _attention(clip, images, layers, wanted, batch)
    chosen = {
        place: replace(one, attention=tuple(looks[place, s.image] for s in one.most[:WITH_ATTENTION]))
        for place, one in chosen.items()
    }
    shown = sorted({s.image for one in chosen.values() for s in (*one.most, *one.least)})
    thumbnails: dict[int, Tensor] = {}
    side = min(SIDE, clip.image_size)
    for start in range(0, len(shown), batch):
        part = shown[start : start + batch]
        views = eval_views(images.load(torch.tensor(part)), side)
        levels = (views * 255).round().to(torch.uint8).cpu()
        thumbnails.update(zip(part, levels, strict=True))
        progress("pictures", start + len(part), len(shown))
    return Pictures(len(scores), chosen, thumbnails, {one: name(one) for one in shown})


def _attention(
    clip: Clip,
    images: Images,
    layers: Sequence[int],
    wanted: dict[int, list[tuple[int, int, int]]],
    batch: int,
) -> dict[tuple[Head, int], Float[Tensor, "row column"]]:
    """The attention of the wanted heads, given by image as (position of the layer, layer, head)."""
    found: dict[tuple[Head, int], Tensor] = {}
    order = sorted(wanted)
    start = 0
    for pixels in batches(clip, Subset(images, torch.tensor(order, dtype=torch.int64)), batch):
        maps = class_attention(clip.image, pixels, layers).float().cpu()
        for row, image in enumerate(order[start : start + len(maps)]):
            for at, layer, head in wanted[image]:
                found[(layer, head), image] = maps[row, at, head].clone()
        start += len(maps)
    return found
