from __future__ import annotations

import math
from statistics import mean, stdev

import numpy as np
import pytest
from scipy import stats

from tpsl_research.intervals import mean_estimate, ratio_estimate


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    values = [0.71, 0.74, 0.72, 0.75, 0.70]
    found = mean_estimate(values)
    low, high = stats.t.interval(0.95, 4, loc=mean(values), scale=stdev(values) / math.sqrt(5))
    assert (found.value, found.low, found.high) == pytest.approx((mean(values), low, high))
    assert math.isnan(mean_estimate([0.7]).margin)


def test_the_ends_of_a_ratio_are_where_the_difference_stops_being_visible() -> None:
    above, below = [0.020, 0.025, 0.018, 0.027, 0.022], [0.041, 0.047, 0.037, 0.050, 0.046]
    found = ratio_estimate(above, below)
    assert found.value == pytest.approx(mean(above) / mean(below))
    assert found.low < found.value < found.high
    for end in (found.low, found.high):
        difference = np.array(above) - end * np.array(below)
        p = stats.ttest_1samp(difference, 0.0).pvalue
        assert p == pytest.approx(0.05)


def test_pairs_narrow_the_interval_of_a_ratio() -> None:
    below = [0.04, 0.05, 0.06, 0.05, 0.045]
    together = [0.5 * b + d for b, d in zip(below, (1e-4, -1e-4, 0.0, 2e-4, -2e-4), strict=True)]
    assert ratio_estimate(together, below).margin < ratio_estimate(together[::-1], below).margin / 3


def test_a_ratio_to_something_like_zero_has_no_ends() -> None:
    assert math.isnan(ratio_estimate([0.01, 0.02, 0.01], [0.01, -0.02, 0.02]).low)
    assert math.isnan(ratio_estimate([0.01], [0.02]).low)
    with pytest.raises(ValueError, match="no pairs"):
        ratio_estimate([0.1], [0.1, 0.2])
