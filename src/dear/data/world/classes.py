"""The combinations of factor values that are the classes of a task, and their order."""

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
    candidates = list(product(*values))
    if count > len(candidates):
        raise ValueError(f"{count} classes were requested, but there are only {len(candidates)} combinations")
    candidates = _ranked(values, seed)
    base = _spread(candidates, (count + 1) // 2)
    seen = set(_values_of(base))
    rest = [candidate for candidate in candidates if candidate not in base]
    familiar = [candidate for candidate in rest if seen.issuperset(enumerate(candidate))]
    novel = _spread(familiar, min(count // 2, len(familiar)))
    others = [candidate for candidate in rest if candidate not in novel]
    return base + novel + _spread(others, count // 2 - len(novel))


def _ranked(values: Sequence[Sequence[int]], seed: int) -> list[Class]:
    """All combinations in a seeded order."""
    candidates = list(product(*values))
    rank = Stream(seed, torch.arange(len(candidates))).bits("classes")[:, 0].tolist()
    return [candidate for _, candidate in sorted(zip(rank, candidates, strict=True))]


def _values_of(classes: Sequence[Class]) -> list[tuple[int, int]]:
    """Every (position, value) that occurs, as often as it occurs."""
    return [pair for combination in classes for pair in enumerate(combination)]


def _spread(candidates: Sequence[Class], count: int) -> list[Class]:
    """Pick candidates one by one, always the one whose values were used least so far (ties: the first)."""
    left, chosen, uses = list(candidates), list[Class](), Counter[tuple[int, int]]()
    for _ in range(count):
        best = min(left, key=lambda candidate: sum(uses[pair] ** 2 for pair in enumerate(candidate)))
        left.remove(best)
        chosen.append(best)
        uses.update(enumerate(best))
    return chosen


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
    chosen: list[Class] = []
    for half, wanted in enumerate(((count + 1) // 2, count // 2)):
        own = [_part(pool, half, seed) if name in row["apart"] else pool for name, pool in pools.items()]
        left = [candidate for candidate in _ranked(own, seed) if candidate not in chosen]
        chosen += _spread(left, wanted)
    return chosen


def _part(pool: Sequence[int], half: int, seed: int) -> list[int]:
    """The values of the base (0) or the novel half (1)."""
    ranked = [value for (value,) in _ranked([pool], seed)]
    return sorted(ranked[half::2])


def _pool(factor: str, wanted: int | list[str], seed: int) -> list[int]:
    known = FACTORS[factor].values
    if isinstance(wanted, list):
        return [known.index(value) for value in wanted]
    rank = Stream(seed, torch.arange(len(known))).bits(f"pool {factor}")[:, 0].tolist()
    return sorted(sorted(range(len(known)), key=rank.__getitem__)[:wanted])


def classname(row: dict[str, Any], values: Class) -> str:
    """The class name by the row's pattern; a place is written as its usual phrase, "in the forest"."""
    words = {}
    for name, value in zip(row["factors"], values, strict=True):
        words[name] = FACTORS[name].words[value][0] if name == "place" else FACTORS[name].values[value]
    return str(row["pattern"].format(**words))
