"""What a class looks like beyond its name: habits and shifts of its own, drawn from the seed of the task.

Each half of the classes covers strengths and values evenly, so that neither half is harder by the draw.
"""

import torch

from dear.data.world.factors import FACTORS
from dear.data.world.hashing import Stream


def own_strengths(kind: str, strongest: float, classes: int, seed: int) -> tuple[float, ...]:
    """The strength of a shift for each class: in each half, evenly spaced from 0 to the strongest one."""
    return tuple(
        strongest * place / max(1, len(half) - 1)
        for half in _halves(classes)
        for place in _shuffled(len(half), seed, f"own {kind} {half.start}")
    )


def preferred_values(factor: str, classes: int, seed: int) -> tuple[int, ...]:
    """The value of a factor that each class prefers: in each half, all values before one comes twice."""
    size = len(FACTORS[factor])
    return tuple(
        _shuffled(size, seed, f"habit {factor} {half.start}")[place % size]
        for half in _halves(classes)
        for place in range(len(half))
    )


def _halves(classes: int) -> tuple[range, range]:
    """The labels of the base and of the novel classes."""
    middle = (classes + 1) // 2
    return range(middle), range(middle, classes)


def _shuffled(count: int, seed: int, slot: str) -> list[int]:
    """The numbers below a count in a seeded order."""
    rank = Stream(seed, torch.arange(count)).bits(slot)[:, 0].tolist()
    return sorted(range(count), key=rank.__getitem__)
