"""Tools that the tests of this room share; they use nothing of the code under test."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from scipy import stats

ALPHA = 1e-6
TOTAL = 2**64


@pytest.fixture(scope="session")
def exp_bounds() -> Callable[[float | Fraction], tuple[Fraction, Fraction]]:
    """Rationals below and above e^x for 0 ≤ x ≤ 80, closer than 1e-70 relative: the Taylor series in integers."""

    def bounds(x: float | Fraction) -> tuple[Fraction, Fraction]:
        numerator, denominator = Fraction(x).as_integer_ratio()
        one = 1 << 400
        term = total = one
        n = 0
        while term or n < 2 * x + 2:
            n += 1
            term = term * numerator // (denominator * n)
            total += term
        # What was cut off: less than one unit in each of n terms, which then grew by at most e^80 < 2^116, and the
        # terms after the last, which are less than half of their predecessor each.
        return Fraction(total, one), Fraction(total + (n << 116) + 1, one)

    return bounds


@pytest.fixture(scope="session")
def inverse_cdf() -> Callable[[Sequence[int], Sequence[int]], list[int]]:
    """The outcomes of words by definition: the first whose cumulative weight exceeds the word, in Python integers."""

    def outcomes(row: Sequence[int], words: Sequence[int]) -> list[int]:
        boundaries = list(accumulate(row))
        return [bisect_right(boundaries, word) for word in words]

    return outcomes


@pytest.fixture(scope="session")
def assert_frequencies() -> Callable[[np.ndarray, Sequence[int]], None]:
    """Fail if counts of outcomes disagree with weights out of 2^64, at a false-alarm rate of 1e-6 for the call.

    Half of the rate goes to a chi-square test (many small deviations together), half to an exact binomial test of
    every single outcome (one that is wrong by itself, however rare).
    """

    def check(counts: np.ndarray, weights: Sequence[int]) -> None:
        draws = int(counts.sum())
        assert len(counts) == len(weights)
        probability = np.array([w / TOTAL for w in weights])
        low = stats.binom.cdf(counts, draws, probability)
        high = stats.binom.sf(counts - 1, draws, probability)
        p_values = np.minimum(1.0, 2 * np.minimum(low, high))
        worst = int(p_values.argmin())
        assert p_values[worst] > ALPHA / 2 / len(weights), (
            f"outcome {worst}: {counts[worst]} of {draws} draws, expected {draws * probability[worst]:.1f}"
        )
        expected, observed = pooled(draws * probability, counts)
        statistic = float(((observed - expected) ** 2 / expected).sum())
        assert stats.chi2.sf(statistic, len(expected) - 1) > ALPHA / 2, (
            f"chi-square {statistic} on {len(expected)} cells"
        )

    return check


@pytest.fixture(scope="session")
def assert_rates() -> Callable[[np.ndarray, int, np.ndarray], None]:
    """Fail if one of many events is rarer or more frequent than its probability says (exact binomial, 1e-6 in all).

    The events may overlap: that a class is in a set, that two classes are.
    """

    def check(counts: np.ndarray, draws: int, probabilities: np.ndarray) -> None:
        assert counts.shape == probabilities.shape
        low = stats.binom.cdf(counts, draws, probabilities)
        high = stats.binom.sf(counts - 1, draws, probabilities)
        p_values = np.minimum(1.0, 2 * np.minimum(low, high))
        worst = np.unravel_index(p_values.argmin(), p_values.shape)
        assert p_values[worst] > ALPHA / counts.size, (
            f"event {tuple(map(int, worst))}: {counts[worst]} of {draws}, expected {draws * probabilities[worst]:.1f}"
        )

    return check


@pytest.fixture(scope="session")
def assert_same_distribution() -> Callable[[np.ndarray, np.ndarray], None]:
    """Fail if two lists of counts over the same outcomes come from different distributions (chi-square, 1e-6)."""

    def check(ours: np.ndarray, theirs: np.ndarray) -> None:
        share = theirs.sum() / (ours.sum() + theirs.sum())
        # Neighbouring outcomes are put together until both sides expect at least ten.
        joint = (ours + theirs) * min(share, 1 - share)
        _, grouped_ours = pooled(joint, ours)
        _, grouped_theirs = pooled(joint, theirs)
        result = stats.chi2_contingency(np.stack([grouped_ours, grouped_theirs]), correction=False)
        assert result.pvalue > ALPHA, f"chi-square {result.statistic} on {len(grouped_ours)} cells"

    return check


def pooled(expected: np.ndarray, observed: np.ndarray, at_least: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
    """Put neighbouring cells together until each expects at least ten, as the chi-square approximation needs."""
    cells: list[list[float]] = [[0.0, 0.0]]
    for e, o in zip(expected.tolist(), observed.tolist(), strict=True):
        if cells[-1][0] >= at_least:
            cells.append([0.0, 0.0])
        cells[-1][0] += e
        cells[-1][1] += o
    if cells[-1][0] < at_least and len(cells) > 1:
        e, o = cells.pop()
        cells[-1][0] += e
        cells[-1][1] += o
    return tuple(np.array(cells).T)  # type: ignore[return-value]
