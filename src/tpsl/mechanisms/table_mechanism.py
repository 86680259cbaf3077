"""A mechanism that is a table of integers and nothing else: what users bring.

Everything follows from the integers `W[y][o]`, each row summing to 2^64: the ε (the largest ratio within a column,
rounded up), the sampling, the likelihood, and the noisy label t, which is the unbiased estimate of the label's unit
vector with the least variance (for two classes, its second coordinate). The ledger keeps the integers themselves, so a
vault is verified without the code that made them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.exact import exp_lower, log_upper
from tpsl.mechanisms.mechanism import Labels, Mechanism, check_epsilon
from tpsl.mechanisms.random_words import Words
from tpsl.mechanisms.table import TOTAL, Table

MAX_CLASSES, MAX_INTEGERS = 256, 1 << 14
"""What a table of a user's own may have at most: the ledger of a vault keeps it for every release."""


@dataclass(frozen=True, eq=False)
class TableMechanism(Mechanism):
    """Outcome o with probability `W[y][o] / 2^64` for label y, whatever the integers."""

    table_name: str
    table: Table

    @property
    def name(self) -> str:
        """The name that it was registered under."""
        return self.table_name

    def spec(self) -> dict[str, Any]:
        """Return the integers."""
        return {"mechanism": self.name, "weights": self.table.weights.tolist()}

    @property
    def digest(self) -> str:
        """SHA-256 of the name and the integers."""
        return hashlib.sha256(f"table {self.name} {self.table.digest}".encode()).hexdigest()

    @property
    def weights(self) -> npt.NDArray[np.uint64]:
        """A row for each label."""
        return self.table.weights

    @cached_property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """`P(o | y)`, a row for each label."""
        return self.weights.astype(np.float64) / TOTAL

    @cached_property
    def values(self) -> npt.NDArray[np.float64]:
        """The least-variance unbiased estimate of the label; the coordinates of each sum to 1."""
        # Weighted least squares: of all T with Σ_o P(o|y) T_o = e_y the one of least variance for labels at random.
        weighted = self.probabilities / self.probabilities.mean(axis=0)
        products = weighted @ self.probabilities.T
        if np.linalg.matrix_rank(products) < self.classes:
            raise ValueError(
                f"the mechanism '{self.name}' has no unbiased estimate of the label, because the rows of its table are "
                "linearly dependent: use the estimator 'posterior'"
            )
        estimates: npt.NDArray[np.float64] = np.linalg.solve(products, weighted).T
        return estimates[:, 1] if self.classes == 2 else estimates

    @property
    def unbiased_values(self) -> npt.NDArray[np.float64]:
        """The values are unbiased."""
        return self.values

    def mean(self, y: int) -> Any:
        """Return `E[t | y]`."""
        return self.probabilities[y] @ self.values

    def variance(self, y: int) -> Any:
        """Return `Var[t | y]`, coordinate by coordinate."""
        return self.probabilities[y] @ (self.values - self.mean(y)) ** 2

    def log_likelihood(self, outcomes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return `ln P(outcome | y = j)` in column j."""
        likelihood: npt.NDArray[np.float64] = self.table.log_weights.T[np.asarray(outcomes)]
        return likelihood

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        return self.table.sample(labels, words)


def table_mechanism(name: str, rows: Sequence[Sequence[int]]) -> TableMechanism:
    """Return the mechanism of this table, a row for each label. Guarantee: its ε is that of these integers.

    A table that is too large, or whose rows are not integers that sum to 2^64, is refused.
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
    suffices, about 1e-15 where no probability is tiny. Probabilities that do not keep ε themselves are refused.
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
