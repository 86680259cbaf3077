"""Laplace perturbation (section 3.2, Lemma 3.1; k classes: section 6.2, Lemma 6.1) as an exact integer table.

The noise is the Laplace distribution restricted to a grid, `P(u = jh) ∝ e^{-ε|jh|}` with 1 a multiple of h: the same
guarantee, the same mean, a slightly smaller variance than the continuous one, and probabilities that integers can hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from tpsl.mechanisms.additive import AdditiveMechanism, grid_values, mirrored
from tpsl.mechanisms.exact import exp_lower, exp_of, log_upper
from tpsl.mechanisms.mechanism import check_classes, check_epsilon
from tpsl.mechanisms.table import TOTAL, Table

_STEPS_PER_SCALE = 64
_TAIL_SCALES = 24


@dataclass(frozen=True, eq=False)
class Laplace(AdditiveMechanism):
    """`t = y + Lap(1/ε)`, or `t = e_y + (Lap(2/ε), …, Lap(2/ε))`."""

    name = "laplace"


def laplace(epsilon: float, classes: int = 2) -> Laplace:
    """Return the paper's Laplace perturbation at ε.

    Guarantee: (ε, 0)-DP, exactly for the integers that are sampled. With k classes two coordinates differ between
    any two labels, so each coordinate gets ε/2 (scale 2/ε, the ℓ1 sensitivity of a unit vector).
    """
    epsilon, classes = check_epsilon(epsilon), check_classes(classes)
    table = laplace_table(epsilon if classes == 2 else epsilon / 2)
    # The worst pair of outcomes has the largest ratio in one differing coordinate and in the other.
    ratio = table.largest_ratio if classes == 2 else table.largest_ratio**2
    if ratio > exp_lower(epsilon):
        raise ArithmeticError(f"the Laplace table exceeds ε = {epsilon!r}; this is a bug")
    return Laplace(classes, log_upper(ratio), 0.0, {"epsilon": epsilon}, table)


@lru_cache(maxsize=4)  # a run asks for its table several times
def laplace_table(epsilon: float) -> Table:
    """Return the two-row table of one coordinate with budget ε; no ratio of its integers exceeds e^ε.

    Rounding is where a careless table breaks its promise: far out, one unit more or less in a small integer changes
    the ratio between the rows. So outcomes are set in mirror pairs: the smaller weight is rounded up, the larger one
    is at most e^ε times it, and what is left of 2^64 goes to the pair (0, 1), divided so that it keeps the promise too.
    """
    unit = max(1, math.ceil(_STEPS_PER_SCALE * epsilon))
    reach = math.ceil(_TAIL_SCALES * unit / epsilon)
    bound = exp_lower(epsilon)
    decay = Fraction(exp_of(Fraction(-epsilon) / unit))

    # 2^64 P(u = jh) for j = 0, 1, …; at the end of the grid stands everything beyond it.
    weight = [TOTAL * (1 - decay) / (1 + decay)]
    for _ in range(reach + unit):
        weight.append(_trimmed(weight[-1] * decay))

    row = [0] * (2 * reach + unit + 1)
    taken = 0
    for j in range(unit // 2 + 1, reach + unit + 1):
        if j == unit:
            continue
        far, near = weight[j], weight[abs(j - unit)]
        if j == reach + unit:
            far, near = far / (1 - decay), near / (1 - decay)
        small = max(1, math.ceil(far))
        large = max(small, min(round(near), math.floor(bound * small)))
        row[reach + j], row[reach + unit - j] = small, large
        taken += small + large
    if unit % 2 == 0:
        row[reach + unit // 2] = round(weight[unit // 2])
        taken += row[reach + unit // 2]
    rest = TOTAL - taken
    row[reach + unit] = math.ceil(rest / (1 + bound))
    row[reach] = rest - row[reach + unit]
    return mirrored(row, grid_values(unit, reach))


def _trimmed(value: Fraction) -> Fraction:
    """Cut a positive fraction off 200 bits after the point, so that products of thousands of factors stay small."""
    return Fraction(math.floor(value * (1 << 200)), 1 << 200)
