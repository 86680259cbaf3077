"""Confidence intervals over a handful of seeds: of a mean, and of a ratio of two means that share their seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, variance

_BISECTIONS = 200
_LARGEST_QUANTILE = 1e6


@dataclass(frozen=True)
class Estimate:
    """A value and the interval that holds the true one with the given confidence; NaN ends where there is none."""

    value: float
    low: float
    high: float

    @property
    def margin(self) -> float:
        """Half the width."""
        return (self.high - self.low) / 2


def student_quantile(confidence: float, freedom: int) -> float:
    """Return the t with `P(|T| < t) = confidence` for Student's T with so many degrees of freedom."""
    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(f"there is no Student quantile for confidence {confidence} and {freedom} degrees of freedom")
    low, high = 0.0, _LARGEST_QUANTILE
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return `P(|T| < t)`, by its finite sum for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def mean_estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean of independent values and its t-interval."""
    centre = mean(values)
    if len(values) < 2:
        return Estimate(centre, math.nan, math.nan)
    margin = student_quantile(confidence, len(values) - 1) * math.sqrt(variance(values) / len(values))
    return Estimate(centre, centre - margin, centre + margin)


def ratio_estimate(above: Sequence[float], below: Sequence[float], confidence: float = 0.95) -> Estimate:
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
    squared = student_quantile(confidence, n - 1) ** 2 / n
    covariance = sum((x - a) * (y - b) for x, y in zip(above, below, strict=True)) / (n - 1)
    # (a - r·b)² ≤ squared·Var(above - r·below), as a quadratic in r.
    leading = b * b - squared * variance(below)
    half = a * b - squared * covariance
    rest = a * a - squared * variance(above)
    if leading <= 0:
        return Estimate(ratio, math.nan, math.nan)
    root = math.sqrt(max(0.0, half * half - leading * rest))
    return Estimate(ratio, (half - root) / leading, (half + root) / leading)
