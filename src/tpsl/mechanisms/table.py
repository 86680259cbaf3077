"""A table of integers: the probabilities of a mechanism, as they are sampled.

Row y holds the weights `W[y][o]`; outcome o is drawn with probability exactly `W[y][o] / 2^64`. Every claim about the
mechanism (its ε, its mean, what an attack can reach) is computed from these integers, not from the formula that
suggested them.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.random_words import Words

TOTAL = 1 << 64
"""What each row of a table sums to: one outcome for each 64-bit word."""

_GUIDE_BITS = 16


@dataclass(frozen=True, eq=False)
class Table:
    """Integer weights `W[y][o]`, each row summing to 2^64, and the value `t_o` of each outcome."""

    weights: npt.NDArray[np.uint64]
    values: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        rows, outcomes = self.weights.shape
        if self.values.shape != (outcomes,):
            raise ValueError(f"a table of {outcomes} outcomes has {self.values.shape} values")
        for y in range(rows):
            total = sum(self.weights[y].tolist())
            if total != TOTAL:
                raise ValueError(f"row {y} of the table sums to {total}, not to 2^64")
        if not self.weights.all():
            raise ValueError("an outcome of weight 0 would give the label away whenever it shows")
        self.weights.flags.writeable = False
        self.values.flags.writeable = False

    @property
    def outcomes(self) -> int:
        """The number of outcomes."""
        return int(self.weights.shape[1])

    @property
    def digest(self) -> str:
        """SHA-256 of weights and values: two mechanisms with this digest are the same mechanism."""
        sha = hashlib.sha256(repr(self.weights.shape).encode())
        sha.update(self.weights.astype("<u8").tobytes())
        sha.update(self.values.astype("<f8").tobytes())
        return sha.hexdigest()

    @cached_property
    def largest_ratio(self) -> Fraction:
        """`max_{o, y≠y'} W[y][o] / W[y'][o]`, exactly: e^ε of one draw."""
        numerator, denominator = 1, 1
        for column in self.weights.T.tolist():
            high, low = max(column), min(column)
            if high * denominator > numerator * low:
                numerator, denominator = high, low
        return Fraction(numerator, denominator)

    def mean(self, y: int) -> float:
        """Return `E[t | y]`, computed exactly and rounded once."""
        return float(self._moment(y, 1))

    def variance(self, y: int) -> float:
        """Return `Var[t | y]`, computed exactly and rounded once."""
        return float(self._moment(y, 2) - self._moment(y, 1) ** 2)

    def _moment(self, y: int, power: int) -> Fraction:
        # A float is an integer over a power of two: over the largest of these powers, all sums are sums of integers.
        values = [Fraction(value) for value in self.values.tolist()]
        common = max(value.denominator for value in values)
        numerators = [value.numerator * (common // value.denominator) for value in values]
        total = sum(w * v**power for w, v in zip(self.weights[y].tolist(), numerators, strict=True))
        return Fraction(total, TOTAL * common**power)

    @cached_property
    def log_weights(self) -> npt.NDArray[np.float64]:
        """`ln P(o | y)` for every row and outcome."""
        logs: npt.NDArray[np.float64] = np.log(self.weights.astype(np.float64)) - 64 * math.log(2.0)
        return logs

    def sample(self, rows: npt.NDArray[np.integer], words: Words) -> npt.NDArray[np.int32]:
        """Turn each uniform word into an outcome of its row: the first o whose cumulative weight exceeds the word.

        A guide indexed by the first 16 bits of the word answers almost always; the words that share their 16 bits with
        a boundary are looked up by bisection. Both give the same outcome, so the probabilities are those of the table.
        """
        shift = np.uint64(64 - _GUIDE_BITS)
        index = (words >> shift).astype(np.intp)
        index += rows.astype(np.intp) << _GUIDE_BITS
        drawn = self._guide.take(index)
        unclear = np.flatnonzero(drawn < 0)
        for y in range(self.weights.shape[0]):
            of_row = unclear[rows[unclear] == y]
            drawn[of_row] = np.searchsorted(self._boundaries[y], words[of_row], side="right")
        return drawn

    @cached_property
    def _boundaries(self) -> Words:
        return np.cumsum(self.weights[:, :-1], axis=1, dtype=np.uint64)

    @cached_property
    def _guide(self) -> npt.NDArray[np.int32]:
        first_words = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - _GUIDE_BITS)
        last_words = first_words + np.uint64((1 << (64 - _GUIDE_BITS)) - 1)
        guides = []
        for boundaries in self._boundaries:
            lowest = np.searchsorted(boundaries, first_words, side="right")
            highest = np.searchsorted(boundaries, last_words, side="right")
            guides.append(np.where(lowest == highest, lowest, -1))
        return np.concatenate(guides).astype(np.int32)
