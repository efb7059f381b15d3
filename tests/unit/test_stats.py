"""Intervals and tests against values by hand, slow references, enumeration and simulated coverage."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import binom, binomtest

from dear.stats import (
    QUANTILE,
    exact_share_bounds,
    gain_interval,
    group_share_interval,
    half_width,
    independent_difference,
    mcnemar_test,
    mean_difference_error,
    mean_interval,
    paired_difference,
    share_interval,
    sign_test,
)


def test_student_t() -> None:
    assert half_width([3.0]) is None
    assert half_width([3.0, 5.0]) is None
    # Standard deviation 1 of three values; two degrees of freedom: t = (2p - 1) / sqrt(2 p (1 - p)), exact.
    quantile = 0.95 / math.sqrt(2 * 0.975 * 0.025)
    assert half_width([3.0, 4.0, 5.0]) == pytest.approx(quantile / math.sqrt(3))


def test_intervals_of_shares() -> None:
    # Wilson's, by hand: 5 of 10 has (5 + z^2/2 -+ z sqrt(2.5 + z^2/4)) / (10 + z^2); of 0 the upper end is
    # z^2 / (10 + z^2).
    assert share_interval(5, 10) == pytest.approx((0.236593, 0.763407), abs=1e-6)
    assert share_interval(0, 10) == pytest.approx((0, 0.277533), abs=1e-6)
    assert share_interval(10, 10) == pytest.approx((0.722467, 1), abs=1e-6)


def test_the_interval_of_a_difference_of_other_items() -> None:
    """An example of Newcombe (1998), table II (a): 56 of 70 and 48 of 80, by method 10."""
    first, second = (48 / 80, share_interval(48, 80)), (56 / 70, share_interval(56, 70))
    assert independent_difference(*first, *second) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert independent_difference(*second, *first) == pytest.approx((-0.3339, -0.0524), abs=5e-5)


@pytest.mark.parametrize("right", [0, 1, 5, 11])
def test_a_share_in_groups_is_wilsons_of_what_is_independent(right: int) -> None:
    """Of single images it is Wilson's of these, of groups that are all right or all wrong that of groups."""
    correct = [number < right for number in range(11)]
    wilson = pytest.approx(share_interval(right, 11))
    assert group_share_interval(correct, [f"image {number}" for number in range(11)]) == wilson
    assert group_share_interval(np.repeat(correct, 7), np.repeat(range(11), 7)) == wilson


