"""The integer table: its invariants, and a sampler that is checked word by word rather than by statistics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.mechanisms import TOTAL, gaussian, laplace
from tpsl.mechanisms.integer_table import Table

InverseCDF = Callable[[Sequence[int], Sequence[int]], list[int]]


def table_of(*rows: Sequence[int], values: Sequence[float] | None = None) -> Table:
    grid = np.arange(len(rows[0]), dtype=np.float64) if values is None else np.array(values, dtype=np.float64)
    return Table(np.array(rows, dtype=np.uint64), grid)


@st.composite
def rows_of_weights(draw: st.DrawFn) -> list[list[int]]:
    """Two rows of positive integers with the sum 2^64, tiny weights and huge ones among them."""
    outcomes = draw(st.integers(2, 40))
    cuts = st.one_of(st.integers(1, TOTAL - 1), st.integers(1, 100), st.integers(TOTAL - 100, TOTAL - 1))
    rows = []
    for _ in range(2):
        boundaries = sorted(draw(st.sets(cuts, min_size=outcomes - 1, max_size=outcomes - 1)))
        rows.append([b - a for a, b in itertools.pairwise([0, *boundaries, TOTAL])])
    return rows


def words_around_boundaries(row: Sequence[int]) -> list[int]:
    """The last word of each outcome, the first of the next, and their neighbours; the smallest and the largest word."""
    near = {b + d for b in accumulate(row) for d in (-2, -1, 0, 1)} | {0, 1, TOTAL - 1}
    return sorted(word for word in near if 0 <= word < TOTAL)


@given(rows_of_weights())
def test_words_at_every_boundary_fall_on_the_right_side(inverse_cdf: InverseCDF, rows: list[list[int]]) -> None:
    table = table_of(*rows)
    for y, row in enumerate(rows):
        words = words_around_boundaries(row)
        drawn = table.sample(np.full(len(words), y), np.array(words, dtype=np.uint64))
        assert drawn.tolist() == inverse_cdf(row, words)


@pytest.mark.parametrize(
    "table",
    [
        laplace(1.0).table,
        laplace(0.1, 10).table,
        laplace(10.0).table,
        gaussian(0.05, 1e-5).table,
        gaussian(2.0, 1e-5).table,
    ],
    ids=["laplace 1", "laplace 0.1, 10 classes", "laplace 10", "gaussian 0.05", "gaussian 2"],
)
def test_real_tables_are_sampled_right_at_every_boundary(table: Table, inverse_cdf: InverseCDF) -> None:
    for y, row in enumerate(table.weights.tolist()):
        words = words_around_boundaries(row)
        # The sampler's guide has a cell for each 16-bit prefix; the ends of the cells are boundaries of their own.
        words += [edge for cell in range(1 << 16) for edge in (cell << 48, ((cell + 1) << 48) - 1)]
        drawn = table.sample(np.full(len(words), y), np.array(words, dtype=np.uint64))
        assert drawn.tolist() == inverse_cdf(row, words)


def test_each_label_is_drawn_from_its_own_row() -> None:
    table = table_of([TOTAL - 1, 1], [1, TOTAL - 1])
    words = np.array([0, 0, 1, 1, TOTAL - 2, TOTAL - 2, TOTAL - 1, TOTAL - 1], dtype=np.uint64)
    rows = np.array([0, 1] * 4)
    assert table.sample(rows, words).tolist() == [0, 0, 0, 1, 0, 1, 1, 1]
    assert table.sample(rows.astype(bool), words).tolist() == table.sample(rows, words).tolist()


@given(rows_of_weights())
def test_ratio_mean_and_variance_are_exact(rows: list[list[int]]) -> None:
    values = [o / 3 for o in range(len(rows[0]))]
    table = table_of(*rows, values=values)
    assert table.largest_ratio == max(max(Fraction(a, b), Fraction(b, a)) for a, b in zip(*rows, strict=True))
    for y, row in enumerate(rows):
        mean = sum(Fraction(v) * w for v, w in zip(values, row, strict=True)) / TOTAL
        square = sum(Fraction(v) ** 2 * w for v, w in zip(values, row, strict=True)) / TOTAL
        assert table.mean(y) == float(mean)
        assert table.variance(y) == float(square - mean**2)
        assert np.exp(table.log_weights[y]) == pytest.approx([w / TOTAL for w in row], rel=1e-12)


def test_a_row_that_does_not_sum_to_the_total_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row 1 of the table sums to 18446744073709551615, not to 2\^64"):
        table_of([TOTAL - 1, 1], [TOTAL - 2, 1])
    # 64-bit sums wrap around: twice 2^64 must not pass for 2^64.
    with pytest.raises(ValueError, match="row 0"):
        table_of([TOTAL - 1, TOTAL - 1, 2], [TOTAL - 2, 1, 1])


def test_an_impossible_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="weight 0"):
        table_of([TOTAL - 1, 1, 0], [TOTAL - 2, 1, 1])


def test_values_must_fit_the_outcomes() -> None:
    with pytest.raises(ValueError, match=r"2 outcomes has \(3,\) values"):
        table_of([TOTAL - 1, 1], [1, TOTAL - 1], values=[0, 1, 2])


def test_a_table_cannot_be_changed() -> None:
    table = table_of([TOTAL - 1, 1], [1, TOTAL - 1])
    for array in (table.weights, table.values):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_digest_notices_every_change() -> None:
    rows = [[TOTAL - 3, 1, 2], [1, 1, TOTAL - 2]]
    digests = {
        table_of(*rows).digest,
        table_of(*reversed(rows)).digest,
        table_of([TOTAL - 4, 2, 2], rows[1]).digest,
        table_of(*rows, values=[0, 1, 3]).digest,
        table_of(rows[0]).digest,
    }
    assert len(digests) == 5
    assert table_of(*rows).digest == table_of(*rows).digest
