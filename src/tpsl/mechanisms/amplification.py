"""The inner draw: each label is flipped once at ε₀, in secret, and what is released is computed from the flipped label.

t = RR_ε₀(y) is drawn once for each record, stored, and never leaves. Everything that leaves is a function of t, so all
of it together is (ε₀, 0)-differentially private, whatever is asked, by whom, and how often: the *cap*. And each release
that is (ε, δ)-private in t is more private in y, the *amplification*: with `α = e^ε'`, `a = keep - α·flip` and
`b = α·keep - flip` (shares of the table of the inner draw), a mechanism with the privacy profile δ(·) in t has

    δ'(ε') = a · δ(ln(b/a))   if a > 0, and 0 otherwise.

Proof: with P₀, P₁ the outputs under t = 0, 1, `[keep P₁ + flip P₀] - α[flip P₁ + keep P₀] = a (P₁ - (b/a) P₀)`; take
the positive part. With k classes all others add `flip·(1 - α)·P_j ≤ 0`, so the same expression is a bound. Nothing is
assumed of the outer mechanism. Releases that share the inner draw are composed first, as mechanisms of t, and amplified
once. docs/mathematics.md, Theorem 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

from tpsl.mechanisms.discrete import RandomizedResponse
from tpsl.mechanisms.exact import Cost, compose, delta_of_gaussian, delta_of_rho, exp_lower, exp_upper, log_upper
from tpsl.mechanisms.integer_table import TOTAL
from tpsl.mechanisms.statistic_noise import DiscreteGaussian, StatisticNoise, least_noise

Profile = Callable[[float], Fraction]
"""ε → δ: an upper bound on the δ of a mechanism at each ε ≥ 0."""


def profile_of(costs: Iterable[Cost]) -> Profile:
    """Return the profile of releases together, from what is known of each: its (ε, δ), or its ρ."""
    total = compose(costs)

    def profile(epsilon: float) -> Fraction:
        bounds = [Fraction(1)]
        if epsilon >= total.epsilon:
            bounds.append(Fraction(total.delta))
        elif total.delta == 0 and math.isfinite(total.epsilon):
            # No mechanism of pure ε says more than randomised response (Kairouz, Oh and Viswanath 2015).
            most = exp_upper(total.epsilon)
            bounds.append((most - exp_lower(epsilon)) / (most + 1))
        if total.zcdp is not None:
            bounds.append(delta_of_rho(total.zcdp, epsilon))
        return min(bounds)

    return profile


def profile_of_noise(noise: StatisticNoise, bound: int, classes: int, releases: int = 1) -> Profile:
    """Return the profile of statistics with this noise, whose rows have norms of at most `bound`.

    Several with one Gaussian noise are one statistic of all their coordinates, which a label moves farther.
    """
    known = profile_of([noise.cost(bound, classes)] * releases)
    if not isinstance(noise, DiscreteGaussian):
        return known
    moved = releases * noise.moved(bound, classes)
    return lambda epsilon: min(known(epsilon), delta_of_gaussian(epsilon, moved, noise.variance))


def amplified_delta(inner: RandomizedResponse, profile: Profile, epsilon: float) -> Fraction:
    """Return δ' at ε' = `epsilon` in the label, rounded up, for a mechanism of this profile in the inner draw."""
    alpha = exp_lower(epsilon)
    a, b = inner.keep - alpha * inner.flip, alpha * inner.keep - inner.flip
    if a <= 0:
        return Fraction(0)
    return a / TOTAL * profile(max(0.0, -log_upper(a / b)))


def amplified(inner: RandomizedResponse, profile: Profile, delta: float) -> Cost:
    """Return what releases computed from the inner draw cost the label, at δ. Guarantee: never above the cap ε₀."""
    low, high = 0.0, inner.epsilon
    while (middle := (low + high) / 2) not in (low, high):
        if amplified_delta(inner, profile, middle) <= delta:
            high = middle
        else:
            low = middle
    return Cost(high, delta)


def fit_amplified_noise(
    kind: str, epsilon: float, delta: float, inner: RandomizedResponse, bound: int, releases: int = 1
) -> StatisticNoise:
    """Return the least noise with which statistics of the inner draw are (ε, δ)-private in the label.

    The arguments are those of `fit_noise`. From the cap on no noise is needed; the least there is is added.
    """

    def keeps(noise: StatisticNoise) -> bool:
        return amplified_delta(inner, profile_of_noise(noise, bound, inner.classes, releases), epsilon) <= delta

    return least_noise(kind, epsilon, delta / releases, bound, keeps)
