"""Intervals and tests: Student's t for the mean of few values; shares of images, differences of two shares on
the same images, and ranks. Images may be in groups, such as the frames of a clip: then the groups are what
counts. numpy and scipy are loaded when they are first used.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, stdev
from typing import TYPE_CHECKING, Any

from dear.text import plural

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
"""Level of every interval."""
QUANTILE = NormalDist().inv_cdf(0.5 + LEVEL / 2)
"""Standard errors that an interval of this level extends to each side."""
FEWEST = 3
"""Values for a t interval: that of two is 12.7 standard errors wide to each side, and says nothing."""

GROUPED = 0.9
"""Groups per image below which images are said to be in groups."""
PRIOR_GROUPS = 0.25
"""Groups, beside those that there are, whose images are all right or all wrong: so few groups that happen to
be alike do not count as many images (`effective_items`). Set by the coverage of simulated intervals."""
UNITS = 2**16
"""Steps of the sum of differences: it is exact of multiples of one unit, else rounded to these."""
BISECTIONS = 50
ROUNDING = 1e-9


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the t interval of the mean, at `LEVEL`; None with fewer than `FEWEST` values, and for
    values that are all the same, which do not say how much they vary.
    """
    if len(values) < FEWEST or is_constant(values):
        return None
    return t_half_width(stdev(values), len(values))


def is_constant(values: Sequence[float]) -> bool:
    """True if all values are the same but for rounding."""
    return max(values) - min(values) <= ROUNDING * max(map(abs, values))


def t_half_width(deviation: float, count: int) -> float | None:
    """The same of values of which the sample deviation is known."""
    from scipy.stats import t

    if count < FEWEST or deviation <= ROUNDING:
        return None
    return float(t.ppf(0.5 + LEVEL / 2, count - 1)) * deviation / math.sqrt(count)


def share_interval(hits: float, of: float) -> tuple[float, float]:
    """The interval of a share, at `LEVEL`. Source: Wilson, JASA 22 (1927)."""
    z2 = QUANTILE**2
    middle, width = hits + z2 / 2, math.sqrt(z2 * hits * (of - hits) / of + z2 * z2 / 4)
    return max(0.0, (middle - width) / (of + z2)), min(1.0, (middle + width) / (of + z2))


def group_share_interval(
    correct: "ArrayLike", groups: "Sequence[Hashable] | ArrayLike"
) -> tuple[float, float]:
    """The interval, at `LEVEL`, of the share of items that count, each from 0 to 1, where items of a group
    count together: Wilson's, for the effective number of independent items. It is Wilson's own where each
    item has a group of its own, or each group counts as a whole and they are of one size.

    Source: the effective sample size of Korn and Graubard, Survey Methodology 24 (1998), in Wilson's interval
    as in Dean and Pagano, Journal of Survey Statistics and Methodology 3 (2015).
    """
    import numpy as np

    values, numbers = np.asarray(correct, dtype=float), number_groups(groups)
    share, weights = float(values.mean()), np.full(len(values), 1 / len(values))
    items = effective_items(values - share, weights, numbers, share * (1 - share))
    return share_interval(share * items, items)


def exact_share_bounds(correct: "ArrayLike", groups: "Sequence[Hashable] | ArrayLike") -> tuple[float, float]:
    """The bound below the share of items that count and the bound above it, each by itself at `LEVEL`, where
    items of a group count together: those of Clopper and Pearson, for the effective number of independent
    items. Where each item has a group of its own they are exact.

    Source: Clopper and Pearson, Biometrika 26 (1934); Korn and Graubard, Survey Methodology 24 (1998).
    """
    import numpy as np
    from scipy.special import betaincinv  # scipy.stats takes half a second to load

    values, numbers = np.asarray(correct, dtype=float), number_groups(groups)
    share, weights = float(values.mean()), np.full(len(values), 1 / len(values))
    items = effective_items(values - share, weights, numbers, share * (1 - share))
    hits, misses = share * items, (1 - share) * items
    low = float(betaincinv(hits, misses + 1, 1 - LEVEL)) if hits > ROUNDING else 0.0
    high = float(betaincinv(hits + 1, misses, LEVEL)) if misses > ROUNDING else 1.0
    return low, high


