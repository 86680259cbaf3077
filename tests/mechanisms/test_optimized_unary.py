"""Optimised unary encoding (Wang et al.): the promise over all vectors of bits, the draws, the two-class form."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.mechanisms import TOTAL, OptimizedUnary, optimized_unary, randomized_response

Bounds = Callable[[float | Fraction], tuple[Fraction, Fraction]]
CheckFrequencies = Callable[[np.ndarray, list[int]], None]
CheckRates = Callable[[np.ndarray, int, np.ndarray], None]

EPSILONS = [0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]


def all_vectors(classes: int) -> list[tuple[int, ...]]:
    return list(itertools.product((0, 1), repeat=classes))


def probability(mechanism: OptimizedUnary, vector: tuple[int, ...], y: int) -> Fraction:
    other, own = mechanism.weights.tolist()
    factors = (Fraction((own if j == y else other)[bit], TOTAL) for j, bit in enumerate(vector))
    return math.prod(factors, start=Fraction(1))


@pytest.mark.parametrize("classes", [3, 5])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_over_all_vectors_epsilon_holds_is_tight_and_is_what_was_asked_for(
    epsilon: float, classes: int, exp_bounds: Bounds
) -> None:
    mechanism = optimized_unary(epsilon, classes)
    vectors = all_vectors(classes)
    table = [[probability(mechanism, vector, y) for vector in vectors] for y in (0, classes - 1)]
    assert [sum(row) for row in table] == [1, 1]
    worst = max(max(p / q, q / p) for p, q in zip(*table, strict=True))
    assert 0.999 * epsilon <= mechanism.epsilon <= epsilon
    assert mechanism.delta == 0.0
    assert worst <= exp_bounds(mechanism.epsilon)[0], "the claimed ε does not hold"
    assert worst > exp_bounds(mechanism.epsilon * (1 - 1e-9))[1], "a smaller ε would hold, the claim is not tight"


@given(st.floats(0.001, 40.0))
def test_no_epsilon_is_exceeded(exp_bounds: Bounds, epsilon: float) -> None:
    many, two = optimized_unary(epsilon, 50), optimized_unary(epsilon, 2)
    other, own = many.weights.tolist()
    assert own == [TOTAL // 2, TOTAL // 2]
    worst = max(Fraction(a, b) for a, b in zip(own, other, strict=True))
    worst *= max(Fraction(b, a) for a, b in zip(own, other, strict=True))
    assert worst <= exp_bounds(many.epsilon)[0]
    assert two.table.largest_ratio <= exp_bounds(two.epsilon)[0]
    for mechanism, ratio in ((many, worst), (two, two.table.largest_ratio)):
        assert ratio > exp_bounds(math.nextafter(mechanism.epsilon, 0.0))[1], "a smaller float would hold"
        assert 0.98 * epsilon <= mechanism.epsilon <= epsilon


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_two_classes_keep_all_that_the_two_bits_say(epsilon: float, exp_bounds: Bounds) -> None:
    """`t = (1 + b_1 - b_0) / 2`, summed over the four pairs of bits with the probabilities of the formula."""
    mechanism = optimized_unary(epsilon, 2)
    q = 1 / (math.exp(epsilon) + 1)
    for y in (0, 1):
        expected = dict.fromkeys((0.0, 0.5, 1.0), 0.0)
        for b_0, b_1 in itertools.product((0, 1), repeat=2):
            ones = [0.5 if j == y else q for j in (0, 1)]
            likely = math.prod(p if bit else 1 - p for p, bit in zip(ones, (b_0, b_1), strict=True))
            expected[(1 + b_1 - b_0) / 2] += likely
        assert mechanism.values.tolist() == list(expected)
        found = [w / TOTAL for w in mechanism.weights[y].tolist()]
        assert found == pytest.approx(list(expected.values()), rel=1e-9)
    assert mechanism.outcome_shape == ()
    assert mechanism.table.largest_ratio > exp_bounds(mechanism.epsilon * (1 - 1e-9))[1]


@pytest.mark.parametrize("classes", [3, 100])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_moments_are_those_of_the_formula(epsilon: float, classes: int) -> None:
    mechanism = optimized_unary(epsilon, classes)
    q = 1 / (math.exp(epsilon) + 1)
    for y in (0, classes - 1):
        expected = np.where(np.arange(classes) == y, 0.5, q)
        assert mechanism.mean(y) == pytest.approx(expected, rel=1e-9)
        assert mechanism.variance(y) == pytest.approx(expected * (1 - expected), rel=1e-9)


def test_likelihoods_are_the_probabilities_of_all_vectors() -> None:
    mechanism = optimized_unary(0.7, 4)
    vectors = all_vectors(4)
    expected = [[float(probability(mechanism, vector, y)) for y in range(4)] for vector in vectors]
    found = np.exp(mechanism.log_likelihood(np.array(vectors, dtype=np.uint8)))
    assert found == pytest.approx(np.array(expected), rel=1e-9)


def test_words_at_every_boundary_give_the_right_bit() -> None:
    """Coordinate j of a record takes the next word, from the row that says whether j is its class."""
    mechanism = optimized_unary(0.7, 5)
    boundaries = [mechanism.weights[row, 0].tolist() for row in (0, 1)]
    near = [word for boundary in boundaries for word in (boundary - 1, boundary, boundary + 1)]
    words = np.array([*near, 0, TOTAL - 1, 3, 2**63 + 5], dtype=np.uint64)
    rows = np.stack([np.roll(words, shift)[:5] for shift in range(10)])
    for y in range(5):
        drawn = mechanism._draw(np.full(10, y, dtype=np.uint8), rows.ravel())
        for i, j in np.ndindex(10, 5):
            assert drawn[i, j] == (int(rows[i, j]) >= boundaries[int(j == y)])


@pytest.mark.parametrize("y", [0, 2])
def test_every_vector_is_as_frequent_as_its_integers_say(y: int, assert_frequencies: CheckFrequencies) -> None:
    mechanism = optimized_unary(1.0, 4)
    drawn = mechanism.release(np.full(1_000_000, y), rng=70 + y).outcomes
    vectors = all_vectors(4)
    numbers = drawn @ np.array([8, 4, 2, 1])
    weights = [round(probability(mechanism, vector, y) * TOTAL) for vector in vectors]
    assert_frequencies(np.bincount(numbers, minlength=16), weights)


@pytest.mark.parametrize("y", [0, 1])
def test_every_outcome_of_two_classes_is_as_frequent_as_its_integer_says(
    y: int, assert_frequencies: CheckFrequencies
) -> None:
    mechanism = optimized_unary(1.0, 2)
    drawn = mechanism.release(np.full(1_000_000, y), rng=72 + y).outcomes
    assert_frequencies(np.bincount(drawn, minlength=3), mechanism.weights[y].tolist())


def test_with_a_hundred_classes_classes_and_pairs_are_as_frequent_as_they_should_be(assert_rates: CheckRates) -> None:
    mechanism = optimized_unary(1.0, 100)
    y, draws = 57, 200_000
    drawn = mechanism.release(np.full(draws, y), rng=74).outcomes.astype(np.float32)
    single = np.where(np.arange(100) == y, 0.5, mechanism.weights[0, 1] / TOTAL)
    expected = np.multiply.outer(single, single)
    np.fill_diagonal(expected, single)
    assert_rates((drawn.T @ drawn).astype(np.int64), draws, expected)


def test_a_bit_of_another_class_is_kept_as_well_as_by_binary_randomised_response() -> None:
    assert optimized_unary(1.3, 7).weights[0].tolist() == randomized_response(1.3).weights[0].tolist()
