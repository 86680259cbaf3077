"""Discrete perturbation, which is randomised response (section 3.2, Lemma 3.2; k classes: section 6.2, Lemma 6.2)."""

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
from tpsl.mechanisms.random_words import Words
from tpsl.mechanisms.table import TOTAL


@dataclass(frozen=True, eq=False)
class RandomizedResponse(Mechanism):
    """The true class with weight `keep`, each other class with weight `flip`; `keep + (k-1)·flip = 2^64`."""

    keep: int
    flip: int

    name = "discrete"

    @property
    def digest(self) -> str:
        """SHA-256 of the two integers and k."""
        return hashlib.sha256(f"randomized response {self.classes} {self.keep} {self.flip}".encode()).hexdigest()

    @property
    def outcomes(self) -> int:
        """One outcome for each class."""
        return self.classes

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """0 and 1 for two classes, the unit vectors for k."""
        return np.array([0.0, 1.0]) if self.classes == 2 else np.eye(self.classes)

    @property
    def weights(self) -> npt.NDArray[Any]:
        """`keep` on the diagonal, `flip` elsewhere; Python integers where keep is 2^64, which 64 bits do not hold."""
        table = np.full((self.classes, self.classes), self.flip, dtype=np.uint64 if self.flip else object)
        np.fill_diagonal(table, self.keep)
        return table

    def mean(self, y: int) -> Any:
        """Return `E[t | y]`."""
        keep, flip = self.keep / TOTAL, self.flip / TOTAL
        if self.classes == 2:
            return keep if y == 1 else flip
        return np.where(np.arange(self.classes) == y, keep, flip)

    def variance(self, y: int) -> Any:
        """Return `Var[t | y]`: each coordinate is a Bernoulli variable."""
        mean = self.mean(y)
        return mean * (1.0 - mean)

    def log_likelihood(self, outcomes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return `ln P(outcome | y = j)` in column j."""
        hit = np.asarray(outcomes)[:, None] == np.arange(self.classes)
        kept, flipped = (math.log(weight / TOTAL) if weight else -math.inf for weight in (self.keep, self.flip))
        return np.where(hit, np.float64(kept), np.float64(flipped))

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        keep = np.uint64(self.keep)
        if self.classes == 2:
            return labels ^ (words >= keep)
        moved = words >= keep
        shift = np.zeros(len(words), dtype=np.int64)
        shift[moved] = 1 + ((words[moved] - keep) // np.uint64(self.flip)).astype(np.int64)
        return (labels + shift) % self.classes


def randomized_response(epsilon: float, classes: int = 2) -> RandomizedResponse:
    """Return the paper's Discrete perturbation at ε: the label is kept with probability `e^ε / (e^ε + k - 1)`.

    Guarantee: (ε, 0)-DP, exactly for the integers that are sampled: `flip` is rounded up, so `keep / flip ≤ e^ε`.
    """
    epsilon, classes = check_epsilon(epsilon), check_classes(classes)
    bound = exp_lower(epsilon)
    flip = -(-TOTAL // (bound + classes - 1))
    keep = TOTAL - (classes - 1) * flip
    ratio = Fraction(keep, flip)
    if not 1 <= ratio <= bound:
        raise ValueError(f"randomised response: {classes} classes at ε = {epsilon:g} do not fit into 64-bit integers")
    return RandomizedResponse(classes, log_upper(ratio), 0.0, {"epsilon": epsilon}, int(keep), int(flip))
