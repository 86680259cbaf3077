"""Exact arithmetic for privacy claims: e^ε and ln as rationals that err on a known side.

`decimal` rounds `exp` and `ln` correctly, so at 60 digits a result is within one unit of the 60th digit of the truth.
Widening by 1e-50 turns it into a bound. No claim in this package rests on a float computation.
"""

from __future__ import annotations

import decimal
import math
from fractions import Fraction

_CONTEXT = decimal.Context(prec=60, Emax=10_000, Emin=-10_000)
_SLACK = Fraction(1, 10**50)


def exp_lower(epsilon: float) -> Fraction:
    """Return a rational that is at most e^ε and within a factor 1 - 2e-50 of it."""
    return Fraction(_CONTEXT.exp(decimal.Decimal(epsilon))) * (1 - _SLACK)


def exp_of(x: Fraction) -> decimal.Decimal:
    """Return e^x to about 58 digits, for building tables; no bound, because a table proves its ε by itself."""
    return _CONTEXT.exp(_CONTEXT.divide(decimal.Decimal(x.numerator), decimal.Decimal(x.denominator)))


def rounded_up(value: float, digits: int = 6) -> str:
    """Return a number for people to read, rounded up, so that a shown ε or δ never claims more than is proven."""
    up = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    # The shortest decimal that means this float: 0.1 is shown as 0.1, though the binary number lies a little above it.
    return f"{float(up.create_decimal(repr(value))):.{digits}g}"


def log_upper(ratio: Fraction) -> float:
    """Return the smallest float that is certainly at least ln(ratio)."""
    if ratio <= 0:
        raise ValueError(f"the logarithm of {ratio} does not exist")
    quotient = _CONTEXT.divide(decimal.Decimal(ratio.numerator), decimal.Decimal(ratio.denominator))
    return float_above(Fraction(_CONTEXT.ln(quotient)) + _SLACK * 4)


def float_above(exact: Fraction) -> float:
    """Return the smallest float that is at least this rational."""
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)
