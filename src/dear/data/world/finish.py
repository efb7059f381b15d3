"""Post-processing of a painted picture: bars, hue, light, sketch, blur, blocks, levels, contrast, noise."""

from functools import cache

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from dear.data.world.hashing import Stream

Picture = Float[Tensor, "batch 3 height width"]
_GRAINS = 1 << 16


@cache
def _grains(device: torch.device) -> Float[Tensor, "grain"]:
    """A fixed table of nearly normal numbers (sums of four uniforms), mean 0, standard deviation 1."""
    four = Stream(71, torch.arange(_GRAINS)).uniforms("grains", 4)
    return ((four[:, 0] + four[:, 1] + four[:, 2] + four[:, 3] - 2) * 1.7320508).to(device)


def _shifted(picture: Picture, rows: int, columns: int) -> Picture:
    """The picture moved by at most one pixel, its border repeated."""
    height, width = picture.shape[-2:]
    down = torch.arange(height, device=picture.device).add(rows).clamp(0, height - 1)
    across = torch.arange(width, device=picture.device).add(columns).clamp(0, width - 1)
    return picture[:, :, down][:, :, :, across]


def blurred(picture: Picture) -> Picture:
    """One pass of the 3 x 3 binomial filter."""
    picture = picture * 0.5 + (_shifted(picture, -1, 0) + _shifted(picture, 1, 0)) * 0.25
    return picture * 0.5 + (_shifted(picture, 0, -1) + _shifted(picture, 0, 1)) * 0.25


def luminance(picture: Picture) -> Float[Tensor, "batch height width"]:
    """Grey level of a picture (Rec. 601 weights)."""
    return picture[:, 0] * 0.299 + picture[:, 1] * 0.587 + picture[:, 2] * 0.114


def sketched(picture: Picture) -> Picture:
    """Dark pencil lines on light paper where the luminance changes; no colour."""
    grey = luminance(picture)[:, None]
    across = _shifted(grey, 0, 1) - _shifted(grey, 0, -1)
    down = _shifted(grey, 1, 0) - _shifted(grey, -1, 0)
    edge = torch.sqrt(across * across + down * down)
    return (0.96 - edge * 1.6).clamp(0.05, 1).expand(-1, 3, -1, -1)


def in_blocks(picture: Picture, block: int) -> Picture:
    """Blocks `block` pixels wide at a picture width of 48, each with the colour of its (softened) centre."""
    size = picture.shape[-1]
    side = max(1, block * size // 48)
    place = torch.arange(size, device=picture.device)
    place = (torch.div(place, side, rounding_mode="floor") * side + side // 2).clamp(max=size - 1)
    return blurred(picture)[:, :, place][:, :, :, place]


def barred(picture: Picture, cover: Float[Tensor, "batch"], phase: Float[Tensor, "batch"]) -> Picture:
    """Slanted grey bars, five across the picture, that cover the given fraction of it."""
    height, width = picture.shape[-2:]
    x = torch.arange(width, device=picture.device)[None, :] * (1 / width)
    y = torch.arange(height, device=picture.device)[:, None] * (1 / height)
    position = (x + y * 0.5) * 5 + phase[:, None, None]
    inside = position - torch.floor(position) < cover[:, None, None]
    return torch.where(inside[:, None], 0.3, picture)


def hued(picture: Picture, share: Float[Tensor, "batch"]) -> Picture:
    """Mix the given share of the next channel into each: at 1, red becomes blue, green red, blue green."""
    other = picture[:, [1, 2, 0]]
    return (other - picture) * share[:, None, None, None] + picture


def lit(picture: Picture, gain: Float[Tensor, "batch 3"], gradient: Float[Tensor, "batch 2"]) -> Picture:
    """Light: a gain for each channel, and a linear gradient across the picture."""
    height, width = picture.shape[-2:]
    x = (torch.arange(width, device=picture.device) + 0.5) * (1 / width) - 0.5
    y = (torch.arange(height, device=picture.device) + 0.5) * (1 / height) - 0.5
    light = gradient[:, 0, None, None] * x + gradient[:, 1, None, None] * y[:, None] + 1
    return picture * light[:, None] * gain[:, :, None, None]


def levelled(picture: Picture, levels: int) -> Picture:
    """A poster: each channel rounded to a few levels."""
    return torch.floor(picture.clamp(0, 1) * (levels - 1) + 0.5) * (1.0 / (levels - 1))


def rounded(
    picture: Picture,
    contrast: Float[Tensor, "batch"],
    noise: Float[Tensor, "batch"],
    grain: Int[Tensor, "batch"],
) -> UInt8[Tensor, "batch 3 height width"]:
    """Contrast about mid grey, noise (standard deviation, white is 1), then floor(255 x + 0.5)."""
    pixel = torch.arange(picture[0].numel(), device=picture.device).reshape(picture.shape[1:])
    place = (grain[:, None, None, None] + pixel) & (_GRAINS - 1)
    picture = (picture - 0.5) * contrast[:, None, None, None] + 0.5
    picture = _grains(picture.device)[place] * noise[:, None, None, None] + picture
    return torch.floor(picture.clamp(0, 1) * 255 + 0.5).to(torch.uint8)
