"""Gaussian noise on the label: the paper's baseline at the logit (section 5.2), with the (ε, δ) that its table
really has.

No pure ε exists for Gaussian noise. For a chosen δ the smallest ε is found from the integers by the definition,
`δ(ε) = Σ_o max(0, P(o|y) - e^ε P(o|y'))`, which is what the analytic Gaussian mechanism (Balle and Wang 2018)
computes for the continuous distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from tpsl.mechanisms.additive import AdditiveMechanism, grid_values, mirrored
from tpsl.mechanisms.exact import exp_lower, exp_of, log_upper
from tpsl.mechanisms.mechanism import check_classes, check_delta, check_sigma
from tpsl.mechanisms.table import TOTAL, Table

_STEPS_PER_SIGMA = 64
_TAIL_SIGMAS = 8.5


@dataclass(frozen=True, eq=False)
class Gaussian(AdditiveMechanism):
    """`t = y + N(0, σ²)`, or `t = e_y + N(0, σ² I)`."""

    name = "gaussian"


def gaussian(sigma: float, delta: float, classes: int = 2) -> Gaussian:
    """Return Gaussian noise of standard deviation σ on the label.

    Guarantee: (ε, δ)-DP with the smallest ε that the sampled integers allow for this δ, rounded up.
    """
    sigma, delta, classes = check_sigma(sigma), check_delta(delta), check_classes(classes)
    table = gaussian_table(sigma)
    epsilon = epsilon_of_table(table, delta) if classes == 2 else epsilon_of_two_coordinates(table, delta)
    return Gaussian(classes, epsilon, delta, {"sigma": sigma, "delta": delta}, table)


@lru_cache(maxsize=4)  # a run asks for its table, and for what it promises, several times
def gaussian_table(sigma: float) -> Table:
    """Return the two-row table of one coordinate: the normal density on a grid that contains 0 and 1, in integers."""
    unit = max(1, math.ceil(_STEPS_PER_SIGMA / sigma))
    reach = math.ceil(_TAIL_SIGMAS * sigma * unit)
    exponent = Fraction(1) / (2 * (Fraction(sigma) * unit) ** 2)
    density = [exp_of(-exponent * j * j) for j in range(reach + unit + 1)]
    total = Fraction(density[0]) + 2 * sum((Fraction(d) for d in density[1:]), Fraction(0))
    row = [max(1, round(Fraction(density[abs(j)]) / total * TOTAL)) for j in range(-reach, reach + unit + 1)]
    # The outcome 0 is the most likely one given 0; it takes up what rounding and clamping left over.
    row[reach] += TOTAL - sum(row)
    return mirrored(row, grid_values(unit, reach))


@lru_cache(maxsize=4)
def epsilon_of_table(table: Table, delta: float) -> float:
    """Return the smallest ε with `P(S|y) ≤ e^ε P(S|y') + δ` for all sets S of outcomes, rounded up.

    The worst sets are those of the most telling outcomes, so `e^ε` is the largest `(P(S|y) - δ) / P(S|y')` over them.
    The rows are mirror images, so one direction bounds both.
    """
    allowed = Fraction(delta) * TOTAL
    largest, p, q = Fraction(1), 0, 0
    for own, other in most_telling_first(table):
        p, q = p + own, q + other
        largest = max(largest, (p - allowed) / q)
    return log_upper(largest)


def most_telling_first(table: Table) -> list[tuple[int, int]]:
    """Return the weights `(W[1][o], W[0][o])` of all outcomes, the largest ratio first."""
    other, own = table.weights.tolist()
    return sorted(zip(own, other, strict=True), key=lambda weights: Fraction(*weights), reverse=True)


def delta_of_two_coordinates(outcomes: list[tuple[int, int]], exp_epsilon: Fraction) -> Fraction:
    """Return δ(ε) for two labels of k classes exactly: they differ in two coordinates, with opposite rows.

    `outcomes` are those of one coordinate, the most telling first. Outcome a of the first coordinate counts together
    with every b of the second for which `own[a]·other[b] > e^ε·other[a]·own[b]`. From the most telling a to the least,
    fewer and fewer b qualify, always a tail of the same order, so two running sums carry the double sum.
    """
    # Integers over one common denominator: reducing a fraction at each of many steps would take most of the time.
    scale, factor = exp_epsilon.denominator, exp_epsilon.numerator
    first, p, q = 0, TOTAL, TOTAL
    excess = 0
    for own, other in outcomes:
        while first < len(outcomes) and scale * own * outcomes[first][1] <= factor * other * outcomes[first][0]:
            p, q = p - outcomes[first][1], q - outcomes[first][0]
            first += 1
        excess += scale * own * p - factor * other * q
    return Fraction(excess, scale * TOTAL**2)


@lru_cache(maxsize=4)
def epsilon_of_two_coordinates(table: Table, delta: float) -> float:
    """Return an ε for δ when two labels differ in two coordinates; it holds exactly and is minimal to 1e-9."""
    outcomes = most_telling_first(table)
    low, high = 0.0, log_upper(table.largest_ratio**2)
    allowed = Fraction(delta)
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        if delta_of_two_coordinates(outcomes, exp_lower(middle)) <= allowed:
            high = middle
        else:
            low = middle
    return high
