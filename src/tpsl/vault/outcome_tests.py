"""Do stored outcomes look like draws from their table? Exact binomial tests against the labels they were drawn from.

Every count tested here is binomial with a probability that follows from the mechanism's integers, so its tails are
exact and no sample is too small. Three things are looked at:

- *rates*: how often each outcome stands with each label;
- *neighbours*: whether the noise of a record says anything about that of the records after it;
- *agreement*: whether two draws for the same records have noise in common.

The last two reduce an outcome to its *own bit*: what the noise did to the record's own class (for randomised response
and subset selection whether it was kept, for additive noise whether it went up or down, for a table of a user's own
whether the outcome is among the likelier ones). The bit has the same probability whatever the label.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import TOTAL, Mechanism

Bits = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LAGS = 8
"""The noise of a record is compared with that of the 1st to the 8th record after it."""
_BINS = 16
"""Neighbouring points of a grid of additive noise are counted together, in at most this many bins."""


@dataclass(frozen=True)
class Tested:
    """The most surprising of some tests: what was found, in words, and how probable that is for a sound vault."""

    sentence: str
    p_value: float
    tests: int


def accusations(found: Iterable[Tested], level: float) -> list[str]:
    """Return what a sound vault shows with probability at most `level`, all tests counted (Bonferroni)."""
    found = list(found)
    number = sum(tested.tests for tested in found)
    return [
        f"{tested.sentence} (probability {min(1.0, number * tested.p_value):.2g}, {number:,} tests counted)"
        for tested in found
        if tested.p_value * number < level
    ]


def at_least(count: npt.ArrayLike, trials: npt.ArrayLike, probability: npt.ArrayLike) -> Floats:
    """Return `P(X ≥ count)` for X binomial."""
    from scipy.special import betainc  # takes as long to import as all of the vault

    k, n, p = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in (count, trials, probability)))
    inside = (k >= 1) & (k <= n)
    found = betainc(np.where(inside, k, 1.0), np.where(inside, n - k + 1, 1.0), p)
    return np.where(inside, found, np.where(k < 1, 1.0, 0.0))


def surprise(count: npt.ArrayLike, trials: npt.ArrayLike, probability: npt.ArrayLike, allowance: int = 0) -> Floats:
    """Return the two-sided p-value of a binomial count.

    Up to `allowance` trials may have been exchanged for others after they were counted, chosen by an adversary: the
    p-value is still no smaller than it should be.
    """
    k, n, p = (np.asarray(value, np.float64) for value in (count, trials, probability))
    above = at_least(k - allowance, n + allowance, p)
    fewer = np.maximum(n - allowance, 0.0)
    below = at_least(fewer - (k + allowance), fewer, 1.0 - p)
    return np.minimum(1.0, 2.0 * np.minimum(above, below))


class Expected:
    """What a mechanism's integers say of the outcomes of records whose labels are known.

    Two classes, and tables of users' own, have a row for each label. Other mechanisms for k classes have a row for each
    class's own coordinate, over the records of that class, and one for the same coordinate over all other records.
    """

    def __init__(self, mechanism: Mechanism, stream: int = 0) -> None:
        """`stream` differs between samples that are compared: bits drawn at random are then independent."""
        self.mechanism, self._classes = mechanism, mechanism.classes
        coordinate = mechanism.coordinate
        self._by_label = mechanism.classes == 2 or coordinate is None
        self._likely: _LikelyOutcomes | None = None
        if coordinate is None:
            table = mechanism.weights.astype(np.float64) / TOTAL
            self.probabilities, self._bin = _binned(table)
            self._likely = _LikelyOutcomes(table, stream)
            self.bit = self._likely.probability
        else:
            (other, own), self._bin = _binned(coordinate)
            by_class = [own] * self._classes + [other] * self._classes
            self.probabilities = np.stack([other, own] if self._by_label else by_class)
            above = 1.0 - np.cumsum(coordinate[1])
            self._threshold = int(np.abs(above - 0.5).argmin())
            self.bit = float(above[self._threshold])
        self._bins = self.probabilities.shape[1]

    def counts(self, labels: npt.NDArray[Any], outcomes: npt.NDArray[Any]) -> Counts:
        """Return how often each cell occurs: `[rows, bins]`."""
        labels, k, bins = labels.astype(np.int64), self._classes, self._bins
        if self._by_label:
            return np.bincount(labels * bins + self._bin[outcomes], minlength=k * bins).reshape(k, bins)
        if self.mechanism.outcome_shape:
            cells = self._bin[outcomes]
            own = cells[np.arange(len(labels)), labels]
            columns = np.stack([np.bincount(column, minlength=bins) for column in cells.T])
        else:
            own = (outcomes == labels).astype(np.uint8)
            drawn = np.bincount(outcomes, minlength=k)
            columns = np.stack([len(outcomes) - drawn, drawn], axis=1)
        of_own = np.bincount(labels * bins + own, minlength=k * bins).reshape(k, bins)
        return np.concatenate([of_own, columns - of_own])

    def bits(self, labels: npt.NDArray[Any], outcomes: npt.NDArray[Any]) -> Bits:
        """Return each record's own bit; it is 1 with probability `bit`, whatever the label."""
        if self._likely is not None:
            return self._likely.drawn(labels, outcomes)
        if self._classes == 2:
            # The row of label 1 is the mirror image of that of label 0.
            last = self.mechanism.outcomes - 1
            own = np.where(labels == 1, outcomes.astype(np.int64), last - outcomes.astype(np.int64))
        elif self.mechanism.outcome_shape:
            own = outcomes[np.arange(len(labels)), labels.astype(np.int64)]
        else:
            own = outcomes == labels
        above: Bits = own > self._threshold
        return above

    def row_name(self, row: int) -> str:
        """Return which records a row counts, in words."""
        if self._by_label:
            return f"records of class {row}"
        own, column = row < self._classes, row % self._classes
        return f"records of class {column}" if own else f"records of other classes, at class {column}"


