"""Tables of integers: the probabilities of a mechanism as they are sampled, and the mechanism that is one table.

Row y holds the weights `W[y][o]`; outcome o is drawn with probability exactly `W[y][o] / 2^64`. Every claim about a
mechanism (its ε, its mean, what an attack can reach) is computed from these integers, not from the formula that
suggested them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.base import Floats, Labels, Mechanism, check_epsilon
from tpsl.mechanisms.exact import exp_lower, log_upper
from tpsl.mechanisms.sampling import Words

TOTAL = 1 << 64
"""The sum of each row of a table: one outcome for each 64-bit word."""
MAX_CLASSES, MAX_INTEGERS = 256, 1 << 14
"""The largest table of a user: the ledger of a vault keeps it for every release."""

_GUIDE_BITS = 16


@dataclass(frozen=True, eq=False)
class Table:
    """Integer weights `W[y][o]`, each row summing to 2^64, and the value `t_o` of each outcome."""

    weights: Words
    values: Floats

    def __post_init__(self) -> None:
        if self.values.shape != self.weights.shape[1:]:
            raise ValueError(f"a table of {self.weights.shape[1]} outcomes has {self.values.shape} values")
        for y, row in enumerate(self.weights.tolist()):
            if sum(row) != TOTAL:
                raise ValueError(f"row {y} of the table sums to {sum(row)}, not to 2^64")
        if not self.weights.all():
            raise ValueError("an outcome of weight 0 would give the label away whenever it shows")
        self.weights.flags.writeable = False
        self.values.flags.writeable = False

    @property
    def digest(self) -> str:
        """SHA-256 of weights and values: two tables with this digest are the same table."""
        sha = hashlib.sha256(repr(self.weights.shape).encode())
        sha.update(self.weights.astype("<u8").tobytes())
        sha.update(self.values.astype("<f8").tobytes())
        return sha.hexdigest()

    @cached_property
    def largest_ratio(self) -> Fraction:
        """`max_{o, y≠y'} W[y][o] / W[y'][o]`, exactly: e^ε of one draw.

        For a set S of outcomes `P(S|y) = Σ_{o∈S} P(o|y) ≤ Σ_{o∈S} e^ε P(o|y')`, so the ratio of single outcomes bounds
        that of every set.
        """
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
    def probabilities(self) -> Floats:
        """`P(o | y)` for every row and outcome, rounded to floats."""
        return self.weights.astype(np.float64) / TOTAL

    @cached_property
    def log_weights(self) -> Floats:
        """`ln P(o | y)` for every row and outcome."""
        return np.asarray(np.log(self.weights.astype(np.float64)) - 64 * math.log(2.0))

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
        """The outcome of all words that begin with these 16 bits, row after row; -1 where they have several."""
        first_words = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - _GUIDE_BITS)
        last_words = first_words + np.uint64((1 << (64 - _GUIDE_BITS)) - 1)
        guides = []
        for boundaries in self._boundaries:
            lowest = np.searchsorted(boundaries, first_words, side="right")
            highest = np.searchsorted(boundaries, last_words, side="right")
            guides.append(np.where(lowest == highest, lowest, -1))
        return np.concatenate(guides).astype(np.int32)


@dataclass(frozen=True, eq=False)
class TableMechanism(Mechanism):
    """A user's mechanism: outcome o with probability `W[y][o] / 2^64` for label y, whatever the integers.

    Everything follows from them: the ε (the largest ratio within a column, rounded up), the sampling, the likelihood,
    and the noisy label t, which is the unbiased estimate of the label's unit vector with the least variance (for two
    classes, its second coordinate). The ledger keeps the integers, so a vault is verified without the code that made
    them.
    """

    table_name: str
    table: Table
    coordinate = None

    @property
    def name(self) -> str:
        """The name that it was registered under."""
        return self.table_name

    @property
    def _definition(self) -> str:
        return f"table {self.name} {self.table.digest}"

    def spec(self) -> dict[str, Any]:
        """Return the integers."""
        return {"mechanism": self.name, "weights": self.table.weights.tolist()}

    @property
    def weights(self) -> Words:
        """A row for each label."""
        return self.table.weights

    def pairs(self) -> Iterator[tuple[Floats, Floats]]:
        """Return the rows of all pairs of classes."""
        return ((own, other) for other, own in combinations(self.table.probabilities, 2))

    @cached_property
    def values(self) -> Floats:
        """The least-variance unbiased estimate of the label; the coordinates of each sum to 1."""
        # Weighted least squares: of all T with Σ_o P(o|y) T_o = e_y the one of least variance for labels at random.
        probabilities = self.table.probabilities
        weighted = probabilities / probabilities.mean(axis=0)
        products = weighted @ probabilities.T
        if np.linalg.matrix_rank(products) < self.classes:
            raise ValueError(
                f"the mechanism '{self.name}' has no unbiased estimate of the label, because the rows of its table are "
                "linearly dependent: use the estimator 'posterior'"
            )
        estimates: Floats = np.linalg.solve(products, weighted).T
        return estimates[:, 1] if self.classes == 2 else estimates

    @property
    def unbiased_values(self) -> Floats:
        """The values are unbiased."""
        return self.values

    def mean(self, y: int) -> Floats:
        """Return `E[t | y]`."""
        return np.asarray(self.table.probabilities[y] @ self.values)

    def variance(self, y: int) -> Floats:
        """Return `Var[t | y]`, coordinate by coordinate."""
        return np.asarray(self.table.probabilities[y] @ (self.values - self.mean(y)) ** 2)

    def log_likelihood(self, outcomes: npt.ArrayLike) -> Floats:
        """Return `ln P(outcome | y = j)` in column j."""
        return np.asarray(self.table.log_weights.T[np.asarray(outcomes)])

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        return self.table.sample(labels, words)


def table_mechanism(name: str, rows: Sequence[Sequence[int]]) -> TableMechanism:
    """Return the mechanism of this table, a row for each label. Guarantee: its ε is that of these integers.

    Raises:
        ValueError: the table is too large, or a row is not made of positive integers that sum to 2^64.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise ValueError(f"the name of a mechanism is made of small letters, digits and '_', got {name!r}")
    table = [list(row) for row in rows]
    classes, outcomes = len(table), len(table[0]) if table else 0
    if not (2 <= classes <= MAX_CLASSES and 2 <= outcomes <= MAX_INTEGERS // classes):
        raise ValueError(
            f"the table of '{name}' has {classes} rows of {outcomes} integers; it may have 2 to {MAX_CLASSES} rows of "
            f"at least 2, and {MAX_INTEGERS:,} integers in all"
        )
    for y, row in enumerate(table):
        if len(row) != outcomes:
            raise ValueError(f"the table of '{name}' has rows of {outcomes} and of {len(row)} integers")
        for weight in row:
            if isinstance(weight, bool) or not isinstance(weight, int | np.integer) or not 0 < weight < TOTAL:
                raise ValueError(f"the table of '{name}' has {weight!r} in row {y}, which is no integer above 0")
    try:
        checked = Table(np.array(table, dtype=np.uint64), np.arange(outcomes, dtype=np.float64))
    except ValueError as error:
        raise ValueError(f"mechanism '{name}': {error}") from None
    return TableMechanism(classes, log_upper(checked.largest_ratio), 0.0, {}, name, checked)


def integer_weights(probabilities: Sequence[Sequence[float | Fraction]], epsilon: float) -> list[list[int]]:
    """Return probabilities `P(o | y)`, a row for each label, as integers for a table. Guarantee: their ε is at most ε.

    Rounding can move a ratio above e^ε. Then all rows are mixed with their average, by the smallest power of two that
    suffices, about 1e-15 where no probability is tiny.

    Raises:
        ValueError: a row does not sum to 1, or the probabilities themselves exceed ε.
    """
    bound = exp_lower(check_epsilon(epsilon))
    rows = []
    for y, given in enumerate(probabilities):
        row = [Fraction(p) for p in given]
        total = sum(row, Fraction(0))
        if not abs(total - 1) < 1e-9:
            raise ValueError(f"the probabilities of row {y} sum to {float(total)!r}, not to 1")
        rows.append([p / total for p in row])
    for o, column in enumerate(zip(*rows, strict=True)):
        if min(column) <= 0 or max(column) > min(column) * bound * Fraction(1 + 1e-9):
            raise ValueError(
                f"outcome {o} has probabilities from {float(min(column)):.3g} to {float(max(column)):.3g}: their ratio "
                f"is above e^ε for ε = {epsilon:g}"
            )
    average = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    for share in (Fraction(0), *(Fraction(1, 1 << bits) for bits in range(52, -1, -1))):
        table = [_rounded([p + share * (mean - p) for p, mean in zip(row, average, strict=True)]) for row in rows]
        if all(0 < max(column) <= min(column) * bound for column in zip(*table, strict=True)):
            return table
    raise ValueError("a probability below 2^-64 cannot be held by an integer")


def _rounded(row: Sequence[Fraction]) -> list[int]:
    """Return integers that sum to 2^64, none farther than 1 from its share: the largest remainders are rounded up."""
    shares = [p * TOTAL for p in row]
    floors = [int(share) for share in shares]
    missing = TOTAL - sum(floors)
    for place in sorted(range(len(row)), key=lambda o: shares[o] - floors[o], reverse=True)[:missing]:
        floors[place] += 1
    return floors
