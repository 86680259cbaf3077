"""Does released noise look like that of its mechanism? Exact tests against the true labels, or the sums without noise.

Noisy labels: every count tested here is binomial with a probability that follows from the mechanism's integers, so its
tails are exact and no sample is too small. Three things are looked at:

- *rates*: how often each outcome stands with each label;
- *neighbours*: whether the noise of a record says anything about that of the records after it;
- *agreement*: whether two draws for the same records have noise in common.

The last two reduce an outcome to its *own bit*: what the noise did to the record's own class (for randomised response
and subset selection whether it was kept, for additive noise whether it went up or down, for a user's table whether the
outcome is one of the later ones). Nothing is drawn: the same outcomes always give the same result.

Statistics: the size and the centre of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import TOTAL, Mechanism, StatisticNoise
from tpsl.vault.cost import Series
from tpsl.vault.ledger import Entry

Bits = npt.NDArray[np.int8]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Outcomes = npt.NDArray[Any]  # of any unsigned type
Rows = npt.NDArray[np.intp]

LEVEL = 1e-6
"""The probability with which a sound vault is accused, at most: in all its life, all tests counted."""
LAGS = 8
"""The noise of a record is compared with that of the 1st to the 8th record after it."""
_BINS = 16
"""Neighbouring points of a grid of additive noise are counted together, in at most this many bins."""


def level_at(entries: int) -> float:
    """Return the part of `LEVEL` for a vault whose ledger has this number of entries.

    A vault may be tested after each entry. `1 / (n(n+1))` for n = 1, 2, … sums to 1, so all these tests together accuse
    a sound vault with probability at most `LEVEL`. Tests of the same state always find the same.
    """
    return LEVEL / (entries * (entries + 1))


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


def surprise(
    count: npt.ArrayLike, trials: npt.ArrayLike, probability: npt.ArrayLike, allowance: int = 0, spread: float = 0.0
) -> Floats:
    """Return the two-sided p-value of a count of independent trials, of this mean probability.

    Where their probabilities differ, by `spread` at most, the tails are lighter than those of the binomial distribution
    with the mean (Hoeffding 1956, Theorem 4; from a distance of 1 on, and below that by less than the factor 2 here).
    Up to `allowance` trials may have been exchanged for others after they were counted, chosen by an adversary: the
    p-value is still no smaller than it should be.
    """
    k, n, p = (np.asarray(value, np.float64) for value in (count, trials, probability))
    more, fewer = n + allowance, np.maximum(n - allowance, 0.0)
    # Each exchange moves the sum of the probabilities by `spread` more than an exchange of equal trials would.
    highest = np.minimum(1.0, p + allowance * spread / np.maximum(more, 1.0))
    lowest = np.maximum(0.0, p - allowance * spread / np.maximum(fewer, 1.0))
    above = at_least(k - allowance, more, highest)
    below = at_least(fewer - (k + allowance), fewer, 1.0 - lowest)
    return np.minimum(1.0, 2.0 * np.minimum(above, below))


class Expected:
    """What a mechanism's integers say of the outcomes of records whose labels are known.

    There is a row for each label: what outcomes show at the record's own class, or, where classes are not treated
    alike, the outcomes themselves. Mechanisms that treat k > 2 classes alike have a second row for each class: what the
    outcomes of all other records show at it.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism, self._classes, coordinate = mechanism, mechanism.classes, mechanism.coordinate
        self._alike, self._with_others = coordinate is not None, coordinate is not None and mechanism.classes > 2
        if coordinate is None:
            own = mechanism.weights.astype(np.float64) / TOTAL
            self.probabilities, self._bin = _binned(own)
        else:
            own = coordinate[1:]
            (others, of_own), self._bin = _binned(coordinate)
            rows = [of_own] * self._classes + [others] * (self._classes if self._with_others else 0)
            self.probabilities = np.stack(rows)
        above = 1.0 - np.cumsum(own, axis=1)
        threshold = np.abs(above - 0.5).argmin(axis=1)
        self._threshold = np.broadcast_to(threshold, self._classes)
        self.bit: Floats = np.broadcast_to(above[np.arange(len(own)), threshold], self._classes)
        """For each label, the probability that the own bit is 1."""

    def counts(self, labels: Labels, outcomes: Outcomes) -> Counts:
        """Return how often each cell occurs: `[rows, bins]`."""
        k, bins = self._classes, self.probabilities.shape[1]
        own = self._bin[self._own(labels, outcomes)]
        of_own = np.bincount(labels * bins + own, minlength=k * bins).reshape(k, bins)
        if not self._with_others:
            return of_own
        if self.mechanism.outcome_shape:
            columns = np.stack([np.bincount(column, minlength=bins) for column in self._bin[outcomes].T])
        else:
            drawn = np.bincount(outcomes, minlength=k)
            columns = np.stack([len(outcomes) - drawn, drawn], axis=1)
        return np.concatenate([of_own, columns - of_own])

    def bits(self, labels: Labels, outcomes: Outcomes) -> Bits:
        """Return each record's own bit; it is 1 with the probability `bit` of its label."""
        return (self._own(labels, outcomes) > self._threshold[labels]).astype(np.int8)

    def _own(self, labels: Labels, outcomes: Outcomes) -> npt.NDArray[np.int64]:
        """Return what each outcome shows at the class of its record."""
        if not self._alike:
            return outcomes.astype(np.int64)
        if self._classes == 2:  # the row of label 1 is the mirror image of that of label 0
            drawn = outcomes.astype(np.int64)
            return np.where(labels == 1, drawn, self.mechanism.outcomes - 1 - drawn)
        shown = outcomes[np.arange(len(labels)), labels] if self.mechanism.outcome_shape else outcomes == labels
        return np.asarray(shown.astype(np.int64))

    def row_name(self, row: int) -> str:
        """Return which records a row counts, in words."""
        column = row % self._classes
        return f"records of class {row}" if row == column else f"records of other classes, at class {column}"


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

    def take(self, labels: Labels, outcomes: Outcomes) -> None:
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

    Pairs are taken block by block, so that no record is in two pairs of one count and the pairs are independent. Pairs
    with the same label are counted apart from the others: one random word may move two labels to opposite sides.
    """

    def __init__(self, expected: Expected) -> None:
        self._bit = expected.bit
        self._agreed, self._pairs = (np.zeros((LAGS, 4), np.int64) for _ in range(2))
        self._expected = np.zeros((LAGS, 4))

    def take(self, bits: Bits, labels: Labels) -> None:
        """Compare the bits of consecutive records of one draw."""
        own = self._bit[labels]
        for lag in range(1, min(LAGS, len(bits) - 1) + 1):
            equal, alike = bits[lag:] == bits[:-lag], labels[lag:] == labels[:-lag]
            # With lag 2 the first records of pairs are 0 1 4 5 8 9 … in one count and 2 3 6 7 … in the other.
            odd = (np.arange(len(equal)) // lag).astype(np.uint8) & 1 == 1
            same = agreement(own[lag:], own[:-lag])
            for kind, chosen in enumerate((odd & alike, odd & ~alike, ~odd & alike, ~odd & ~alike)):
                self._pairs[lag - 1, kind] += np.count_nonzero(chosen)
                self._agreed[lag - 1, kind] += np.count_nonzero(chosen & equal)
                self._expected[lag - 1, kind] += same @ chosen

    def tested(self, place: str, allowance: int = 0) -> Tested:
        """Return the lag at which the noise is most surprisingly alike, or unlike."""
        ends = np.array([self._bit.min(), self._bit.max()])
        spread = float(np.ptp(agreement(ends[:, None], ends)))
        found = surprise(self._agreed, self._pairs, self._expected / np.maximum(self._pairs, 1), allowance, spread)
        lag, kind = np.unravel_index(int(found.argmin()), found.shape)
        sentence = (
            f"{place}: the noise of neighbouring records is not independent: of {self._pairs[lag, kind]:,} pairs of "
            f"records {lag + 1} apart {self._agreed[lag, kind]:,} have noise of the same kind, where "
            f"{self._expected[lag, kind]:,.0f} are expected"
        )
        return Tested(sentence, float(found[lag, kind]), found.size)


class Agreement:
    """Whether two draws for the same records have noise in common, label by label."""

    def __init__(self, one: Expected, other: Expected) -> None:
        self._same = agreement(one.bit, other.bit)
        self._agreed, self._records = (np.zeros(one.mechanism.classes, np.int64) for _ in range(2))

    def take(self, one: Bits, other: Bits, labels: Labels) -> None:
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
            f"class {label} have noise of the same kind in both, where {self._same[label] * records:,.0f} are expected"
        )
        return Tested(sentence, float(found[label]), found.size)


def agreement(one: Floats, other: Floats) -> Floats:
    """Return how often two independent bits are equal, which are 1 with these probabilities."""
    return one * other + (1.0 - one) * (1.0 - other)


_Draw = tuple[Series, int]
_Chunk = tuple[int, Labels, dict[_Draw, Bits]]
"""The number of a chunk, its labels, and by draw the own bit of each record: -1 where it was not released."""


class _Sample:
    """The outcomes of one series."""

    def __init__(self, release: Entry, mechanism: Mechanism) -> None:
        self.name, self.expected = f"release {release.sequence}", Expected(mechanism)
        self.rates, self.neighbours = Rates(self.expected), Neighbours(self.expected)


class StoredNoise:
    """Rates, neighbours and agreement of all outcomes that are stored for one label, in the memory of two chunks.

    Releases of one series are one sample. `changed` is how many labels were changed after their release at most: which
    ones is not known, so all tests allow for any choice of that many.
    """

    def __init__(self, changed: int) -> None:
        self._changed = changed
        self._samples: dict[Series, _Sample] = {}
        self._agreements: dict[tuple[_Draw, _Draw], Agreement] = {}
        self._before: _Chunk = (-1, np.zeros(0, np.int64), {})

    def take(self, chunk: int, labels: Labels, releases: Iterable[tuple[Entry, Mechanism, Rows, Outcomes]]) -> None:
        """Take the outcomes `[draws, rows, …]` that releases gave to the records in these rows of a chunk."""
        bits: dict[_Draw, Bits] = {}
        for release, mechanism, rows, outcomes in releases:
            series = release.series
            if series not in self._samples:
                self._samples[series] = _Sample(release, mechanism)
            for draw, drawn in enumerate(outcomes):
                self._samples[series].rates.take(labels[rows], drawn)
                own = bits.setdefault((series, draw), np.full(len(labels), -1, np.int8))
                own[rows] = self._samples[series].expected.bits(labels[rows], drawn)
        for (series, _), own in bits.items():
            self._samples[series].neighbours.take(own[own >= 0], labels[own >= 0])
        # Seeded noise is not private anyway, and the same seed may give the same noise twice.
        secure = [draw for draw in bits if draw[0].seed is None]
        pairs = [(one, other, bits[one], bits[other]) for one, other in combinations(secure, 2)]
        number, labels_before, bits_before = self._before
        if chunk % 2 and number == chunk - 1:  # each draw with itself in the chunk before; no record is compared twice
            alike = labels_before[: len(labels)] == labels
            for same in [draw for draw in bits if draw in bits_before]:
                before: Bits = np.where(alike, bits_before[same][: len(labels)], np.int8(-1))
                pairs.append((same, same, before, bits[same]))
        for one, other, of_one, of_other in pairs:
            both = (of_one >= 0) & (of_other >= 0)
            if both.any():
                if (one, other) not in self._agreements:
                    expected = (self._samples[series].expected for series, _ in (one, other))
                    self._agreements[one, other] = Agreement(*expected)
                self._agreements[one, other].take(of_one[both], of_other[both], labels[both])
        self._before = chunk, labels, bits

    def tested(self) -> list[Tested]:
        """Return what all tests have found."""
        found = []
        for series, sample in self._samples.items():
            for test in (sample.rates, sample.neighbours):
                found.append(test.tested(sample.name, self._changed * series.draws))
        for (one, other), test_of_two in self._agreements.items():
            found.append(test_of_two.tested(self._pair_name(one, other), self._changed))
        return found

    def _pair_name(self, one: _Draw, other: _Draw) -> str:
        (series, draw), (other_series, other_draw) = one, other
        name = self._samples[series].name
        if series != other_series:
            return f"{name} and {self._samples[other_series].name}"
        return f"{name}, draws {draw + 1} and {other_draw + 1}" if draw != other_draw else f"{name}, chunk by chunk"


def statistic_noise_tests(noise: StatisticNoise, added: npt.NDArray[np.int64], place: str) -> list[Tested]:
    """Test the size and the centre of the noise that was `added` to a statistic.

    The sum of `noise.log_ratio(y, y)`, squares for Gaussian and absolute values for Laplace noise, is compared with the
    gamma distribution, and the sum of y with 0. The half by which an integer may differ from a real number is allowed.
    """
    if not noise.deviation:
        wrong = int(np.count_nonzero(added))
        return [Tested(f"{place}: {wrong:,} numbers are not those without noise", 0.0 if wrong else 1.0, 1)]
    return [_size(noise, added, place), _centre(noise, added, place)]


def _size(noise: StatisticNoise, added: npt.NDArray[np.int64], place: str) -> Tested:
    from scipy.special import gammainc, gammaincc  # takes as long to import as all of the vault

    less, more = (np.maximum(np.abs(added) + half, 0.0) for half in (-0.5, 0.5))
    shape = noise.gamma_shape * added.size
    above, below = (float(noise.log_ratio(size, size).sum()) for size in (less, more))
    p_value = min(1.0, 2 * min(gammainc(shape, below), gammaincc(shape, above)))
    size = math.sqrt(float((added.astype(np.float64) ** 2).mean()))
    sentence = (
        f"{place}: the noise is not {noise}: its {added.size:,} numbers have a mean square of {size:.4g}², where "
        f"{noise.deviation:.4g}² is expected"
    )
    return Tested(sentence, float(p_value), 1)


def _centre(noise: StatisticNoise, added: npt.NDArray[np.int64], place: str) -> Tested:
    """The sum of the noise, by a bound that both kinds keep: Bernstein's."""
    total, spread = abs(float(added.astype(np.float64).sum())), noise.deviation * math.sqrt(added.size)
    # E e^{tY} ≤ e^{t²σ²/2 / (1 - t·σ)} for both, so P(|ΣY| ≥ x) ≤ 2 exp(-x² / (2(nσ² + σx))).
    p_value = min(1.0, 2 * math.exp(-(total**2) / (2 * (spread**2 + noise.deviation * total))))
    sentence = (
        f"{place}: the noise is not centred: its {added.size:,} numbers sum to {total:.4g} beside 0, where about "
        f"{spread:.4g} is expected"
    )
    return Tested(sentence, p_value, 1)