@pytest.mark.parametrize(("groups", "size"), [(5, 20), (10, 10), (20, 10)])
@pytest.mark.parametrize("likeness", [0.2, 0.6])
def test_the_interval_of_a_share_holds_for_groups(groups: int, size: int, likeness: float) -> None:
    """Over 300 draws of groups whose own shares have a beta distribution of this intraclass correlation. A
    level of 95% has a standard error of 1.3% over these; five groups reach 90%.
    """
    draw, share, hits = np.random.default_rng(5), 0.8, 0
    for _ in range(300):
        sizes = draw.integers(size // 2, size + size // 2 + 1, groups)
        scale = 1 / likeness - 1
        of_groups = draw.beta(share * scale, (1 - share) * scale, groups)
        correct = np.concatenate([draw.random(n) < p for n, p in zip(sizes, of_groups, strict=True)])
        low, high = group_share_interval(correct, np.repeat(range(groups), sizes))
        hits += low <= share <= high
    assert hits / 300 > 0.9


def test_the_error_of_a_mean_difference_counts_groups() -> None:
    """By hand: differences 1, 1, 0, -1 of mean 1/4. On their own s = sqrt(2.75 / 3); in pairs the sums of
    deviations are 1.5 and -1.5, so 2 / 1 times 4.5, over 4.
    """
    first, second = [1, 1, 0, 0], [0, 0, 0, 1]
    assert mean_difference_error(first, second) == pytest.approx(math.sqrt(2.75 / 3) / 2)
    assert mean_difference_error(first, second, ["a", "a", "b", "b"]) == pytest.approx(0.75)
    assert mean_difference_error(first, second, [3, 3, 3, 3]) == math.inf


def tango(gained: int, lost: int, of: int, critical: float) -> list[float]:
    """The interval of Tango by a search for the likeliest probabilities at each difference."""
    same = of - gained - lost

    def statistic(difference: float) -> float:
        def unlikely(share_lost: float) -> float:
            shares = share_lost + difference, share_lost, 1 - 2 * share_lost - difference
            terms = zip((gained, lost, same), shares, strict=True)
            return -sum(count * math.log(max(share, 1e-300)) for count, share in terms if count)

        bounds = max(0.0, -difference), (1 - difference) / 2
        likeliest = minimize_scalar(unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
        variance = 2 * likeliest + difference - difference**2
        return (gained - lost - of * difference) / math.sqrt(of * variance)

    mean = (gained - lost) / of
    ends = (-1 + 1e-6, mean), (mean, 1 - 1e-6)
    return [
        brentq(lambda x, sign=sign: statistic(x) - sign * critical, *end)
        for end, sign in zip(ends, (1, -1), strict=True)
    ]


@pytest.mark.parametrize(("gained", "lost", "of"), [(12, 3, 70), (3, 12, 70), (8, 2, 30), (5, 5, 11)])
def test_intervals_of_gains(gained: int, lost: int, of: int) -> None:
    assert gain_interval(gained, lost, of) == pytest.approx(tango(gained, lost, of, QUANTILE), abs=1e-5)


def test_an_interval_of_ties_has_a_width() -> None:
    """Without any difference the share of lost ones is 0 and the statistic n d / sqrt(n d (1 - d)), so that
    the end is z^2 / (n + z^2).
    """
    low, high = gain_interval(0, 0, 10)
    assert (-low, high) == pytest.approx([QUANTILE**2 / (10 + QUANTILE**2)] * 2)


def test_interval_and_test_agree() -> None:
    """4 : 0 is not significant by the exact test (p = 1/8), though by the score test."""
    for gained, lost in product(range(13), range(13)):
        for same in (0, 1, 10, 1000):
            found = (
                paired_difference([1] * gained + [-1] * lost + [0] * same) if gained + lost + same else None
            )
            assert found is None or (found.p < 0.05) == (not found.low <= 0 <= found.high)
    assert mcnemar_test(4, 0) == pytest.approx(1 / 8)


def test_the_exact_test_is_the_binomial_one_for_single_images() -> None:
    for gained, lost in [(8, 2), (9, 1), (0, 6), (5, 5), (1000, 900)]:
        assert mcnemar_test(gained, lost) == pytest.approx(binomtest(gained, gained + lost).pvalue)
    assert mcnemar_test(8, 2) == pytest.approx(2 * (1 + 10 + 45) / 1024)
    assert mcnemar_test(0, 0) == 1


def test_the_exact_test_of_groups_is_an_enumeration_of_signs() -> None:
    draw = np.random.default_rng(3)
    for values in (*draw.integers(-5, 6, (5, 9)), *draw.normal(size=(5, 9))):
        sums = [abs(np.dot(signs, values)) for signs in product((1, -1), repeat=len(values))]
        expected = np.mean(np.array(sums) >= abs(values.sum()) - 1e-9)
        assert sign_test(values) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("groups", "size"), [(3, 20), (8, 20), (20, 1)])
@pytest.mark.parametrize(("gained", "lost"), [(0.15, 0.15), (0.25, 0.05)])
def test_a_difference_of_groups_is_found_no_more_often_than_promised(
    groups: int, size: int, gained: float, lost: float
) -> None:
    """At most 5% where there is none; and the interval holds the true one in 95%."""
    draw, found, held, draws = np.random.default_rng(11), 0, 0, 150
    for _ in range(draws):
        shares = draw.dirichlet(
            np.array([gained, lost, 1 - gained - lost]) * (1.5 if size > 1 else 1e6), groups
        )
        values = np.concatenate([draw.choice([1, -1, 0], size, p=of_group) for of_group in shares])
        result = paired_difference(values, np.repeat(range(groups), size))
        held += result.low <= gained - lost <= result.high
        found += result.is_clear
    most = binom.ppf(0.99, draws, 0.05)
    assert draws - held <= most
    assert gained != lost or found <= most
    assert groups > 3 or not found  # three groups have all the same sign by chance in a quarter


def test_weights_make_a_mean_over_data_sets() -> None:
    """Two data sets of 4 and of 8 images, each of half of the mean: 1/2 of 1/4, and of -1/8. One image of the
    first weighs as much as two of the second: signs make sums of 1 or 3 (of 3) at odds 1 : 1.
    """
    values, weights = [1, 0, 0, 0, -1, *[0] * 7], [1 / 4] * 4 + [1 / 8] * 8
    found = paired_difference(values, weights=weights)
    assert (found.mean, found.p) == (pytest.approx(1 / 16), pytest.approx(1))
    assert found.low < 0 < found.high


@pytest.mark.parametrize("right", [0, 3, 57, 60])
def test_bounds_of_a_share_of_single_images_are_those_of_clopper_and_pearson(right: int) -> None:
    """With the 90% interval of scipy, which leaves 5% on each side."""
    interval = binomtest(right, 60).proportion_ci(0.9, "exact")
    correct = [number < right for number in range(60)]
    assert exact_share_bounds(correct, range(60)) == pytest.approx((interval.low, interval.high))
    assert exact_share_bounds(np.repeat(correct, 4), np.repeat(range(60), 4)) == pytest.approx(
        (interval.low, interval.high)
    )


def test_the_interval_of_a_mean_counts_groups() -> None:
    # Means of the groups 1 and 3: the standard error of their mean is sqrt(2) / sqrt(2) = 1.
    low, high = mean_interval([1, 1, 1, 3, 3, 3, 0, 4], [0, 0, 0, 1, 1, 1, 0, 1])
    assert (low, high) == pytest.approx((max(0, 2 - 1.25 * QUANTILE), min(4, 2 + 1.25 * QUANTILE)))
    assert mean_interval([1.0, 5.0], [0, 0]) == (1, 5)