class _LikelyOutcomes:
    """The own bit of a table without any symmetry: whether an outcome is among the likelier ones of its label.

    These are as many of the label's likeliest outcomes as are as probable together as the likeliest outcome of any
    label. Of the last of them only a random part counts, so that the probability is the same for all labels, exactly.
    """

    def __init__(self, probabilities: Floats, stream: int) -> None:
        self.probability = float(probabilities.max())
        order = np.argsort(-probabilities, axis=1, kind="stable")
        ranked = np.take_along_axis(probabilities, order, axis=1)
        before = np.cumsum(ranked, axis=1) - ranked
        self._counted = np.empty_like(probabilities)
        np.put_along_axis(self._counted, order, np.clip((self.probability - before) / ranked, 0.0, 1.0), axis=1)
        # Repeatable, so that the same vault is always judged alike: its noise does not depend on these numbers.
        self._random = np.random.default_rng(stream)

    def drawn(self, labels: npt.NDArray[Any], outcomes: npt.NDArray[Any]) -> Bits:
        """Return the bits of these outcomes."""
        likely: Bits = self._random.random(len(outcomes)) < self._counted[labels, outcomes]
        return likely


def _binned(rows: Floats) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """Return the rows of a table with outcomes next to each other taken together, and the bin of each outcome."""
    average = rows.mean(axis=0)
    _, of_outcome = np.unique(np.floor(_BINS * (np.cumsum(average) - average / 2)), return_inverse=True)
    return np.stack([np.bincount(of_outcome, weights=row) for row in rows]), of_outcome.astype(np.uint8)