def mean_difference_error(
    first: "ArrayLike", second: "ArrayLike", groups: "Sequence[Hashable] | ArrayLike | None" = None
) -> float:
    """The standard error of the mean of first - second over items, between groups of these: infinite for a
    single group, s / sqrt(n) where each item is on its own.
    """
    import numpy as np

    differences = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    count = len(differences)
    numbers = np.arange(count) if groups is None else number_groups(groups)
    sums = np.bincount(numbers, differences - differences.mean())
    if len(sums) < 2:
        return math.inf
    return float(np.sqrt(len(sums) / (len(sums) - 1) * np.square(sums).sum()) / count)


def mean_interval(
    values: "ArrayLike", groups: "Sequence[Hashable] | ArrayLike | None" = None
) -> tuple[float, float]:
    """The normal interval, at `LEVEL`, of the mean of values of which groups are independent
    (`mean_difference_error`), within the range of these; the whole range for a single group.
    """
    import numpy as np

    items = np.asarray(values, dtype=float)
    least, most, mean = float(items.min()), float(items.max()), float(items.mean())
    width = QUANTILE * mean_difference_error(items, np.zeros_like(items), groups)
    return max(least, mean - width), min(most, mean + width)


def number_groups(groups: "Sequence[Hashable] | ArrayLike") -> "NDArray[Any]":
    """Groups, by any names, as numbers from 0."""
    import numpy as np

    return np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)


def effective_items(
    deviations: "NDArray[Any]", weights: "NDArray[Any]", groups: "NDArray[Any]", variance: float
) -> float:
    """As many items, each on its own and with this variance, as tell the mean of items in groups as well: at
    most as many as there are, and where groups do not vary, at least as many as groups.

    Args:
        deviations: Of items from their mean.
        weights: Of items in the mean; their sum is 1.
        groups: The number of the group of each item.
    """
    import numpy as np

    of_groups, sizes = np.bincount(groups, weights * deviations), np.bincount(groups, weights)
    one_group = float(np.square(sizes).sum())
    prior = PRIOR_GROUPS * one_group
    items = (variance + prior) / (float(np.square(of_groups).sum()) + prior * one_group)
    return min(items, 1 / float(np.square(weights).sum()))


def rank_interval(rank: float, of: int) -> tuple[float, float]:
    """The interval, at `LEVEL`, of the share of new items below that of a rank, from 1, among as many others
    that come from the same distribution: that share has the distribution Beta(rank, of + 1 - rank).
    """
    from scipy.special import betaincinv  # scipy.stats takes half a second to load

    low, high = betaincinv(rank, of + 1 - rank, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Difference:
    """The difference of two shares on the same items.

    Attributes:
        low, high: Its interval at `LEVEL`; 0 is outside if and only if p is below 1 - `LEVEL`.
        p: The p-value of the exact test that it is 0.
    """

    mean: float
    low: float
    high: float
    p: float

    @property
    def is_clear(self) -> bool:
        """True if it is not 0 by test and interval."""
        return self.p < 1 - LEVEL


def paired_difference(
    differences: "ArrayLike",
    groups: "Sequence[Hashable] | ArrayLike | None" = None,
    weights: "ArrayLike | None" = None,
) -> Difference:
    """The mean of differences of items, each 1, 0 or -1, with its interval and test.

    The test is exact: under it, the difference of each group may as well have the other sign. Where each item
    is on its own it is McNemar's. The interval holds the differences that the score test with the variance of
    Tango does not reject, for as many items as are worth so much if each is on its own. Its critical value is
    the normal one, or as little above or below as makes it agree with the exact test [ours].

    Args:
        groups: Of items that count together; each is on its own if None.
        weights: Of items in the mean, all equal if None.

    Source: McNemar, Psychometrika 12 (1947); Tango, Statistics in Medicine 17 (1998); for groups, Yang, Sun
    and Hardin, Computational Statistics and Data Analysis 56 (2012).
    """
    import numpy as np

    values = np.asarray(differences, dtype=float)
    numbers = np.arange(len(values)) if groups is None else number_groups(groups)
    shares = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=float)
    shares = shares / shares.sum()
    mean, changed = float(shares @ values), float(shares @ np.square(values))
    items = effective_items(values - mean, shares, numbers, changed - mean**2)
    unit = 1.0 if weights is None else shares
    p = sign_test(np.bincount(numbers, unit * values))
    at_zero, critical = abs(mean) * math.sqrt(items / changed) if changed else 0.0, QUANTILE
    if p < 1 - LEVEL:
        critical = min(critical, at_zero * (1 - ROUNDING))
    else:
        critical = max(critical, at_zero * (1 + ROUNDING))
    low, high = (_solve_score(mean, changed, items, side * critical) for side in (1, -1))
    return Difference(mean, low, high, p)


