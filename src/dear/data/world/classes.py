"""The classes of a task: combinations of factor values in an order, and the habits and shifts of each.

All are drawn from the seed of the task. Each half of the classes covers values and strengths evenly, so that
neither half is harder by the draw.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from dear.data.world.factors import FACTORS
from dear.data.world.hashing import Stream

Class = tuple[int, ...]


def choose_classes(values: Sequence[Sequence[int]], count: int, seed: int) -> list[Class]:
    """A seeded choice of combinations, one value of each factor, in label order.

    The first ceil(count / 2) are the base classes, the rest the novel ones. Each half covers the values
    evenly, and the novel half only uses values of the base half if there are enough such combinations.
    """
    candidates = _ranked(values, seed)
    if count > len(candidates):
        raise ValueError(f"{count} classes were requested, but there are only {len(candidates)} combinations")
    base = _spread(candidates, (count + 1) // 2)
    base_values = {pair for combination in base for pair in enumerate(combination)}
    unused = [candidate for candidate in candidates if candidate not in base]
    familiar = [candidate for candidate in unused if base_values.issuperset(enumerate(candidate))]
    novel = _spread(familiar, min(count // 2, len(familiar)))
    unfamiliar = [candidate for candidate in unused if candidate not in novel]
    return base + novel + _spread(unfamiliar, count // 2 - len(novel))


def _ranked(values: Sequence[Sequence[int]], seed: int) -> list[Class]:
    """All combinations in a seeded order."""
    candidates = list(product(*values))
    rank = Stream(seed, torch.arange(len(candidates))).bits("classes")[:, 0].tolist()
    return [candidate for _, candidate in sorted(zip(rank, candidates, strict=True))]


def _spread(candidates: Sequence[Class], count: int) -> list[Class]:
    """Pick candidates one by one, always the one whose values were used least so far (ties: the first)."""
    remaining, classes, uses = list(candidates), list[Class](), Counter[tuple[int, int]]()
    for _ in range(count):
        best = min(remaining, key=lambda candidate: sum(uses[pair] ** 2 for pair in enumerate(candidate)))
        remaining.remove(best)
        classes.append(best)
        uses.update(enumerate(best))
    return classes


def classes_of(row: dict[str, Any]) -> list[Class]:
    """The classes of a task row: those it lists as value names under `list`, or a seeded choice.

    `values` gives for each factor the names to choose from, or their number (then a seeded choice); base and
    novel classes share no value of the factors under `apart`.
    """
    names = row["factors"]
    if "apart" in row:
        return _with_values_apart(row)
    if "list" in row:
        return [
            tuple(FACTORS[name].values.index(value) for name, value in zip(names, values, strict=True))
            for values in row["list"]
        ]
    return choose_classes(
        [_pool(name, row["values"][name], row["seed"]) for name in names], row["classes"], row["seed"]
    )


def _with_values_apart(row: dict[str, Any]) -> list[Class]:
    """A seeded choice in which some factors have other values in the novel half than in the base half."""
    seed, count = row["seed"], row["classes"]
    pools = {name: _pool(name, row["values"][name], seed) for name in row["factors"]}
    classes: list[Class] = []
    for half, size in enumerate(((count + 1) // 2, count // 2)):
        values = [_part(pool, half, seed) if name in row["apart"] else pool for name, pool in pools.items()]
        candidates = [candidate for candidate in _ranked(values, seed) if candidate not in classes]
        classes += _spread(candidates, size)
    return classes


def _part(pool: Sequence[int], half: int, seed: int) -> list[int]:
    """The values of the base (0) or the novel half (1)."""
    ranked = [value for (value,) in _ranked([pool], seed)]
    return sorted(ranked[half::2])


def _pool(factor: str, values: int | list[str], seed: int) -> list[int]:
    names = FACTORS[factor].values
    if isinstance(values, list):
        return [names.index(value) for value in values]
    return sorted(_shuffled(len(names), seed, f"pool {factor}")[:values])


def classname(row: dict[str, Any], values: Class) -> str:
    """The class name by the row's pattern; a place is written as its usual phrase, "in the forest"."""
    words = {}
    for name, value in zip(row["factors"], values, strict=True):
        words[name] = FACTORS[name].words[value][0] if name == "place" else FACTORS[name].values[value]
    return str(row["pattern"].format(**words))


def shift_strengths(kind: str, strongest: float, classes: int, seed: int) -> tuple[float, ...]:
    """The strength of a shift for each class: in each half, evenly spaced from 0 to the strongest one."""
    return tuple(
        strongest * step / max(1, len(half) - 1)
        for half in _halves(classes)
        for step in _shuffled(len(half), seed, f"own {kind} {half.start}")
    )


def preferred_values(factor: str, classes: int, seed: int) -> tuple[int, ...]:
    """The value of a factor that each class prefers: in each half, all values before one comes twice."""
    size = len(FACTORS[factor])
    return tuple(
        _shuffled(size, seed, f"habit {factor} {half.start}")[index % size]
        for half in _halves(classes)
        for index in range(len(half))
    )


def _halves(classes: int) -> tuple[range, range]:
    """The labels of the base and of the novel classes."""
    middle = (classes + 1) // 2
    return range(middle), range(middle, classes)


def _shuffled(count: int, seed: int, slot: str) -> list[int]:
    """The numbers below a count in a seeded order."""
    rank = Stream(seed, torch.arange(count)).bits(slot)[:, 0].tolist()
    return sorted(range(count), key=rank.__getitem__)
