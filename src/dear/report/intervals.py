"""Student's t intervals for the mean of few values."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

STEPS = 2000


def half_width(values: Sequence[float], level: float = 0.95) -> float | None:
    """Half the width of the t interval of the mean; None with fewer than two values."""
    if len(values) < 2:
        return None
    return t_quantile(0.5 + level / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def paired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float | None]:
    """Mean of the differences one - other, and the half-width of its 95% t interval."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    return fmean(differences), half_width(differences)


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
