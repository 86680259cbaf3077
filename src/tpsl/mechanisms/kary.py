"""Mechanisms for many classes, which the paper does not have, and the choice of the best one for an ε.

With many classes and a small ε, one class named at random says little. *Subset selection* (Ye and Barg 2018) releases a
set of classes, and *optimised unary encoding* (Wang, Blocki, Li, Jha 2017) a noisy bit for each class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.additive_noise import AdditiveMechanism, laplace, mirrored
from tpsl.mechanisms.base import Floats, Labels, Mechanism, check_classes, check_epsilon, votes
from tpsl.mechanisms.discrete import RandomizedResponse, randomized_response
from tpsl.mechanisms.exact import exp_lower, log_upper
from tpsl.mechanisms.integer_table import TOTAL, Table
from tpsl.mechanisms.sampling import RandomWords, Words

_HALF = TOTAL // 2
_LARGEST_WORD = np.uint64(TOTAL - 1)


@dataclass(frozen=True, eq=False)
class SubsetSelection(Mechanism):
    """A set of `size` classes, as k bits: it holds the true class with weight `holds` of 2^64, the rest is uniform.

    Guarantee: `P(S | y)` is `holds / 2^64 / C(k-1, size-1)` if y is in S and `(2^64 - holds) / 2^64 / C(k-1, size)` if
    not, exactly. Since `C(k-1, size) / C(k-1, size-1) = (k - size) / size`, the quotient of the two is
    `e^ε = holds·(k - size) / ((2^64 - holds)·size)`.
    """

    size: int
    holds: int

    name = "subset_selection"

    @property
    def _definition(self) -> str:
        return f"subset selection {self.classes} {self.size} {self.holds}"

    @property
    def values(self) -> Floats:
        """0 for a class outside the set, 1 for one in it."""
        return np.array([0.0, 1.0])

    @property
    def weights(self) -> Words:
        """One row for all labels: the set lacks the true class, the set holds it."""
        return np.array([[TOTAL - self.holds, self.holds]], dtype=np.uint64)

    @property
    def outcome_shape(self) -> tuple[int, ...]:
        """A bit for each class."""
        return (self.classes,)

    @property
    def coordinate(self) -> Floats:
        """Whether a class is in the set."""
        return np.array([[1 - p, p] for p in map(float, reversed(_membership(self.classes, self.size, self.holds)))])

    def pairs(self) -> Iterable[tuple[Floats, Floats]]:
        """Return one pair: the set holds the true class alone of the two, the other one alone, or both or neither."""
        holds, others = self.holds / TOTAL, self.classes - 1
        return votes(holds * (self.classes - self.size) / others, (1.0 - holds) * self.size / others)

    def mean(self, y: int) -> Floats:
        """Return `E[t | y]`: the probability of each class to be in the set."""
        own, other = _membership(self.classes, self.size, self.holds)
        return self._by_class(y, float(other), float(own))

    def variance(self, y: int) -> Floats:
        """Return `Var[t | y]`: each coordinate is a Bernoulli variable."""
        own, other = (float(p * (1 - p)) for p in _membership(self.classes, self.size, self.holds))
        return self._by_class(y, other, own)

    def log_likelihood(self, outcomes: npt.ArrayLike) -> Floats:
        """Return `ln P(set | y = j)` in column j."""
        held = math.log(self.holds) - math.log(TOTAL * math.comb(self.classes - 1, self.size - 1))
        lacked = math.log(TOTAL - self.holds) - math.log(TOTAL * math.comb(self.classes - 1, self.size))
        return np.where(np.asarray(outcomes) == 1, np.float64(held), np.float64(lacked))

    def _words(self, stream: RandomWords, records: int) -> Words:
        """Return the next rows of k words that are all different; a row with two equal words is passed over.

        So the order of the words in a row is uniformly random, exactly, whatever the value of any one of them, and
        that value is still uniform. Labels have no part in what is passed over.
        """
        rows = stream.words(records * self.classes).reshape(records, self.classes)
        while (repeats := (np.diff(np.sort(rows, axis=1), axis=1) == 0).any(axis=1)).any():
            fresh = stream.words(int(repeats.sum()) * self.classes).reshape(-1, self.classes)
            rows = np.concatenate([rows[~repeats], fresh])
        return rows.ravel()

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        """The true class's word decides whether it is in the set; the smallest words of the others fill it up."""
        keys = words.reshape(len(labels), self.classes).copy()
        place = np.arange(len(labels)), labels
        in_set = keys[place] < np.uint64(self.holds)
        # At the front or at the end of the order, the true class takes a place in the set or leaves all to the others.
        keys[place] = np.where(in_set, np.uint64(0), _LARGEST_WORD)
        drawn = keys <= np.sort(keys, axis=1)[:, self.size - 1 : self.size]
        drawn[place] = in_set
        return drawn.view(np.uint8)


def subset_selection(epsilon: float, classes: int) -> SubsetSelection | RandomizedResponse:
    """Return subset selection at ε, with the size that gives an unbiased label the least total variance.

    A set of one class is randomised response, and that is what is returned then: always for two classes, and for a
    large ε. Guarantee: (ε, 0)-DP, exactly for what is sampled: `holds` is rounded down, and the choice among sets of a
    kind is uniform without any rounding.
    """
    epsilon, classes = check_epsilon(epsilon), check_classes(classes)
    bound = exp_lower(epsilon)
    ideal = math.floor(classes / (bound + 1))
    sizes = [size for size in (ideal, ideal + 1) if 1 <= size < classes]
    size = min(sizes, key=lambda size: _total_variance(classes, size, _holds(bound, classes, size)))
    if size == 1:
        return randomized_response(epsilon, classes)
    holds = _holds(bound, classes, size)
    ratio = Fraction(holds * (classes - size), (TOTAL - holds) * size)
    if not 1 <= ratio <= bound:
        raise ArithmeticError(f"subset selection exceeds ε = {epsilon!r} for {classes} classes; this is a bug")
    return SubsetSelection(classes, log_upper(ratio), 0.0, {"epsilon": epsilon}, size, holds)


