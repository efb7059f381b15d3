"""Intervals of differences, against quantiles with a closed form."""

import math

import pytest

from dear.report.intervals import gain_interval, half_width, share_interval


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


def test_intervals_of_gains() -> None:
    # Agresti and Min's by hand for 12 gained and 3 lost of 70: p = 12.5/72 and 3.5/72.
    assert gain_interval(12, 3, 70) == pytest.approx((0.020011, 0.229989), abs=1e-6)
    assert gain_interval(3, 12, 70) == pytest.approx((-0.229989, -0.020011), abs=1e-6)
    low, high = gain_interval(0, 0, 5)
    assert low == -high < 0
