"""Exact arithmetic for privacy claims: bounds on e^ε and ln, the cost of releases, composition, the Gaussian trade-off.

Every result is an upper bound or says on which side it errs; no claim of this package rests on a float computation.
`decimal` rounds `exp` and `ln` correctly, so with 60 digits a result is within one unit of the 60th digit. Widening it
by 1e-50 makes it a bound.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

_CONTEXT = decimal.Context(prec=60, Emax=10_000, Emin=-10_000)
_SLACK = Fraction(1, 10**50)


def exp_lower(epsilon: float) -> Fraction:
    """Return a rational that is at most e^ε and within a factor 1 - 2e-50 of it."""
    return Fraction(_CONTEXT.exp(Decimal(epsilon))) * (1 - _SLACK)


def exp_upper(epsilon: float) -> Fraction:
    """Return a rational that is at least e^ε and within a factor 1 + 2e-50 of it."""
    return Fraction(_CONTEXT.exp(Decimal(epsilon))) * (1 + _SLACK)


def exp_of(x: Fraction) -> Decimal:
    """Return e^x to about 58 digits, to build tables with; not a bound, because a table proves its own ε."""
    return _CONTEXT.exp(_CONTEXT.divide(Decimal(x.numerator), Decimal(x.denominator)))


def log_upper(ratio: Fraction) -> float:
    """Return the smallest float that is certainly at least ln(ratio); a ValueError if the ratio is not positive."""
    if ratio <= 0:
        raise ValueError(f"the logarithm of {ratio} does not exist")
    quotient = _CONTEXT.divide(Decimal(ratio.numerator), Decimal(ratio.denominator))
    return float_above(Fraction(_CONTEXT.ln(quotient)) + _SLACK * 4)


def float_above(exact: Fraction) -> float:
    """Return the smallest float that is at least this rational."""
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def rounded_up(value: float, digits: int = 6) -> str:
    """Return a number as text, rounded up: a shown ε or δ never claims more privacy than is proven."""
    up = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    # The shortest decimal that means this float: 0.1 is shown as 0.1, though the binary number lies a little above it.
    return f"{float(up.create_decimal(repr(value))):.{digits}g}"


@dataclass(frozen=True)
class Cost:
    """What releases cost a record: (`epsilon`, `delta`)-differential privacy in its label; ε = ∞ protects nothing.

    `rho` is set where more is known: ρ-zCDP (Bun and Steinke 2016), of which (ε, δ) is one consequence among many. The
    ρ of several releases add up, also when a later release is chosen in view of earlier ones.
    """

    epsilon: float
    delta: float = 0.0
    rho: Fraction | None = None

    @property
    def zcdp(self) -> Fraction | None:
        """The ρ of this cost, if it has one. Pure ε is ε²/2-zCDP (Bun and Steinke, Proposition 1.4)."""
        if self.rho is None and self.delta == 0 and math.isfinite(self.epsilon):
            return Fraction(self.epsilon) ** 2 / 2
        return self.rho


def compose(costs: Iterable[Cost], delta: float | None = None) -> Cost:
    """Return the cost of all these releases of one record together, rounded up.

    Basic composition adds ε and δ. Where releases have a ρ, adding those and stating the sum at the remaining δ is
    valid too, with any of the pure ones counted by their ε instead. The smallest ε of all these is returned.

    Args:
        costs: one for each release.
        delta: the δ that the total may have; by default the sum of all δ, which is the least possible.

    Raises:
        ValueError: `delta` is less than the sum of all δ.
    """
    releases = list(costs)
    least = sum((Fraction(cost.delta) for cost in releases), Fraction(0))
    allowed = least if delta is None else Fraction(delta)
    if allowed < least:
        raise ValueError(f"these releases have δ = {float_above(least):.6g} in all, more than {delta:.6g}")
    rhos = [cost.zcdp for cost in releases]
    rho = None if None in rhos else sum((rho for rho in rhos if rho is not None), Fraction(0))
    if any(math.isinf(cost.epsilon) for cost in releases):
        return Cost(math.inf, float_above(allowed), None)
    return Cost(_least_epsilon(releases, allowed), float_above(allowed), rho)


def _least_epsilon(releases: list[Cost], allowed: Fraction) -> float:
    """Return the smallest ε over all ways to divide the releases into those summed by ρ and those summed by ε."""
    basic = sum((Fraction(cost.epsilon) for cost in releases), Fraction(0))
    best = float_above(basic)
    # Releases with a δ go first; of the pure ones, the smallest ε gain most by being counted as ε²/2.
    by_rho = sorted((cost for cost in releases if cost.zcdp is not None), key=lambda c: (c.delta == 0, c.epsilon))
    rest_delta = sum((Fraction(cost.delta) for cost in releases), Fraction(0))
    rho, rest = Fraction(0), basic
    for cost in by_rho:
        rho += cost.zcdp or 0
        rest -= Fraction(cost.epsilon)
        rest_delta -= Fraction(cost.delta)
        if allowed > rest_delta:
            best = min(best, float_above(rest + Fraction(epsilon_of_rho(rho, allowed - rest_delta))))
    return best


def epsilon_of_rho(rho: Fraction, delta: Fraction | float) -> float:
    """Return an ε with which ρ-zCDP is (ε, δ)-DP, rounded up.

    Canonne, Kamath and Steinke (2020), Corollary 13: `ε = αρ + ln(1 - 1/α) - ln(αδ)/(α-1)` for every α > 1. Floats
    search for the best α; the ε of the α found is computed with bounds, so it holds whatever the search did.
    """
    delta = Fraction(delta)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {float(delta)!r}")
    if rho == 0:
        return 0.0
    alpha = Fraction(_best_alpha(float(rho), float(delta)))
    bound = alpha * rho + Fraction(log_upper(1 - 1 / alpha)) + Fraction(log_upper(1 / (alpha * delta))) / (alpha - 1)
    return max(0.0, float_above(bound))


def delta_of_rho(rho: Fraction, epsilon: float) -> Fraction:
    """Return a δ with which ρ-zCDP is (ε, δ)-DP, rounded up: `epsilon_of_rho` solved for δ."""
    if rho == 0:
        return Fraction(0)
    least = _least(lambda over: over * ((1 + over) * float(rho) - epsilon) + over * _log_share(over) - math.log1p(over))
    alpha = 1 + Fraction(least)
    exponent = (alpha - 1) * (alpha * rho + Fraction(log_upper(1 - 1 / alpha)) - Fraction(epsilon))
    return min(Fraction(1), exp_upper(max(-1000.0, float_above(exponent))) / alpha) if exponent < 0 else Fraction(1)


def _best_alpha(rho: float, delta: float) -> float:
    """Return nearly the α of the smallest ε."""
    return 1 + _least(lambda over: (1 + over) * rho + _log_share(over) - math.log((1 + over) * delta) / over)


def _log_share(over: float) -> float:
    """Return ln(1 - 1/α)."""
    return math.log(over / (1 + over))


def _least(bound: Callable[[float], float]) -> float:
    """Return nearly the `α - 1` at which a bound is least: ternary search in its logarithm; it has one minimum."""
    low, high = -30.0, 60.0
    for _ in range(120):
        third = (high - low) / 3
        if bound(math.exp(low + third)) <= bound(math.exp(high - third)):
            high -= third
        else:
            low += third
    return math.exp((low + high) / 2)


MAX_WIDTH = 1 << 16
"""The largest width of a statistic. One label moves two vectors of it at most."""
LEAST_VARIANCE = 64 * MAX_WIDTH
"""From this σ² on, the bound for discrete Gaussian noise holds."""

_TINY = Decimal("1e-40")
"""Far more than the rounding errors of all operations below, far less than any δ."""
_FAR = Decimal(14)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


def delta_of_gaussian(epsilon: float, moved: int, variance: int) -> Fraction:
    """Return an upper bound on the δ of discrete Gaussian noise at ε, for integers that move by Δ² = `moved` at most.

    Continuous noise has, with `μ = Δ/σ`, `δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)`, which grows with Δ (Balle and Wang
    2018). Discrete noise has at most `(1 + μ²)/σ²` more. Proof, in short: δ is the sum of `max(0, p - e^ε q)` over all
    integer vectors; by Poisson summation that is the integral plus the Fourier terms at `2πm`, m ≠ 0. Across the
    direction of the move they fall exponentially with σ²; along it the function has a kink, so they fall like
    `1/(σm)²`, and add up to less than the excess (docs/mathematics.md, Lemma 2).
    """
    if variance < LEAST_VARIANCE:
        return Fraction(1)
    with decimal.localcontext(prec=60):
        mu = (Decimal(moved) / variance).sqrt()
        half, far = mu / 2, Decimal(epsilon) / mu
        bound = _below(half - far) - Decimal(epsilon).exp() * max(Decimal(0), _below(-half - far) - 2 * _TINY)
        return Fraction(bound + 4 * _TINY + (1 + mu * mu) / variance)


@lru_cache(maxsize=64)
def epsilon_of_gaussian(delta: float, moved: int, variance: int) -> float:
    """Return the smallest float ε at which `delta_of_gaussian` is at most δ; infinity if there is none below 1000."""
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
    """Return Φ(x), off by less than 1e-43: `½ + φ(x)·(x + x³/3 + x⁵/(3·5) + …)`, a series of terms of one sign."""
    if abs(x) > _FAR:
        return Decimal(int(x > 0))
    term = total = x
    n = 1
    while abs(term) > abs(total) * Decimal("1e-59"):
        n += 2
        term = term * x * x / n
        total += term
    return Decimal("0.5") + total * (-x * x / 2).exp() / (2 * _PI).sqrt()
