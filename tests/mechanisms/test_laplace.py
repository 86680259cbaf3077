"""The paper's Laplace perturbation (Lemmas 3.1 and 6.1): the promise, the shape, the draws, and OpenDP's opinion."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.mechanisms import TOTAL, Laplace, laplace
from tpsl.mechanisms.additive_noise import laplace_table
from tpsl.mechanisms.integer_table import Table

Bounds = Callable[[float | Fraction], tuple[Fraction, Fraction]]
CheckFrequencies = Callable[[np.ndarray, list[int]], None]

EPSILONS = [0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
CLASSES = [2, 3, 10, 100]


def worst_ratio(mechanism: Laplace) -> Fraction:
    """The largest ratio of the probabilities of one outcome under two labels, from the integers.

    With k coordinates two labels differ in two of them, with the rows the other way round; the coordinates are
    independent, so the ratios of the worst outcomes multiply.
    """
    other, own = mechanism.weights.tolist()
    up, down = largest_ratio(own, other), largest_ratio(other, own)
    return max(up, down) if mechanism.classes == 2 else up * down


def largest_ratio(numerators: list[int], denominators: list[int]) -> Fraction:
    a, b = 0, 1
    for c, d in zip(numerators, denominators, strict=True):
        if c * b > a * d:
            a, b = c, d
    return Fraction(a, b)


def assert_table_invariants(table: Table) -> None:
    other, own = table.weights.tolist()
    assert sum(other) == sum(own) == TOTAL
    assert min(other) >= 1
    assert own == other[::-1], "the rows are mirror images"
    assert {0.0, 1.0} <= set(table.values.tolist()), "the true values are on the grid"
    assert np.allclose(table.values + table.values[::-1], 1.0), "the grid is its own mirror image about one half"


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_exact_epsilon_holds_is_tight_and_is_what_was_asked_for(
    epsilon: float, classes: int, exp_bounds: Bounds
) -> None:
    mechanism = laplace(epsilon, classes)
    assert 0.999 * epsilon <= mechanism.epsilon <= epsilon
    assert mechanism.delta == 0.0
    assert_table_invariants(mechanism.table)
    worst = worst_ratio(mechanism)
    assert worst <= exp_bounds(mechanism.epsilon)[0], "the claimed ε does not hold"
    assert worst > exp_bounds(mechanism.epsilon * (1 - 1e-5))[1], "a smaller ε would hold, the claim is not tight"


@given(st.floats(0.001, 40.0))
@settings(max_examples=25)
def test_no_epsilon_is_exceeded(exp_bounds: Bounds, epsilon: float) -> None:
    mechanism = laplace(epsilon)
    assert 0.98 * epsilon <= mechanism.epsilon <= epsilon
    assert worst_ratio(mechanism) <= exp_bounds(mechanism.epsilon)[0]
    assert_table_invariants(mechanism.table)


@given(st.floats(0.001, 40.0))
@settings(max_examples=10)
def test_no_epsilon_is_exceeded_with_more_classes(exp_bounds: Bounds, epsilon: float) -> None:
    mechanism = laplace(epsilon, 5)
    assert mechanism.epsilon <= epsilon
    assert worst_ratio(mechanism) <= exp_bounds(mechanism.epsilon)[0]


@pytest.mark.parametrize("epsilon", [0.001, 40.0])
def test_the_ends_of_the_range_can_be_built(epsilon: float) -> None:
    assert laplace(epsilon).epsilon <= epsilon


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_mean_is_the_label_and_variance_that_of_the_discrete_laplace_distribution(epsilon: float) -> None:
    mechanism = laplace(epsilon)
    step = mechanism.values[1] - mechanism.values[0]
    q = math.exp(-epsilon * step)
    for y in (0, 1):
        assert mechanism.mean(y) == pytest.approx(y, abs=1e-9 / epsilon)
        assert mechanism.variance(y) == pytest.approx(step**2 * 2 * q / (1 - q) ** 2, rel=1e-6)
        assert mechanism.variance(y) == pytest.approx(2 / epsilon**2, rel=1e-4)


@pytest.mark.parametrize("classes", [3, 100])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_with_more_classes_each_coordinate_has_scale_two_over_epsilon(epsilon: float, classes: int) -> None:
    mechanism = laplace(epsilon, classes)
    for y in (0, classes - 1):
        unit_vector = np.eye(classes)[y]
        assert mechanism.mean(y) == pytest.approx(unit_vector, abs=1e-9 / epsilon)
        assert mechanism.variance(y) == pytest.approx(np.full(classes, 8 / epsilon**2), rel=1e-4)


@pytest.mark.parametrize("y", [0, 1])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_every_outcome_is_as_frequent_as_its_integer_says(
    epsilon: float, y: int, assert_frequencies: CheckFrequencies
) -> None:
    mechanism = laplace(epsilon)
    release = mechanism.release(np.full(10_000_000, y, dtype=np.uint8), rng=20 + y)
    counts = np.bincount(release.outcomes, minlength=mechanism.outcomes)
    assert_frequencies(counts, mechanism.weights[y].tolist())


def test_the_frequency_check_notices_one_wrong_outcome(assert_frequencies: CheckFrequencies) -> None:
    mechanism = laplace(1.0)
    drawn = mechanism.release(np.zeros(10_000_000, np.uint8), rng=3).outcomes
    weights = mechanism.weights[0].tolist()
    zero = mechanism.values.tolist().index(0.0)
    moved = weights[zero] // 30
    weights[zero], weights[zero + 1] = weights[zero] - moved, weights[zero + 1] + moved
    with pytest.raises(AssertionError, match=f"outcome ({zero}|{zero + 1}):"):
        assert_frequencies(np.bincount(drawn, minlength=mechanism.outcomes), weights)


def test_records_and_coordinates_get_noise_of_their_own() -> None:
    """One number for a whole batch, or one for all coordinates, is a mistake others made."""
    binary = laplace(1.0).release(np.zeros(100_000, np.uint8), rng=4).noisy
    vector = laplace(1.0, 3).release(np.zeros(100_000, np.uint8), rng=5).noisy
    bound = 5.0 / math.sqrt(100_000)
    for lag in (1, 2, 7):
        assert abs(np.corrcoef(binary[:-lag], binary[lag:])[0, 1]) < bound
    assert abs(np.corrcoef(vector.T) - np.eye(3)).max() < bound


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_noise_agrees_with_opendp(
    epsilon: float, assert_same_distribution: Callable[[np.ndarray, np.ndarray], None]
) -> None:
    """OpenDP's integer Laplace at the same scale in grid steps; its own noise cannot be seeded."""
    dp.enable_features("contrib")
    mechanism = laplace(epsilon)
    steps_per_unit = round(1 / (mechanism.values[1] - mechanism.values[0]))
    zero = mechanism.values.tolist().index(0.0)
    theirs = dp.m.make_laplace(
        dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64"), scale=steps_per_unit / epsilon
    )
    # Moving the label from 0 to 1 moves the noise by one unit: their price of that is our ε.
    assert theirs.map(steps_per_unit) == pytest.approx(mechanism.epsilon, rel=1e-6)

    draws = 40_000
    clamped = np.clip(np.array(theirs([0] * draws)), -zero, mechanism.outcomes - 1 - zero)
    ours = mechanism.release(np.zeros(25 * draws, np.uint8), rng=6).outcomes
    assert_same_distribution(
        np.bincount(ours, minlength=mechanism.outcomes), np.bincount(clamped + zero, minlength=mechanism.outcomes)
    )


def test_a_careless_table_would_break_the_promise(exp_bounds: Bounds) -> None:
    """Probabilities rounded to the nearest of 2^64 parts exceed ε in a tail of 30 scales; ours do not anywhere."""
    epsilon, unit = 0.1, 7
    steps = range(30 * unit * 10 + 1)
    at_zero = math.tanh(epsilon / unit / 2)
    careless = [round(TOTAL * at_zero * math.exp(-epsilon * j / unit)) for j in steps]
    assert max(Fraction(careless[j - unit], careless[j]) for j in steps[unit:]) > exp_bounds(epsilon * 1.0005)[1]
    assert laplace_table(epsilon).largest_ratio < exp_bounds(epsilon)[0]
