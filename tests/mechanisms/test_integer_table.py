"""Tables of integers and the mechanism of a user's table."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.attacks.auc_prediction import predicted_auc
from tpsl.mechanisms import (
    TOTAL,
    TableMechanism,
    from_spec,
    gaussian,
    integer_weights,
    laplace,
    randomized_response,
    table_mechanism,
)
from tpsl.mechanisms.integer_table import MAX_CLASSES, MAX_INTEGERS, Table

# The integer table: its invariants, and a sampler that is checked word by word rather than by statistics.

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


# A table of a user's own: what it guarantees, what it refuses, and that all its figures follow from the integers.

THIRD = TOTAL // 3


def ordinal(epsilon: float, classes: int) -> list[list[int]]:
    """The truncated geometric mechanism (Ghosh, Roughgarden, Sundararajan 2009): near classes rather than far ones."""
    a, last = math.exp(-epsilon / (classes - 1)), classes - 1
    rows = [
        [a ** abs(o - y) * (1 if o in (0, last) else 1 - a) / (1 + a) for o in range(classes)] for y in range(classes)
    ]
    return integer_weights(rows, epsilon)


ORDINAL = table_mechanism("ordinal", ordinal(2.0, 5))
TWO = table_mechanism("two", integer_weights([[0.5, 0.3, 0.2], [0.25, 0.35, 0.4]], 1.0))


@settings(max_examples=60)
@given(
    st.integers(2, 5).flatmap(
        lambda k: st.lists(st.lists(st.floats(0.001, 1.0), min_size=k, max_size=k), min_size=2, max_size=4)
    )
)
def test_rounding_keeps_the_epsilon_that_the_probabilities_have(given: list[list[float]]) -> None:
    rows = [[Fraction(p) / sum(map(Fraction, row)) for p in row] for row in given]
    largest = max(max(column) / min(column) for column in zip(*rows, strict=True))
    epsilon = max(0.001, math.nextafter(math.log(largest), math.inf))
    table = integer_weights(rows, epsilon)
    assert table_mechanism("mine", table).epsilon <= epsilon
    for weights, row in zip(table, rows, strict=True):
        assert sum(weights) == TOTAL
        assert [w / TOTAL for w in weights] == pytest.approx([float(p) for p in row], abs=1e-9)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([[0.5, 0.5], [0.9, 0.2]], "row 1 sum to 1.1, not to 1"),
        ([[0.5, 0.5], [1.0, 0.0]], "outcome 1 has probabilities from 0 to 0.5: their ratio is above e.ε for ε = 1"),
        ([[0.8, 0.2], [0.2, 0.8]], "outcome 0 has probabilities from 0.2 to 0.8"),
        ([[1 - 1e-30, 1e-30], [1 - 1e-30, 1e-30]], "a probability below 2.-64 cannot be held"),
    ],
)
def test_probabilities_that_break_the_promise_are_refused(rows: list[list[float]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        integer_weights([[Fraction(p) for p in row] for row in rows], 1.0)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], "has 0 rows of 0 integers"),
        ([[TOTAL]], "has 1 rows of 1 integers"),
        ([[THIRD, TOTAL - THIRD], [THIRD, THIRD]], "mechanism 'mine': row 1 of the table sums to"),
        ([[THIRD, TOTAL - THIRD], [THIRD, THIRD, 1]], "rows of 2 and of 3 integers"),
        ([[0, TOTAL], [THIRD, TOTAL - THIRD]], "has 0 in row 0, which is no integer above 0"),
        ([[-1, TOTAL + 1], [THIRD, TOTAL - THIRD]], "has -1 in row 0"),
        ([[0.5, 0.5], [0.5, 0.5]], "has 0.5 in row 0"),
        ([[True, TOTAL - 1], [THIRD, TOTAL - THIRD]], "has True in row 0"),
        ([[TOTAL // 2] * 2] * (MAX_CLASSES + 1), "257 rows"),
        ([[TOTAL >> 14] * MAX_INTEGERS] * 2, "16,384 integers in all"),
    ],
)
def test_what_is_no_table_is_refused(rows: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        table_mechanism("mine", rows)


@pytest.mark.parametrize("name", ["", "Mine", "a b", "<b>", "x" * 65])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(ValueError, match="small letters, digits and '_'"):
        table_mechanism(name, TWO.weights.tolist())


def test_epsilon_is_that_of_the_integers_and_rounded_up() -> None:
    assert Fraction(math.exp(TWO.epsilon)) >= TWO.table.largest_ratio * Fraction(1 - 1e-15)
    assert TWO.epsilon == pytest.approx(math.log(0.4 / 0.2), abs=1e-12)
    assert 2.0 - 1e-12 < ORDINAL.epsilon <= 2.0
    assert str(ORDINAL) == "ordinal (ε = 2, 5 classes)"


@pytest.mark.parametrize("mechanism", [TWO, ORDINAL], ids=str)
def test_the_noisy_label_is_an_unbiased_estimate_of_the_label(mechanism: TableMechanism) -> None:
    k = mechanism.classes
    for y in range(k):
        assert mechanism.mean(y) == pytest.approx(float(y) if k == 2 else np.eye(k)[y], abs=1e-9)
        noisy = mechanism.release(np.full(200_000, y), rng=y).noisy
        spread = np.sqrt(np.asarray(mechanism.variance(y)))
        assert np.all(np.abs(noisy.mean(axis=0) - mechanism.mean(y)) < 5.5 * spread / math.sqrt(200_000))
        assert np.allclose(noisy.std(axis=0), spread, rtol=0.02)
    if k > 2:
        assert mechanism.values.sum(axis=1) == pytest.approx(1.0)


def test_outcomes_have_the_frequencies_of_the_table() -> None:
    for y in range(5):
        outcomes = ORDINAL.release(np.full(100_000, y), rng=10 + y).outcomes
        expected = ORDINAL.table.probabilities[y] * 100_000
        assert np.all(np.abs(np.bincount(outcomes, minlength=5) - expected) < 5.5 * np.sqrt(expected))
        assert np.exp(ORDINAL.log_likelihood(np.arange(5)))[:, y] == pytest.approx(ORDINAL.table.probabilities[y])


def test_rows_that_say_the_same_leave_the_posterior_alone() -> None:
    grouped = table_mechanism("grouped", integer_weights([[0.6, 0.4], [0.6, 0.4], [0.4, 0.6]], 1.0))
    assert grouped.log_likelihood([0, 1]).shape == (2, 3)
    with pytest.raises(ValueError, match=r"'grouped' has no unbiased estimate .* use the estimator 'posterior'"):
        grouped.noisy([0, 1])


def test_a_spec_holds_the_integers_and_needs_no_registered_code() -> None:
    rebuilt = from_spec(json.loads(json.dumps(ORDINAL.spec())))
    assert isinstance(rebuilt, TableMechanism)
    assert (rebuilt.name, rebuilt.digest, rebuilt.epsilon) == ("ordinal", ORDINAL.digest, ORDINAL.epsilon)
    assert rebuilt.weights.tolist() == ORDINAL.weights.tolist()
    other = ORDINAL.spec() | {"mechanism": "other"}
    assert from_spec(other).digest != ORDINAL.digest


@pytest.mark.parametrize(
    "spec",
    [
        {"mechanism": "laplace", "weights": TWO.weights.tolist()},
        {"mechanism": "ordinal", "weights": TWO.weights.tolist(), "epsilon": 0.1},
        {"mechanism": "ordinal"},
        {"mechanism": "ordinal", "weights": [[1, 2], [3, 4]]},
        {"mechanism": "ordinal", "weights": ["ab", "cd"]},
        {"mechanism": "<script>", "weights": TWO.weights.tolist()},
    ],
)
def test_a_spec_that_is_no_table_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_spec(spec)


def test_the_predicted_aucs_of_a_symmetric_table_are_those_of_the_formula() -> None:
    response = randomized_response(1.0, 4)
    assert vars(predicted_auc(table_mechanism("same", response.weights.tolist()))) == pytest.approx(
        vars(predicted_auc(response)), abs=1e-12
    )


def test_the_predicted_aucs_are_those_of_all_pairs_of_classes() -> None:
    best, likelier = [], []
    for a, b in combinations(range(5), 2):
        p, q = ORDINAL.table.probabilities[a], ORDINAL.table.probabilities[b]
        order = [(float(q[o] / p[o]), o) for o in range(5)]
        best.append(sum(q[o] * p[i] * (1.0 if r > s else 0.5 if r == s else 0.0) for r, o in order for s, i in order))
        likelier.append(0.5 + 0.25 * float(np.abs(p - q).sum()))
    predicted = predicted_auc(ORDINAL)
    assert predicted.best_score == pytest.approx(np.mean(best), abs=1e-9)
    assert predicted.likelier_class == predicted.shortest_distance == pytest.approx(np.mean(likelier), abs=1e-12)
    assert 0.5 < predicted.likelier_class < predicted.best_score < predicted.ceiling
