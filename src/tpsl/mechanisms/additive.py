"""Mechanisms that add noise to the label: `t = y + u` for two classes, `t = e_y + (u_0, …, u_{k-1})` for k
(Algorithm 4).

The noise lives on a grid that contains 0 and 1, its far tails are clamped (post-processing), and one two-row table
holds the probabilities: row 0 for a coordinate whose true value is 0, row 1 for value 1. With k classes each class
has a coordinate of its own, drawn independently from that table. Any other noise on each coordinate that such a table
can hold, as that of optimised unary encoding, is at home here too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.mechanism import Labels, Mechanism
from tpsl.mechanisms.random_words import Words
from tpsl.mechanisms.table import Table


@dataclass(frozen=True, eq=False)
class AdditiveMechanism(Mechanism):
    """Noise added to the label (two classes) or to each coordinate of its unit vector (k classes)."""

    table: Table

    @property
    def digest(self) -> str:
        """SHA-256 of the number of classes and the table; δ is a claim about the draw, no part of it."""
        return hashlib.sha256(f"{self.name} {self.classes} {self.table.digest}".encode()).hexdigest()

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The points of the grid."""
        return self.table.values

    @property
    def weights(self) -> npt.NDArray[np.uint64]:
        """The two rows of the table."""
        return self.table.weights

    @property
    def outcome_shape(self) -> tuple[int, ...]:
        """One draw for two classes, a draw for each class otherwise."""
        return () if self.classes == 2 else (self.classes,)

    def mean(self, y: int) -> Any:
        """Return `E[t | y]`."""
        return self._by_class(y, self.table.mean)

    def variance(self, y: int) -> Any:
        """Return `Var[t | y]`, coordinate by coordinate."""
        return self._by_class(y, self.table.variance)

    def _by_class(self, y: int, moment: Callable[[int], float]) -> Any:
        if self.classes == 2:
            return moment(y)
        other, own = moment(0), moment(1)
        return np.where(np.arange(self.classes) == y, own, other)

    def log_likelihood(self, outcomes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return `ln P(outcome | y = j)` in column j."""
        other, own = self.table.log_weights[:, np.asarray(outcomes)]
        if self.classes == 2:
            return np.stack([other, own], axis=1)
        likelihood: npt.NDArray[np.float64] = other.sum(axis=1, keepdims=True) + (own - other)
        return likelihood

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        if self.classes == 2:
            return self.table.sample(labels, words)
        own = labels[:, None] == np.arange(self.classes)
        return self.table.sample(own.ravel(), words).reshape(own.shape)


def grid_values(steps_per_unit: int, reach: int) -> npt.NDArray[np.float64]:
    """Return the grid from `-reach` steps below 0 to `reach` steps above 1; it is its own mirror image about ½."""
    return np.arange(-reach, reach + steps_per_unit + 1, dtype=np.float64) / steps_per_unit


def mirrored(row_if_0: list[int], values: npt.NDArray[np.float64]) -> Table:
    """Return the table whose row for label 1 is the mirror image of its row for label 0."""
    return Table(np.array([row_if_0, row_if_0[::-1]], dtype=np.uint64), values)
