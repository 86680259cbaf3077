"""Confidence intervals over a handful of seeds: of a mean, and of a ratio of two means that share their seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, variance

from scipy.stats import t as student


@dataclass(frozen=True)
class Estimate:
    """A value and the interval that holds the true one with 95 % confidence; NaN ends where there is none."""

    value: float
    low: float
    high: float

    @property
    def margin(self) -> float:
        """Half the width."""
        return (self.high - self.low) / 2


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values and its t-interval."""
    centre = mean(values)
    if len(values) < 2:
        return Estimate(centre, math.nan, math.nan)
    margin = _quantile(len(values)) * math.sqrt(variance(values) / len(values))
    return Estimate(centre, centre - margin, centre + margin)


def ratio_estimate(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Return `mean(above) / mean(below)` of values that come in pairs, and Fieller's interval for it.

    Fieller's interval are the ratios r for which the mean of `above - r·below` is not distinguishable from 0. It has
    no ends where the lower mean itself is not distinguishable from 0.
    """
    if len(above) != len(below) or not above:
        raise ValueError(f"{len(above)} values and {len(below)} values are no pairs")
    a, b, n = mean(above), mean(below), len(above)
    ratio = a / b if b else math.nan
    if n < 2:
        return Estimate(ratio, math.nan, math.nan)
    squared = _quantile(n) ** 2 / n
    covariance = sum((x - a) * (y - b) for x, y in zip(above, below, strict=True)) / (n - 1)
    # (a - r·b)² ≤ squared·Var(above - r·below), as a quadratic in r.
    leading = b * b - squared * variance(below)
    half = a * b - squared * covariance
    rest = a * a - squared * variance(above)
    if leading <= 0:
        return Estimate(ratio, math.nan, math.nan)
    root = math.sqrt(max(0.0, half * half - leading * rest))
    return Estimate(ratio, (half - root) / leading, (half + root) / leading)


def _quantile(values: int) -> float:
    """Return the t with `P(|T| < t) = 0.95` for Student's T of the mean of `values` numbers."""
    return float(student.ppf(0.975, values - 1))
