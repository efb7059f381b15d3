"""The factors of the Attribute World, their values and words, and what is held out of pretraining."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dear.world.names import packaged_json


@dataclass(frozen=True)
class Factor:
    """One factor: the names of its values and, for each, the words in captions (the usual one first)."""

    name: str
    values: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.values)


def _factor(name: str, rows: Sequence[Mapping[str, Any]]) -> Factor:
    return Factor(name, tuple(row["name"] for row in rows), tuple(tuple(row["words"]) for row in rows))


FACTORS: Mapping[str, Factor] = MappingProxyType(
    {name: _factor(name, rows) for name, rows in packaged_json("factors")["factors"].items()}
)
FACTOR_NAMES = tuple(FACTORS)
SIZES = tuple(len(FACTORS[name]) for name in FACTOR_NAMES)
STYLES = _factor("style", packaged_json("factors")["style"])


@dataclass(frozen=True)
class HeldOutPair:
    """Two factors (columns of the factor tensor) and the values that pretraining never shows together."""

    columns: tuple[int, int]
    values: Int[Tensor, "pair 2"]


@cache
def held_out_pairs() -> tuple[HeldOutPair, ...]:
    """Values a, b are held out where (3 a + 7 b + offset) mod 10 = 0.

    One pair in ten, spread evenly: no value loses more than two partners, so every value is learned.
    """
    pairs = []
    for row in packaged_json("factors")["held_out"]:
        first, second = (FACTOR_NAMES.index(name) for name in row["factors"])
        grid = torch.cartesian_prod(torch.arange(SIZES[first]), torch.arange(SIZES[second]))
        held_out = _held_out(grid[:, 0], grid[:, 1], row["offset"])
        pairs.append(HeldOutPair((first, second), grid[held_out]))
    return tuple(pairs)


def is_held_out(factors: Int[Tensor, "*batch factor"]) -> Bool[Tensor, "*batch"]:
    """True where a combination contains a held-out pair (about 27% of all combinations do)."""
    held_out = torch.zeros(factors.shape[:-1], dtype=torch.bool, device=factors.device)
    for row in packaged_json("factors")["held_out"]:
        first, second = (factors[..., FACTOR_NAMES.index(name)] for name in row["factors"])
        held_out |= _held_out(first, second, row["offset"])
    return held_out


def _held_out(first: Int[Tensor, "*any"], second: Int[Tensor, "*any"], offset: int) -> Bool[Tensor, "*any"]:
    return (3 * first + 7 * second + offset) % 10 == 0
