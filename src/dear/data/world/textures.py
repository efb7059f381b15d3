"""The eight textures: the share of the second colour at each pixel."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.data.world.factors import FACTORS
from dear.data.world.hashing import Stream
from dear.data.world.silhouettes import wave

Plane = Float[Tensor, "batch height width"]
_SPECKS = 1 << 12


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


_PATTERNS: dict[str, Callable[[Plane, Plane, float], Plane]] = {
    "plain": _plain,
    "striped": _striped,
    "dotted": _dotted,
    "checkered": _checkered,
    "zigzag": _zigzag,
    "crosshatched": _crosshatched,
    "wavy": _wavy,
    "speckled": _speckled,
}


def texture(value: Int[Tensor, "batch"], across: Plane, down: Plane, soft: float) -> Plane:
    """The share of the second colour; positions are in periods, `soft` is the width of a pixel in periods."""
    share = torch.empty_like(across)
    for number, name in enumerate(FACTORS["texture"].values):
        rows = (value == number).nonzero()[:, 0]
        if len(rows):
            share[rows] = _PATTERNS[name](across[rows], down[rows], soft)
    return share
