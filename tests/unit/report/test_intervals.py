"""Intervals of differences, against quantiles with a closed form."""

import math

import pytest

from dear.report.intervals import half_width, paired, t_quantile


def test_student_t() -> None:
    assert t_quantile(0.975, 1) == pytest.approx(math.tan(math.pi * 0.475), rel=1e-5)  # Cauchy, exact
    # Two degrees: t = (2p - 1) / sqrt(2 p (1 - p)), exact.
    assert t_quantile(0.975, 2) == pytest.approx(0.95 / math.sqrt(2 * 0.975 * 0.025), rel=1e-5)
    assert t_quantile(0.975, 100_000) == pytest.approx(1.95996, abs=1e-3)  # the normal distribution
    assert half_width([3.0]) is None
    assert paired([3.0, 5.0], [1.0, 5.0])[0] == 1
