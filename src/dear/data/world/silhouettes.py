"""Outlines of shapes and objects: drawn once, stored as an atlas of signed distances, placed on each image.

A signed distance gives a clean edge and a rim of any width at any size. Images are computed with exactly
rounded operations only (no transcendental or fused ones), so that CPU and GPU should agree bit for bit.
"""

from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image, ImageDraw
from torch import Tensor

from dear.data.world.factors import FACTORS, bulk

EXTENT = 1.25
GRID = 64
_FINE = 5


def wave(turns: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """A sine of an angle in turns, to 0.001, by two parabolas: exact operations only."""
    half = (turns - torch.floor(turns + 0.5)) * 2
    arch = half * (1 - half.abs()) * 4
    return (arch * arch.abs() - arch) * 0.225 + arch


@cache
def drawn_mask(kind: str, value: int) -> Bool[Tensor, "row column"]:
    """A filled outline from -EXTENT to EXTENT, at 5 times the resolution of the atlas."""
    side = GRID * _FINE
    picture = Image.new("L", (side, side))
    pen = ImageDraw.Draw(picture)
    for part in bulk("outlines")[kind][FACTORS[kind].values[value]]:
        ink = 0 if part.get("cut") else 255
        if "line" in part:
            pen.line(
                _pixels(part["line"]),
                fill=ink,
                width=round(part["width"] * side / (2 * EXTENT)),
                joint="curve",
            )
        elif "ellipse" in part:
            pen.ellipse(_pixels(part["ellipse"]), fill=ink)
        else:
            pen.polygon(_pixels(part["polygon"]), fill=ink)
    return torch.from_numpy(np.asarray(picture) > 127)


def _pixels(coordinates: list[float]) -> list[float]:
    return [(number + EXTENT) * GRID * _FINE / (2 * EXTENT) - 0.5 for number in coordinates]


def signed_distance(mask: Bool[Tensor, "fine fine"]) -> Float[Tensor, "row column"]:
    """Distance to the edge of a mask at the centre of each 5 x 5 cell, negative inside, in half boxes."""
    edge = torch.zeros_like(mask)
    edge[:, 1:] |= mask[:, 1:] ^ mask[:, :-1]
    edge[1:] |= mask[1:] ^ mask[:-1]
    centres = torch.arange(GRID, dtype=torch.float64) * _FINE + (_FINE - 1) / 2
    points = torch.cartesian_prod(centres, centres)
    distance = torch.cdist(points, edge.nonzero().to(torch.float64)).amin(dim=1).reshape(GRID, GRID)
    inside = mask[_FINE // 2 :: _FINE, _FINE // 2 :: _FINE]
    return (torch.where(inside, -distance, distance) * (2 * EXTENT / (GRID * _FINE))).to(torch.float32)


@cache
def atlas(kind: str, device: torch.device) -> Float[Tensor, "texel"]:
    """The signed distances of every value of a factor, flattened: value, row, column."""
    if device.type != "cpu":
        return atlas(kind, torch.device("cpu")).to(device)
    return torch.stack(
        [signed_distance(drawn_mask(kind, value)) for value in range(len(FACTORS[kind]))]
    ).flatten()


def local_frame(
    x: Float[Tensor, "height width"],
    y: Float[Tensor, "height width"],
    centre: Float[Tensor, "batch 2"],
    turn: Float[Tensor, "batch"],
) -> tuple[Float[Tensor, "batch height width"], Float[Tensor, "batch height width"]]:
    """Pixel positions relative to a centre, rotated back; lengths stay fractions of the picture."""
    sine, cosine = wave(turn)[:, None, None], wave(turn + 0.25)[:, None, None]
    across, down = x - centre[:, 0, None, None], y - centre[:, 1, None, None]
    return cosine * across + sine * down, cosine * down - sine * across


def distance(
    kind: str,
    value: Int[Tensor, "batch"],
    across: Float[Tensor, "batch height width"],
    down: Float[Tensor, "batch height width"],
    size: Float[Tensor, "batch"],
) -> Float[Tensor, "batch height width"]:
    """Signed distance of each pixel to the outline; it and the size are fractions of the picture."""
    texels = atlas(kind, across.device)
    scale = (1 / size * (GRID / EXTENT))[:, None, None]
    column = (across * scale + (GRID - 1) / 2).clamp(0, GRID - 1.001)
    row = (down * scale + (GRID - 1) / 2).clamp(0, GRID - 1.001)
    column_floor, row_floor = column.floor(), row.floor()
    right, below = column - column_floor, row - row_floor
    first = (row_floor * GRID + column_floor).to(torch.int32) + (value * GRID * GRID).to(torch.int32)[
        :, None, None
    ]
    top = texels[first]
    top = (texels[first + 1] - top) * right + top
    bottom = texels[first + GRID]
    bottom = (texels[first + (GRID + 1)] - bottom) * right + bottom
    return ((bottom - top) * below + top) * (size * 0.5)[:, None, None]
