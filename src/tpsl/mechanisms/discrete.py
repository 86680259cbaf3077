"""The paper's Discrete perturbation, which is randomised response, and no noise at all (Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.base import Floats, Labels, Mechanism, check_classes, check_epsilon, votes
from tpsl.mechanisms.exact import exp_lower, log_upper
from tpsl.mechanisms.integer_table import TOTAL
from tpsl.mechanisms.sampling import Words


@dataclass(frozen=True, eq=False)
class RandomizedResponse(Mechanism):
    """Discrete perturbation (section 3.2, Lemma 3.2; k classes: section 6.2, Lemma 6.2).

    The true class has weight `keep`, each other class has weight `flip`; `keep + (k-1)·flip = 2^64`. For two classes u
    of Algorithm 2 is Bernoulli with `p = flip / 2^64`, and t is y or 1 - y.
    """

    keep: int
    flip: int

    name = "discrete"

    @property
    def _definition(self) -> str:
        return f"randomized response {self.classes} {self.keep} {self.flip}"

    @property
    def outcomes(self) -> int:
        """One outcome for each class."""
        return self.classes

    @property
    def values(self) -> Floats:
        """0 and 1 for two classes, the unit vectors for k."""
        return np.array([0.0, 1.0]) if self.classes == 2 else np.eye(self.classes)

    @property
    def weights(self) -> npt.NDArray[np.generic]:
        """`keep` on the diagonal, `flip` elsewhere; Python integers where keep is 2^64, which 64 bits do not hold."""
        table = np.full((self.classes, self.classes), self.flip, dtype=np.uint64 if self.flip else object)
        np.fill_diagonal(table, self.keep)
        return table

    @property
    def coordinate(self) -> Floats:
        """An outcome shows 1 at its class and 0 elsewhere."""
        return np.array([[1 - p, p] for p in (self.flip / TOTAL, self.keep / TOTAL)])

    def pairs(self) -> Iterable[tuple[Floats, Floats]]:
        """Return one pair: the outcome is the true class, the other one, or a third, which says nothing."""
        return votes(self.keep / TOTAL, self.flip / TOTAL)

    def mean(self, y: int) -> Floats:
        """Return `E[t | y]`."""
        return self._by_class(y, self.flip / TOTAL, self.keep / TOTAL)

    def variance(self, y: int) -> Floats:
        """Return `Var[t | y]`: each coordinate is a Bernoulli variable."""
        mean = self.mean(y)
        return np.asarray(mean * (1.0 - mean))

    def log_likelihood(self, outcomes: npt.ArrayLike) -> Floats:
        """Return `ln P(outcome | y = j)` in column j."""
        hit = np.asarray(outcomes)[:, None] == np.arange(self.classes)
        kept, flipped = (math.log(weight / TOTAL) if weight else -math.inf for weight in (self.keep, self.flip))
        return np.where(hit, np.float64(kept), np.float64(flipped))

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        """Words below `keep` keep the label; each further stretch of `flip` words moves it by one class more."""
        keep = np.uint64(self.keep)
        moved = words >= keep
        if self.classes == 2:
            return labels ^ moved
        shift = np.zeros(len(words), dtype=np.int64)
        shift[moved] = 1 + ((words[moved] - keep) // np.uint64(self.flip)).astype(np.int64)
        return (labels + shift) % self.classes


def randomized_response(epsilon: float, classes: int = 2) -> RandomizedResponse:
    """Return the paper's Discrete perturbation at ε: the label is kept with probability `e^ε / (e^ε + k - 1)`.

    Guarantee: (ε, 0)-DP, exactly for the integers that are sampled. An outcome has one of two probabilities under any
    label, so the largest ratio is `keep / flip`; `flip` is rounded up, so it is at most `e^ε`.

    Raises:
        ValueError: ε is out of range, or 64-bit integers cannot hold the probabilities of so many classes.
    """
    epsilon, classes = check_epsilon(epsilon), check_classes(classes)
    bound = exp_lower(epsilon)
    flip = -(-TOTAL // (bound + classes - 1))
    keep = TOTAL - (classes - 1) * flip
    ratio = Fraction(keep, flip)
    if not 1 <= ratio <= bound:
        raise ValueError(f"randomised response: {classes} classes at ε = {epsilon:g} do not fit into 64-bit integers")
    return RandomizedResponse(classes, log_upper(ratio), 0.0, {"epsilon": epsilon}, int(keep), int(flip))


@dataclass(frozen=True, eq=False)
class Identity(RandomizedResponse):
    """The label itself, always kept (ε = ∞): the paper's Algorithm 1.

    It protects nothing; it lets non-private training run the same code.
    """

    name = "none"

    @property
    def _definition(self) -> str:
        return f"identity {self.classes}"

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        return labels


def identity(classes: int = 2) -> Identity:
    """Return the mechanism that releases the true label: not private (ε = ∞)."""
    return Identity(check_classes(classes), math.inf, 0.0, {}, TOTAL, 0)