def _solve_score(mean: float, changed: float, items: float, critical: float) -> float:
    """The difference at which the score statistic has a value: below the mean for a positive one, else above.
    It falls from one end to the other.
    """
    low, high = (-1.0, mean) if critical > 0 else (mean, 1.0)
    gained, lost = (changed + mean) / 2, (changed - mean) / 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        # The likeliest share of lost items at this difference.
        b, c = -changed + (2 - mean) * middle, -lost * middle * (1 - middle)
        of_lost = (math.sqrt(max(0.0, b * b - 8 * c)) - b) / 4
        variance = max(0.0, 2 * of_lost + middle * (1 - middle))
        if (gained - lost - middle) * math.sqrt(items) > critical * math.sqrt(variance):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def independent_difference(
    first: float, of_first: tuple[float, float], second: float, of_second: tuple[float, float]
) -> tuple[float, float]:
    """The interval of second - first, of two shares of different items, from the interval of each. Source:
    the hybrid score interval of Newcombe, Statistics in Medicine 17 (1998), method 10.
    """
    low = math.hypot(second - of_second[0], of_first[1] - first)
    high = math.hypot(of_second[1] - second, first - of_first[0])
    return second - first - low, second - first + high


def sign_test(differences: "ArrayLike") -> float:
    """The two-sided p-value of the exact test that each difference may as well have the other sign: how
    likely their sum is as far from 0. Of 1 and -1 it is McNemar's; where all are 0, it is 1.
    """
    import numpy as np

    values = np.asarray(differences, dtype=float)
    values = values[np.abs(values) > ROUNDING]
    if not len(values):
        return 1.0
    total, unit = np.abs(values).sum(), np.abs(values).min()
    is_lattice = total / unit < UNITS and np.abs(values / unit - np.round(values / unit)).max() < 1e-6
    steps = np.round(values / (unit if is_lattice else total / UNITS)).astype(np.int64)
    most, (sizes, counts) = int(np.abs(steps).sum()), np.unique(np.abs(steps), return_counts=True)
    # The characteristic function of a sum with random signs is a product of cosines.
    angles = np.pi / (most + 1) * np.arange(2 * most + 2)
    function = np.ones_like(angles)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        function *= np.cos(size * angles) ** count
    probabilities = np.fft.ifft(function).real
    far = abs(int(steps.sum()))
    inside = probabilities[:far].sum() + probabilities[len(angles) - far + 1 :].sum() if far else 0.0
    return float(min(1.0, max(0.0, 1 - inside)))


def gain_interval(gained: int, lost: int, of: int) -> tuple[float, float]:
    """The interval, at `LEVEL`, of the difference of two shares of the same items, each on its own, if
    ``gained`` count for the first alone and ``lost`` for the second alone (`paired_difference`).
    """
    found = paired_difference([1] * gained + [-1] * lost + [0] * (of - gained - lost))
    return found.low, found.high


def mcnemar_test(gained: int, lost: int) -> float:
    """The two-sided p-value of McNemar's exact test that a difference as of `gain_interval` is 0; 1 if the
    shares count the same items.
    """
    return sign_test([1] * gained + [-1] * lost)


def describe_groups(groups: int, images: int) -> list[str]:
    """That intervals are too narrow, if so many images are from few groups."""
    if not 0 < groups < GROUPED * images:
        return []
    return [
        f"These images are from {plural(groups, 'group')}, and the intervals count each image: "
        "they are too narrow."
    ]
