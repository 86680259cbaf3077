"""Noise added to the label: the paper's Laplace perturbation and its Gaussian baseline, as tables of integers.

`t = y + u` for two classes (Algorithm 2; symmetric noise, so the sign of u does not matter), `t = e_y + (u_0, …)` for k
(Algorithm 4). The noise lives on a grid that contains 0 and 1, its far tails are clamped (post-processing), and one
table of two rows holds the probabilities: row 0 for a coordinate whose true value is 0, row 1 for value 1. With k
classes each class has a coordinate, drawn independently from that table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.base import Floats, Labels, Mechanism, check_classes, check_delta, check_epsilon, check_sigma
from tpsl.mechanisms.exact import exp_lower, exp_of, log_upper
from tpsl.mechanisms.integer_table import TOTAL, Table
from tpsl.mechanisms.sampling import Words

_STEPS_PER_SCALE, _TAIL_SCALES = 64, 24
_STEPS_PER_SIGMA, _TAIL_SIGMAS = 64, 8.5


@dataclass(frozen=True, eq=False)
class AdditiveMechanism(Mechanism):
    """Noise on the label (two classes) or on each coordinate of its unit vector (k classes), from a two-row table."""

    table: Table

    @property
    def _definition(self) -> str:
        return f"{self.name} {self.classes} {self.table.digest}"

    @property
    def values(self) -> Floats:
        """The points of the grid."""
        return self.table.values

    @property
    def weights(self) -> Words:
        """The two rows of the table."""
        return self.table.weights

    @property
    def outcome_shape(self) -> tuple[int, ...]:
        """One draw for two classes, a draw for each class otherwise."""
        return () if self.classes == 2 else (self.classes,)

    @property
    def coordinate(self) -> Floats:
        """The two rows of the table."""
        return self.table.probabilities

    def pairs(self) -> Iterable[tuple[Floats, Floats]] | None:
        """Return the rows of two classes; None for k, whose coordinates are independent."""
        other, own = self.table.probabilities
        return [(own, other)] if self.classes == 2 else None

    def mean(self, y: int) -> Floats:
        """Return `E[t | y]`."""
        return self._by_class(y, self.table.mean(0), self.table.mean(1))

    def variance(self, y: int) -> Floats:
        """Return `Var[t | y]`, coordinate by coordinate."""
        return self._by_class(y, self.table.variance(0), self.table.variance(1))

    def log_likelihood(self, outcomes: npt.ArrayLike) -> Floats:
        """Return `ln P(outcome | y = j)` in column j."""
        other, own = self.table.log_weights[:, np.asarray(outcomes)]
        if self.classes == 2:
            return np.stack([other, own], axis=1)
        return np.asarray(other.sum(axis=1, keepdims=True) + (own - other))

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        if self.classes == 2:
            return self.table.sample(labels, words)
        own = labels[:, None] == np.arange(self.classes)
        return self.table.sample(own.ravel(), words).reshape(own.shape)


def grid_values(steps_per_unit: int, reach: int) -> Floats:
    """Return the grid from `-reach` steps below 0 to `reach` steps above 1; it is its own mirror image about ½.

    `grid_values(2, 1)` is `[-0.5, 0, 0.5, 1, 1.5]`.
    """
    return np.arange(-reach, reach + steps_per_unit + 1, dtype=np.float64) / steps_per_unit


def mirrored(row_if_0: list[int], values: Floats) -> Table:
    """Return the table whose row for label 1 is the mirror image of its row for label 0."""
    return Table(np.array([row_if_0, row_if_0[::-1]], dtype=np.uint64), values)


@dataclass(frozen=True, eq=False)
class Laplace(AdditiveMechanism):
    """Laplace perturbation: `t = y + Lap(1/ε)`, or `t = e_y + (Lap(2/ε), …, Lap(2/ε))`."""

    name = "laplace"


def laplace(epsilon: float, classes: int = 2) -> Laplace:
    """Return the paper's Laplace perturbation at ε (section 3.2, Lemma 3.1; k classes: section 6.2, Lemma 6.1).

    Guarantee: (ε, 0)-DP, exactly for the integers that are sampled. By the triangle inequality
    `P(t|y) / P(t|y') = e^{ε(|t-y'| - |t-y|)} ≤ e^ε`. With k classes two coordinates differ between any two labels (unit
    vectors have an ℓ1 distance of 2), so each coordinate gets ε/2.
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

    The noise is the Laplace distribution on a grid, `P(u = jh) ∝ e^{-ε|jh|}` with 1 a multiple of h: the same ε,
    the same mean, a slightly smaller variance than the continuous one. Rounding could break the promise: far out, one
    unit more or less in a small integer changes the ratio between the rows. So outcomes are set in mirror pairs: the
    smaller weight is rounded up, the larger one is at most e^ε times it, and the rest of 2^64 goes to the pair (0, 1),
    divided so that it keeps the promise too.
    """
    unit = max(1, math.ceil(_STEPS_PER_SCALE * epsilon))
    reach = math.ceil(_TAIL_SCALES * unit / epsilon)
    bound = exp_lower(epsilon)
    decay = Fraction(exp_of(Fraction(-epsilon) / unit))

    # 2^64 P(u = jh) for j = 0, 1, …; the end of the grid takes everything beyond it. Fractions are cut off 200 bits
    # after the point, so that products of thousands of factors stay small.
    weight = [TOTAL * (1 - decay) / (1 + decay)]
    for _ in range(reach + unit):
        weight.append(Fraction(math.floor(weight[-1] * decay * (1 << 200)), 1 << 200))

    # Grid point j has the index reach + j, and its mirror image about ½, which is unit - j, the index reach + unit - j.
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


@dataclass(frozen=True, eq=False)
class Gaussian(AdditiveMechanism):
    """Gaussian noise at the logit: `t = y + N(0, σ²)`, or `t = e_y + N(0, σ² I)`."""

    name = "gaussian"


def gaussian(sigma: float, delta: float, classes: int = 2) -> Gaussian:
    """Return Gaussian noise of standard deviation σ on the label: the paper's baseline (section 5.2).

    Guarantee: (ε, δ)-DP with the smallest ε that the sampled integers allow for this δ, rounded up. No pure ε exists
    for Gaussian noise. The ε is found by the definition, `δ(ε) = Σ_o max(0, P(o|y) - e^ε P(o|y'))`, which the analytic
    Gaussian mechanism (Balle and Wang 2018) computes for the continuous distribution.
    """
    sigma, delta, classes = check_sigma(sigma), check_delta(delta), check_classes(classes)
    table = gaussian_table(sigma)
    epsilon = epsilon_of_table(table, delta) if classes == 2 else epsilon_of_two_coordinates(table, delta)
    return Gaussian(classes, epsilon, delta, {"sigma": sigma, "delta": delta}, table)


@lru_cache(maxsize=4)  # a run asks for its table, and for its ε, several times
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