def _holds(bound: Fraction, classes: int, size: int) -> int:
    """Return the largest weight of the sets with the true class that keeps the promise of `e^ε = bound`."""
    return math.floor(TOTAL * bound * size / (bound * size + classes - size))


def _membership(classes: int, size: int, holds: int) -> tuple[Fraction, Fraction]:
    """Return the probability of the true class, and of any other one, to be in the set."""
    own = Fraction(holds, TOTAL)
    return own, (size - own) / (classes - 1)


def _total_variance(classes: int, size: int, holds: int) -> Fraction:
    """Return the total variance of the unbiased estimate `(t - E[t_other]) / (E[t_own] - E[t_other])`, exactly."""
    own, other = _membership(classes, size, holds)
    return (own * (1 - own) + (classes - 1) * other * (1 - other)) / (own - other) ** 2


@dataclass(frozen=True, eq=False)
class OptimizedUnary(AdditiveMechanism):
    """k independent bits: that of the true class is 1 with probability ½, each other one with `1 / (e^ε + 1)`.

    The true class's bit could be kept better at the same ε, but there are many more others, and theirs is the variance.
    For two classes `t = (1 + b_1 - b_0) / 2`, which is all that the two bits say.
    """

    name = "optimized_unary"

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        if self.classes == 2:
            return super()._draw(labels, words)
        # The table has two outcomes: a comparison with the one boundary of its row is faster than looking it up.
        bits: npt.NDArray[np.bool_] = words >= self.table.weights[0, 0]
        own = np.arange(len(labels)) * self.classes + labels
        bits[own] = words[own] >= self.table.weights[1, 0]
        return bits.view(np.uint8).reshape(len(labels), self.classes)


def optimized_unary(epsilon: float, classes: int) -> OptimizedUnary:
    """Return optimised unary encoding at ε.

    Guarantee: (ε, 0)-DP, exactly for the integers that are sampled. Two labels differ in two coordinates, and the worst
    outcome has the largest ratio own to other in one of them and other to own in the other: `½/q · (1-q)/½` with q the
    probability of another class's bit, which is rounded up, so `(1-q)/q ≤ e^ε`.
    """
    epsilon, classes = check_epsilon(epsilon), check_classes(classes)
    # For two classes, two equal bits are one outcome of weight ½: 0 0 and 1 1 are equally likely under both labels.
    shared = TOTAL if classes > 2 else _HALF
    one = int(-(-shared // (exp_lower(epsilon) + 1)))
    zero = shared - one
    if classes > 2:
        table = Table(np.array([[zero, one], [_HALF, _HALF]], dtype=np.uint64), np.array([0.0, 1.0]))
    else:
        table = mirrored([zero, _HALF, one], np.array([0.0, 0.5, 1.0]))
    return OptimizedUnary(classes, log_upper(Fraction(zero, one)), 0.0, {"epsilon": epsilon}, table)


def variance_of_unbiased(mechanism: Mechanism) -> float:
    """Return the total variance of the unbiased estimate of the label's unit vector, summed over its k coordinates.

    The estimate is `(t - μ_other) / (μ_own - μ_other)`. Which label is estimated does not matter: every mechanism of
    this package treats all classes alike. Computed once for each table: exact sums take a millisecond.
    """
    key = type(mechanism).__name__, mechanism.classes, mechanism.digest
    if key not in _variances:
        if mechanism.classes == 2:
            # The unit vector is (1 - t, t): both coordinates have the variance of t.
            found = 2 * mechanism.variance(1) / (mechanism.mean(1) - mechanism.mean(0)) ** 2
        else:
            own, other = mechanism.mean(0)[:2]
            found = np.sum(mechanism.variance(0)) / (own - other) ** 2
        _variances[key] = float(found)
    return _variances[key]


_variances: dict[tuple[str, int, str], float] = {}


@lru_cache(maxsize=32, typed=True)
def best_for(epsilon: float, classes: int) -> tuple[Mechanism, str]:
    """Return the mechanism that makes most of ε for this number of classes, and a sentence that says why.

    Two classes: randomised response, of which every ε-DP mechanism is a post-processing (Kairouz, Oh, Viswanath 2015).
    More: the one with the lowest total variance of the unbiased label. The choice uses no data, so it costs no budget.

    Larger sets, which the mutual information of label and noisy label would choose, were not ahead in accuracy.
    """
    plain = randomized_response(epsilon, classes)
    if plain.classes == 2:
        return plain, "randomised response: for two classes every mechanism of the same ε is a post-processing of it"
    candidates: list[tuple[str, Mechanism]] = [
        ("randomised response", plain),
        ("optimised unary encoding", optimized_unary(epsilon, classes)),
        ("Laplace", laplace(epsilon, classes)),
    ]
    subset = subset_selection(epsilon, classes)
    if isinstance(subset, SubsetSelection):
        candidates.append((f"subset selection of {subset.size} of {classes} classes", subset))
    ranked = sorted((variance_of_unbiased(mechanism), name, mechanism) for name, mechanism in candidates)
    (lowest, name, best), *others = ranked
    against = ", ".join(f"{name} {_shown(variance)}" for variance, name, _ in others)
    return best, f"{name}: total variance {_shown(lowest)} of an unbiased label, against {against}"


def _shown(variance: float) -> str:
    return f"{variance:.0f}" if variance >= 100 else f"{variance:.3g}"