class Rates:
    """How often each outcome stands with each label, against the table."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._counts = np.zeros(expected.probabilities.shape, np.int64)

    def take(self, labels: npt.NDArray[Any], outcomes: npt.NDArray[Any]) -> None:
        """Count the outcomes of one draw."""
        self._counts += self._expected.counts(labels, outcomes)

    def tested(self, place: str, allowance: int = 0) -> Tested:
        """Return the cell that lies farthest from what the table says."""
        trials = self._counts.sum(axis=1, keepdims=True)
        found = surprise(self._counts, trials, self._expected.probabilities, allowance)
        row, cell = np.unravel_index(int(found.argmin()), found.shape)
        expected = self._expected.probabilities[row, cell] * trials[row, 0]
        sentence = (
            f"{place}: the noise is not that of {self._expected.mechanism}: of {trials[row, 0]:,} "
            f"{self._expected.row_name(int(row))} {self._counts[row, cell]:,} have an outcome that the table gives to "
            f"{expected:,.0f}"
        )
        return Tested(sentence, float(found[row, cell]), found.size)


class Neighbours:
    """Whether the own bits of records that follow each other are independent, at each lag up to `LAGS`.

    Pairs are taken block by block, so that no record is in two pairs of one count and the counts are binomial. Pairs
    with the same label are counted apart from the others: one random word may move two labels to opposite sides.
    """

    def __init__(self, expected: Expected) -> None:
        self._same = agreement(expected.bit, expected.bit)
        self._agreed, self._pairs = (np.zeros((LAGS, 4), np.int64) for _ in range(2))

    def take(self, bits: Bits, labels: npt.NDArray[Any]) -> None:
        """Compare the bits of consecutive records of one draw."""
        for lag in range(1, min(LAGS, len(bits) - 1) + 1):
            equal = bits[lag:] == bits[:-lag]
            kind = (np.arange(len(equal)) // lag) % 2 + 2 * (labels[lag:] == labels[:-lag])
            self._pairs[lag - 1] += np.bincount(kind, minlength=4)
            self._agreed[lag - 1] += np.bincount(kind[equal], minlength=4)

    def tested(self, place: str, allowance: int = 0) -> Tested:
        """Return the lag at which the noise is most surprisingly alike, or unlike."""
        found = surprise(self._agreed, self._pairs, self._same, allowance)
        lag, kind = np.unravel_index(int(found.argmin()), found.shape)
        pairs, agreed = int(self._pairs[lag, kind]), int(self._agreed[lag, kind])
        sentence = (
            f"{place}: the noise of neighbouring records is not independent: of {pairs:,} pairs of records {lag + 1} "
            f"apart {agreed:,} have noise of the same kind, where {self._same * pairs:,.0f} are expected"
        )
        return Tested(sentence, float(found[lag, kind]), found.size)


class Agreement:
    """Whether two draws for the same records have noise in common, label by label."""

    def __init__(self, one: Expected, other: Expected) -> None:
        self._same = agreement(one.bit, other.bit)
        self._agreed, self._records = (np.zeros(one.mechanism.classes, np.int64) for _ in range(2))

    def take(self, one: Bits, other: Bits, labels: npt.NDArray[Any]) -> None:
        """Compare the bits of the same records in both draws."""
        self._records += np.bincount(labels, minlength=len(self._records))
        self._agreed += np.bincount(labels[one == other], minlength=len(self._records))

    def tested(self, place: str, allowance: int = 0) -> Tested:
        """Return how surprising it is how many records of a class have noise of the same kind in both draws."""
        found = surprise(self._agreed, self._records, self._same, allowance)
        label = int(found.argmin())
        agreed, records = int(self._agreed[label]), int(self._records[label])
        sentence = (
            f"{place}: two draws that should be independent have noise in common: {agreed:,} of {records:,} records of "
            f"class {label} have noise of the same kind in both, where {self._same * records:,.0f} are expected"
        )
        return Tested(sentence, float(found[label]), found.size)


def agreement(one: float, other: float) -> float:
    """Return how often two independent bits are equal, which are 1 with these probabilities."""
    return math.fsum([one * other, (1.0 - one) * (1.0 - other)])
