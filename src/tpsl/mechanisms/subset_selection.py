"""Subset selection (Ye and Barg 2018): the outcome is a set of d of the k classes, and the true class is in it more
often than any other.

With many classes and a small ε, one class named at random says little; a set of about `k / (e^ε + 1)` classes makes
better use of the same ε. All sets that hold the true class are equally likely, and so are all others, so the guarantee
is a matter of one integer.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.exact import exp_lower, log_upper
from tpsl.mechanisms.mechanism import Labels, Mechanism, check_classes, check_epsilon
from tpsl.mechanisms.random_words import RandomWords, Words
from tpsl.mechanisms.randomized_response import RandomizedResponse, randomized_response
from tpsl.mechanisms.table import TOTAL

_LARGEST_WORD = np.uint64(TOTAL - 1)


@dataclass(frozen=True, eq=False)
class SubsetSelection(Mechanism):
    """A set of `size` classes, as k bits: it holds the true class with weight `holds` of 2^64, the rest is uniform.

    Guarantee: `P(S | y)` is `holds / 2^64 / C(k-1, size-1)` if y is in S and `(2^64 - holds) / 2^64 / C(k-1, size)` if
    not, exactly, so `e^ε` is the quotient of the two, `holds·(k - size) / ((2^64 - holds)·size)`.
    """

    size: int
    holds: int

    name = "subset_selection"

    @property
    def digest(self) -> str:
        """SHA-256 of k, the size of the set and the integer."""
        return hashlib.sha256(f"subset selection {self.classes} {self.size} {self.holds}".encode()).hexdigest()

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """0 for a class outside the set, 1 for one in it."""
        return np.array([0.0, 1.0])

    @property
    def weights(self) -> npt.NDArray[np.uint64]:
        """One row for all labels: the set lacks the true class, the set holds it."""
        return np.array([[TOTAL - self.holds, self.holds]], dtype=np.uint64)

    @property
    def outcome_shape(self) -> tuple[int, ...]:
        """A bit for each class."""
        return (self.classes,)

    def mean(self, y: int) -> Any:
        """Return `E[t | y]`: the probability of each class to be in the set."""
        own, other = membership(self.classes, self.size, self.holds)
        return np.where(np.arange(self.classes) == y, float(own), float(other))

    def variance(self, y: int) -> Any:
        """Return `Var[t | y]`: each coordinate is a Bernoulli variable."""
        own, other = (float(p * (1 - p)) for p in membership(self.classes, self.size, self.holds))
        return np.where(np.arange(self.classes) == y, own, other)

    def log_likelihood(self, outcomes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return `ln P(set | y = j)` in column j."""
        held = math.log(self.holds) - math.log(TOTAL * math.comb(self.classes - 1, self.size - 1))
        lacked = math.log(TOTAL - self.holds) - math.log(TOTAL * math.comb(self.classes - 1, self.size))
        return np.where(np.asarray(outcomes) == 1, np.float64(held), np.float64(lacked))

    def _words(self, stream: RandomWords, records: int) -> Words:
        """Return the next rows of k words that are all different; a row with two equal words is passed over.

        So the order of the words in a row is a uniformly random one, exactly, whatever the value of any one of them,
        and that value is still uniform. Labels have no part in what is passed over.
        """
        rows = stream.words(records * self.classes).reshape(records, self.classes)
        while (repeats := repeated(rows)).any():
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
    size = min(sizes, key=lambda size: total_variance(classes, size, _holds(bound, classes, size)))
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


def membership(classes: int, size: int, holds: int) -> tuple[Fraction, Fraction]:
    """Return the probability of the true class, and of any other one, to be in the set."""
    own = Fraction(holds, TOTAL)
    return own, (size - own) / (classes - 1)


def total_variance(classes: int, size: int, holds: int) -> Fraction:
    """Return the total variance of the unbiased estimate `(t - E[t_other]) / (E[t_own] - E[t_other])`, exactly."""
    own, other = membership(classes, size, holds)
    return (own * (1 - own) + (classes - 1) * other * (1 - other)) / (own - other) ** 2


def repeated(rows: Words) -> npt.NDArray[np.bool_]:
    """Return which rows have a word twice."""
    ordered = np.sort(rows, axis=1)
    found: npt.NDArray[np.bool_] = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    return found
