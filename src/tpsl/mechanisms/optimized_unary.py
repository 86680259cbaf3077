"""Optimised unary encoding (Wang, Blocki, Li, Jha 2017): a noisy bit for each class.

The bit of the true class is 1 with probability ½, each other bit with probability `1 / (e^ε + 1)`, independently. The
true class's own bit could be kept better at the same ε, but there are many more others, and theirs is the variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.additive import AdditiveMechanism, mirrored
from tpsl.mechanisms.exact import exp_lower, log_upper
from tpsl.mechanisms.mechanism import Labels, check_classes, check_epsilon
from tpsl.mechanisms.random_words import Words
from tpsl.mechanisms.table import TOTAL, Table

_HALF = TOTAL // 2


@dataclass(frozen=True, eq=False)
class OptimizedUnary(AdditiveMechanism):
    """k independent bits; for two classes `t = (1 + b_1 - b_0) / 2`, which is all that the two bits say."""

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
