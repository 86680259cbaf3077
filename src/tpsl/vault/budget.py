"""Sums of epsilons and deltas that never come out too small."""

import math
from collections.abc import Iterable
from fractions import Fraction


def total(parts: Iterable[float]) -> float:
    """The sum of non-negative numbers, computed exactly and rounded up to a float; infinity stays infinity.

    Basic composition: releases of one record with (epsilon_i, delta_i) together have (sum epsilon_i, sum delta_i).
    """
    parts = list(parts)
    if any(math.isinf(part) for part in parts):
        return math.inf
    exact = sum((Fraction(part) for part in parts), Fraction(0))
    rounded = float(exact)
    return rounded if Fraction(rounded) >= exact else math.nextafter(rounded, math.inf)


def times(part: float, count: int) -> float:
    """`count` times `part`, rounded up."""
    if count == 0 or math.isinf(part):
        return part if count else 0.0
    exact = Fraction(part) * count
    rounded = float(exact)
    return rounded if Fraction(rounded) >= exact else math.nextafter(rounded, math.inf)
