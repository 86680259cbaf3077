"""What releases cost a record: ε and δ, ρ of zero-concentrated differential privacy (zCDP), and their composition.

ρ-zCDP (Bun and Steinke 2016) is the measure in which Gaussian noise composes exactly: the ρ of several releases add
up, also when later ones are chosen in view of earlier ones. Every number here is an upper bound, computed with
rationals and rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from tpsl.mechanisms.exact import float_above, log_upper


@dataclass(frozen=True)
class Cost:
    """(`epsilon`, `delta`)-differential privacy in each label; ε = ∞ protects nothing.

    `rho` is set where more is known: ρ-zCDP, of which (ε, δ) is one statement among many.
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

    Basic composition adds ε and δ. Where releases have a ρ, adding those and stating the sum at the δ that is left is
    valid too, with any of the pure ones counted by their ε instead. The smallest ε of all these is returned.

    `delta` is what the total may have as its δ: by default the sum of all δ, which is the least it can be.
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
    # Those with a δ of their own go first; of the pure ones, the smallest ε gain most by being counted as ε²/2.
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

    Canonne, Kamath and Steinke (2020), Corollary 13: for every α > 1, with
    `ε = αρ + ln(1 - 1/α) - ln(αδ)/(α-1)`. The best α is searched with floats; the ε of the α found is computed
    with bounds, so it holds whatever the search did.
    """
    delta = Fraction(delta)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {float(delta)!r}")
    if rho == 0:
        return 0.0
    alpha = Fraction(_best_alpha(float(rho), float(delta)))
    bound = alpha * rho + Fraction(log_upper(1 - 1 / alpha)) + Fraction(log_upper(1 / (alpha * delta))) / (alpha - 1)
    return max(0.0, float_above(bound))


def _best_alpha(rho: float, delta: float) -> float:
    """Return nearly the α of the smallest ε: ternary search in ln(α - 1), of which ε has one minimum."""

    def epsilon(x: float) -> float:
        over = math.exp(x)  # α - 1
        return (1 + over) * rho + math.log(over / (1 + over)) - math.log((1 + over) * delta) / over

    low, high = -30.0, 60.0
    for _ in range(120):
        third = (high - low) / 3
        if epsilon(low + third) <= epsilon(high - third):
            high -= third
        else:
            low += third
    return 1 + math.exp((low + high) / 2)
