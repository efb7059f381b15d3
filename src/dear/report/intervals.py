"""Intervals: Student's t for the mean of few values; shares of images, and their differences, on one set."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist, fmean, stdev

STEPS = 2000
LEVEL = 0.95
"""Level of every interval."""
FEWEST = 3
"""Values for a t interval: that of two is 12.7 standard errors wide to each side, and says nothing."""


def half_width(values: Sequence[float], level: float = LEVEL) -> float | None:
    """Half the width of the t interval of the mean; None with fewer than `FEWEST` values."""
    if len(values) < FEWEST:
        return None
    return t_quantile(0.5 + level / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def paired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float | None]:
    """Mean of the differences one - other, and half the width of its t interval, or None."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    return fmean(differences), half_width(differences)


def share_interval(hits: int, of: int) -> tuple[float, float]:
    """The interval of a share, at `LEVEL`. Source: Wilson, JASA 22 (1927)."""
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    centre, spread = hits + z * z / 2, z * math.sqrt(hits * (of - hits) / of + z * z / 4)
    return max(0.0, (centre - spread) / (of + z * z)), min(1.0, (centre + spread) / (of + z * z))


def gain_interval(gained: int, lost: int, of: int) -> tuple[float, float]:
    """The interval, at `LEVEL`, of the difference of two shares of the same items, if ``gained`` count for
    the first alone and ``lost`` for the second alone: Wald's, with half an item added to each of the four
    counts. Source: Agresti and Min, Statistics in Medicine 24 (2005), section 3.
    """
    z, items = NormalDist().inv_cdf(0.5 + LEVEL / 2), of + 2
    mean = (gained - lost) / items
    spread = z * math.sqrt((gained + lost + 1) - (gained - lost) ** 2 / items) / items
    return max(-1.0, mean - spread), min(1.0, mean + spread)


@cache
def t_quantile(p: float, degrees: int) -> float:
    """The p-quantile (p > 0.5) of Student's t, to about six digits: Simpson's rule and bisection."""
    low, high = 0.0, 1.0
    while _above(high, degrees) > 1 - p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _above(middle, degrees) > 1 - p else (low, middle)
    return (low + high) / 2


def _above(t: float, degrees: int) -> float:
    """P(T > t): the integral over the angle with tan(angle) = t / sqrt(degrees), whose range is finite."""
    start, end = math.atan(t / math.sqrt(degrees)), math.pi / 2
    width = (end - start) / STEPS
    heights = [math.cos(start + i * width) ** (degrees - 1) for i in range(STEPS + 1)]
    total = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    whole = math.lgamma(0.5) + math.lgamma(degrees / 2) - math.lgamma((degrees + 1) / 2)
    return total * width / 3 / math.exp(whole)
