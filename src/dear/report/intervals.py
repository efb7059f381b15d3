"""Intervals: Student's t for the mean of few values; shares of images, and their differences on one set, with
their test. scipy is loaded when the first of its functions is used.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, stdev

from dear.text import plural

LEVEL = 0.95
"""Level of every interval."""
FEWEST = 3
"""Values for a t interval: that of two is 12.7 standard errors wide to each side, and says nothing."""

GROUPED = 0.9
"""Groups per image below which the images are said to be too dependent for the intervals."""


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the t interval of the mean, at `LEVEL`; None with fewer than `FEWEST` values."""
    return t_half_width(stdev(values), len(values)) if len(values) >= FEWEST else None


def t_half_width(deviation: float, count: int) -> float | None:
    """The same of values of which the sample deviation is known."""
    from scipy.stats import t

    if count < FEWEST:
        return None
    return float(t.ppf(0.5 + LEVEL / 2, count - 1)) * deviation / math.sqrt(count)


def share_interval(hits: int, of: int) -> tuple[float, float]:
    """The interval of a share, at `LEVEL`. Source: Wilson, JASA 22 (1927)."""
    z2 = NormalDist().inv_cdf(0.5 + LEVEL / 2) ** 2
    middle, width = hits + z2 / 2, math.sqrt(z2 * hits * (of - hits) / of + z2 * z2 / 4)
    return max(0.0, (middle - width) / (of + z2)), min(1.0, (middle + width) / (of + z2))


def rank_interval(rank: int, of: int) -> tuple[float, float]:
    """The interval, at `LEVEL`, of the share of new items below that of a rank, from 1, among as many others
    that come from the same distribution: that share has the distribution Beta(rank, of + 1 - rank).
    """
    from scipy.special import betaincinv  # scipy.stats takes half a second to load

    low, high = betaincinv(rank, of + 1 - rank, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return float(low), float(high)


def gain_interval(gained: int, lost: int, of: int) -> tuple[float, float]:
    """The interval, at `LEVEL`, of the difference of two shares of the same items, if ``gained`` count for
    the first alone and ``lost`` for the second alone: Wald's, with half an item added to each of the four
    counts. Source: Agresti and Min, Statistics in Medicine 24 (2005), section 3.
    """
    z, items = NormalDist().inv_cdf(0.5 + LEVEL / 2), of + 2
    mean = (gained - lost) / items
    spread = z * math.sqrt((gained + lost + 1) - (gained - lost) ** 2 / items) / items
    return max(-1.0, mean - spread), min(1.0, mean + spread)


def mcnemar_test(gained: int, lost: int) -> float:
    """The two-sided p-value of McNemar's exact test that a difference as of `gain_interval` is 0; 1 if the
    shares count the same items. Source: McNemar, Psychometrika 12 (1947); exact: the binomial test.
    """
    from scipy.stats import binomtest

    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def describe_groups(groups: int, images: int) -> list[str]:
    """That intervals are too narrow, if so many images are from few groups."""
    if not 0 < groups < GROUPED * images:
        return []
    return [
        f"These images are from {plural(groups, 'group')}, and the intervals count each image: "
        "they are too narrow."
    ]
