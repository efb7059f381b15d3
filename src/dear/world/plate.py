"""The plate: its textures, and the outlines of shapes and objects, an atlas of signed distances.

A signed distance gives a clean edge and a rim of any width at any size. Images are computed with exactly
rounded operations only (no transcendental or fused ones), so that CPU and GPU should agree bit for bit.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image, ImageDraw
from torch import Tensor

from dear.world.factors import FACTORS
from dear.world.hashing import Stream
from dear.world.names import packaged_json

EXTENT = 1.25
GRID = 64
_FINE = 5
_SPECKS = 1 << 12

Plane = Float[Tensor, "batch height width"]


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
    for part in packaged_json("outlines")[kind][FACTORS[kind].values[value]]:
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
    """Distance to the edge of a mask at the center of each 5 x 5 cell, negative inside, in half boxes."""
    edge = torch.zeros_like(mask)
    edge[:, 1:] |= mask[:, 1:] ^ mask[:, :-1]
    edge[1:] |= mask[1:] ^ mask[:-1]
    centers = torch.arange(GRID, dtype=torch.float64) * _FINE + (_FINE - 1) / 2
    points = torch.cartesian_prod(centers, centers)
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
    center: Float[Tensor, "batch 2"],
    turn: Float[Tensor, "batch"],
) -> tuple[Float[Tensor, "batch height width"], Float[Tensor, "batch height width"]]:
    """Pixel positions relative to a center, rotated back; lengths stay fractions of the picture."""
    sine, cosine = wave(turn)[:, None, None], wave(turn + 0.25)[:, None, None]
    across, down = x - center[:, 0, None, None], y - center[:, 1, None, None]
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


def _triangle(position: Plane) -> Plane:
    """A triangle wave of period 1: 1 at whole numbers, 0 half way."""
    return (position - torch.floor(position + 0.5)).abs() * -2 + 1


def _soft(height: Plane, soft: float) -> Plane:
    """0 below and 1 above zero, with a soft edge about one pixel wide."""
    return (height * (1 / soft) + 0.5).clamp(0, 1)


def _plain(across: Plane, _down: Plane, _soft: float) -> Plane:
    return torch.zeros_like(across)


def _striped(across: Plane, _down: Plane, soft: float) -> Plane:
    return _soft(_triangle(across) - 0.5, 2 * soft)


def _dotted(across: Plane, down: Plane, soft: float) -> Plane:
    row = torch.floor(down)
    shifted = across + row * 0.5
    x, y = shifted - torch.floor(shifted) - 0.5, down - row - 0.5
    return _soft(0.33 - torch.sqrt(x * x + y * y), soft)


def _checkered(across: Plane, down: Plane, soft: float) -> Plane:
    first = _soft(_triangle(across * 0.75) - 0.5, 1.5 * soft) * 2 - 1
    second = _soft(_triangle(down * 0.75) - 0.5, 1.5 * soft) * 2 - 1
    return first * second * 0.5 + 0.5


def _zigzag(across: Plane, down: Plane, soft: float) -> Plane:
    return _soft(_triangle(down + _triangle(across * 0.72) * 0.8) - 0.5, 3 * soft)


def _crosshatched(across: Plane, down: Plane, soft: float) -> Plane:
    first, second = _triangle((across + down) * 0.72), _triangle((across - down) * 0.72)
    return _soft(torch.maximum(first, second) - 0.72, 1.5 * soft)


def _wavy(across: Plane, down: Plane, soft: float) -> Plane:
    return _soft(_triangle(down + wave(across * 0.34) * 0.5) - 0.5, 2.4 * soft)


def _speckled(across: Plane, down: Plane, _soft: float) -> Plane:
    """Cells a third of a period wide, each dark or not by a fixed table of random numbers."""
    cell = (torch.floor(across * 3.0) * 61 + torch.floor(down * 3.0) * 1021).to(torch.int64) & (_SPECKS - 1)
    table = Stream(61, torch.arange(_SPECKS)).chance("specks", 0.36).to(across.dtype).to(across.device)
    return table[cell]


_PATTERNS: dict[str, Callable[[Plane, Plane, float], Plane]] = {pattern.__name__[1:]: pattern for pattern in (
    _plain, _striped, _dotted, _checkered, _zigzag, _crosshatched, _wavy, _speckled
)}  # fmt: skip


def texture(value: Int[Tensor, "batch"], across: Plane, down: Plane, soft: float) -> Plane:
    """The share of the second color; positions are in periods, `soft` is the width of a pixel in periods."""
    share = torch.empty_like(across)
    for number, name in enumerate(FACTORS["texture"].values):
        rows = (value == number).nonzero()[:, 0]
        if len(rows):
            share[rows] = _PATTERNS[name](across[rows], down[rows], soft)
    return share
