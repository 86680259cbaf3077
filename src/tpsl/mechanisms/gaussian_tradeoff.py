"""The exact (ε, δ) of Gaussian noise on a vector of any length, for discrete Gaussian noise too.

Balle and Wang (2018): continuous noise of deviation σ on a vector that moves by Δ has, with `μ = Δ/σ`,

    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)

which grows with Δ. Discrete noise on integers has at most `(1 + μ²)/σ²` more, if σ² is at least `LEAST_VARIANCE`: the
sum over all integer vectors is the integral plus what Poisson summation leaves (docs/mathematics.md proves it). All
numbers here are upper bounds, from series of positive terms with 60 digits.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from tpsl.mechanisms.quantise import MAX_WIDTH

LEAST_VARIANCE = 64 * MAX_WIDTH
"""From this σ² on the bound for discrete noise holds, for as many coordinates as one label can move."""

_DIGITS = 60
_SLACK = Decimal("1e-40")
"""Far more than the roundings of all operations here, far less than any δ."""
_FAR = Decimal(14)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


def delta_of_gaussian(epsilon: float, moved: int, variance: int) -> Fraction:
    """Return an upper bound on the δ of discrete Gaussian noise at ε, if integers move by `moved` in square at most."""
    if variance < LEAST_VARIANCE:
        return Fraction(1)
    with decimal.localcontext(prec=_DIGITS):
        mu = (Decimal(moved) / variance).sqrt()
        half, far = mu / 2, Decimal(epsilon) / mu
        bound = _below(half - far) - Decimal(epsilon).exp() * max(Decimal(0), _below(-half - far) - 2 * _SLACK)
        return Fraction(bound + 4 * _SLACK + (1 + mu * mu) / variance)


@lru_cache(maxsize=64)
def epsilon_of_gaussian(delta: float, moved: int, variance: int) -> float:
    """Return the smallest float ε at which the bound on δ is kept; infinity if there is none below 1000."""
    low, high = 0.0, 1.0
    while delta_of_gaussian(high, moved, variance) > delta:
        low, high = high, 2 * high
        if high > 1000:
            return math.inf
    while (middle := (low + high) / 2) not in (low, high):
        if delta_of_gaussian(middle, moved, variance) <= delta:
            high = middle
        else:
            low = middle
    return high


def _below(x: Decimal) -> Decimal:
    """Return Φ(x), off by less than 1e-43: `½ + φ(x)·(x + x³/3 + x⁵/(3·5) + …)`."""
    if abs(x) > _FAR:
        return Decimal(int(x > 0))
    term = total = x
    n = 1
    while abs(term) > abs(total) * Decimal("1e-59"):
        n += 2
        term = term * x * x / n
        total += term
    return Decimal("0.5") + total * (-x * x / 2).exp() / (2 * _PI).sqrt()
