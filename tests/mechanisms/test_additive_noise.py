"""Laplace and Gaussian noise on the label: tables against the mathematics, samples against the tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from tpsl.mechanisms import TOTAL, Gaussian, Laplace, Mechanism, gaussian, laplace
from tpsl.mechanisms.additive_noise import (
    delta_of_two_coordinates,
    grid_values,
    laplace_table,
    mirrored,
    most_telling_first,
)
from tpsl.mechanisms.integer_table import Table

# What Laplace and Gaussian noise share: the noisy label, its likelihood, a coordinate for each of k classes.

BINARY = [laplace(0.5), gaussian(1.5, 1e-5)]
MANY = [laplace(2.0, 4), gaussian(0.7, 1e-5, 4)]


def name(mechanism: Mechanism) -> str:
    return str(mechanism)


@pytest.mark.parametrize("mechanism", BINARY, ids=name)
def test_binary_noisy_labels_are_grid_values(mechanism: Mechanism) -> None:
    release = mechanism.release([0, 1, 1, 0], rng=1)
    assert release.outcomes.shape == release.noisy.shape == (4,)
    assert release.noisy.tolist() == [mechanism.values[o] for o in release.outcomes]


@pytest.mark.parametrize("mechanism", MANY, ids=name)
def test_with_more_classes_a_noisy_label_is_a_vector(mechanism: Mechanism) -> None:
    release = mechanism.release([3, 0, 1], rng=1)
    assert release.outcomes.shape == release.noisy.shape == (3, 4)
    assert np.array_equal(release.noisy, mechanism.values[release.outcomes])
    assert mechanism.outcome_shape == (4,)


@pytest.mark.parametrize("mechanism", BINARY, ids=name)
def test_binary_likelihoods_are_those_of_the_table(mechanism: Mechanism) -> None:
    outcomes = np.arange(mechanism.outcomes)
    expected = np.array([[w / TOTAL for w in row] for row in mechanism.weights.tolist()]).T
    assert np.exp(mechanism.log_likelihood(outcomes)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mechanism", MANY, ids=name)
def test_likelihood_of_a_vector_is_the_product_over_its_coordinates(mechanism: Mechanism) -> None:
    outcomes = mechanism.release([0, 1, 2, 3, 3], rng=2).outcomes
    other, own = mechanism.weights.tolist()
    for record, logs in zip(outcomes.tolist(), mechanism.log_likelihood(outcomes), strict=True):
        for y in range(4):
            product = 1.0
            for coordinate, o in enumerate(record):
                product *= (own if coordinate == y else other)[o] / TOTAL
            assert np.exp(logs[y]) == pytest.approx(product, rel=1e-9)


@pytest.mark.parametrize("mechanism", MANY, ids=name)
def test_a_vector_is_drawn_from_own_and_other_rows(mechanism: Mechanism) -> None:
    """Word by word: coordinate j of a record takes the next word, from the row that says whether j is its class."""
    labels = np.array([2, 0, 3])
    words = np.random.default_rng(0).integers(0, TOTAL, 12, dtype=np.uint64)
    drawn = mechanism._draw(labels, words)
    for i, j in np.ndindex(3, 4):
        row = np.cumsum(mechanism.weights[int(labels[i] == j)][:-1])
        assert drawn[i, j] == np.searchsorted(row, words[4 * i + j], side="right")


@pytest.mark.parametrize("mechanism", BINARY, ids=name)
def test_moments_of_a_release_are_those_of_the_table(mechanism: Mechanism) -> None:
    n = 1_000_000
    for y in (0, 1):
        noisy = mechanism.release(np.full(n, y), rng=7 + y).noisy
        deviation = np.sqrt(mechanism.variance(y) / n)
        assert abs(noisy.mean() - mechanism.mean(y)) < 5 * deviation
        # The variance of (t - mean)² is at most 5 variances² for Laplace noise, 2 for Gaussian.
        assert abs(noisy.var() / mechanism.variance(y) - 1) < 5 * np.sqrt(5 / n)


def test_grid_contains_both_labels_and_is_symmetric_about_one_half() -> None:
    grid = grid_values(4, 6)
    assert grid.tolist() == [j / 4 for j in range(-6, 11)]


def test_mirrored_rows() -> None:
    table = mirrored([TOTAL - 3, 2, 1], np.array([0.0, 0.5, 1.0]))
    assert table.weights.tolist() == [[TOTAL - 3, 2, 1], [1, 2, TOTAL - 3]]


# The paper's Laplace perturbation (Lemmas 3.1 and 6.1): the promise, the shape, the draws, and OpenDP's opinion.

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


# Gaussian noise: its (ε, δ) from the integers against the analytic Gaussian mechanism (Balle and Wang 2018).

SIGMAS = [0.5, 1.0, 2.0, 10.0]
DELTAS = [1e-2, 1e-5, 1e-8]


def analytic_epsilon(sigma: float, delta: float, sensitivity: float) -> float:
    """Theorem 8 of Balle and Wang: `Φ(Δ/2σ - εσ/Δ) - e^ε Φ(-Δ/2σ - εσ/Δ) = δ`, solved for ε."""

    def excess(epsilon: float) -> float:
        a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
        return float(stats.norm.cdf(a - b) - math.exp(epsilon + stats.norm.logcdf(-a - b)) - delta)

    return float(optimize.brentq(excess, 0.0, 100.0, xtol=1e-13))


def delta_of_weights(mechanism: Gaussian, exp_epsilon: Fraction) -> Fraction:
    """`Σ_o max(0, P(o|y) - e^ε P(o|y'))` by its definition, over all outcomes of one draw; the worse direction."""
    rows = mechanism.weights.tolist()
    sums = [
        sum((max(Fraction(0), p - exp_epsilon * q) for p, q in zip(a, b, strict=True)), Fraction(0))
        for a, b in (rows, reversed(rows))
    ]
    return max(sums) / TOTAL


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_binary_epsilon_is_the_analytic_one(sigma: float, delta: float) -> None:
    mechanism = gaussian(sigma, delta)
    assert mechanism.delta == delta
    assert mechanism.epsilon == pytest.approx(analytic_epsilon(sigma, delta, 1.0), rel=1e-3)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_with_more_classes_the_sensitivity_is_the_square_root_of_two(sigma: float, delta: float) -> None:
    assert gaussian(sigma, delta, 3).epsilon == pytest.approx(analytic_epsilon(sigma, delta, math.sqrt(2)), rel=1e-3)


def test_epsilon_does_not_depend_on_how_many_classes_more_than_two() -> None:
    assert gaussian(1.0, 1e-5, 3).epsilon == gaussian(1.0, 1e-5, 50).epsilon


@pytest.mark.parametrize("sigma", [0.05, *SIGMAS])
def test_binary_claim_holds_and_is_tight_by_the_definition(sigma: float, exp_bounds: Bounds) -> None:
    """Also where σ is so small that the integers, not the normal distribution, decide."""
    mechanism = gaussian(sigma, 1e-5)
    assert delta_of_weights(mechanism, exp_bounds(mechanism.epsilon)[0]) <= Fraction(1e-5)
    assert delta_of_weights(mechanism, exp_bounds(mechanism.epsilon * (1 - 1e-6))[1]) > Fraction(1e-5)


def coarse_weights(mechanism: Gaussian, groups: int) -> list[tuple[int, int]]:
    """The rows (own, other) of the table with neighbouring outcomes put together, so that all pairs can be listed."""
    edges = np.linspace(0, mechanism.outcomes, groups + 1).astype(int)
    other, own = mechanism.weights.tolist()
    return [(sum(own[a:b]), sum(other[a:b])) for a, b in pairwise(edges)]


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0])
def test_delta_of_two_coordinates_is_the_double_sum(epsilon: float, exp_bounds: Bounds) -> None:
    outcomes = coarse_weights(gaussian(1.0, 1e-5), 60)
    outcomes.sort(key=lambda weights: Fraction(*weights), reverse=True)
    factor = exp_bounds(epsilon)[0]
    direct = sum(
        max(Fraction(0), own_a * other_b - factor * other_a * own_b)
        for own_a, other_a in outcomes
        for own_b, other_b in outcomes
    )
    assert delta_of_two_coordinates(outcomes, factor) == direct / TOTAL**2


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_claim_for_more_classes_holds_and_is_tight(sigma: float, exp_bounds: Bounds) -> None:
    mechanism = gaussian(sigma, 1e-5, 4)
    outcomes = most_telling_first(mechanism.table)
    assert delta_of_two_coordinates(outcomes, exp_bounds(mechanism.epsilon)[0]) <= Fraction(1e-5)
    assert delta_of_two_coordinates(outcomes, exp_bounds(mechanism.epsilon * (1 - 1e-6))[1]) > Fraction(1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_epsilon_falls_with_sigma_and_with_delta(classes: int) -> None:
    by_sigma = [gaussian(sigma, 1e-5, classes).epsilon for sigma in (0.3, 0.5, 1.0, 1.1, 3.0, 30.0)]
    by_delta = [gaussian(1.0, delta, classes).epsilon for delta in (1e-9, 1e-7, 1e-5, 1.1e-5, 1e-3, 0.1)]
    for epsilons in (by_sigma, by_delta):
        assert all(more > less > 0 for more, less in pairwise(epsilons))


def test_a_delta_that_pays_for_everything_needs_no_epsilon() -> None:
    """At σ = 10 the two normal distributions differ by less than 0.04 in total."""
    assert gaussian(10.0, 0.5).epsilon < 1e-40
    assert gaussian(10.0, 0.5, 3).epsilon < 1e-8


@pytest.mark.parametrize("sigma", [0.05, *SIGMAS, 100.0])
def test_rows_mean_and_variance(sigma: float) -> None:
    mechanism = gaussian(sigma, 1e-5)
    other, own = mechanism.weights.tolist()
    assert sum(other) == sum(own) == TOTAL
    assert own == other[::-1]
    assert min(own) >= 1
    for y in (0, 1):
        assert mechanism.mean(y) == pytest.approx(y, abs=1e-9 * sigma)
        assert mechanism.variance(y) == pytest.approx(sigma**2, rel=1e-6)


def test_with_more_classes_mean_is_the_unit_vector() -> None:
    mechanism = gaussian(2.0, 1e-5, 5)
    assert mechanism.mean(3) == pytest.approx(np.eye(5)[3], abs=1e-8)
    assert mechanism.variance(3) == pytest.approx(np.full(5, 4.0), rel=1e-6)


@pytest.mark.parametrize("y", [0, 1])
def test_every_gaussian_outcome_is_as_frequent_as_its_integer_says(
    y: int, assert_frequencies: Callable[[np.ndarray, list[int]], None]
) -> None:
    mechanism = gaussian(1.0, 1e-5)
    release = mechanism.release(np.full(10_000_000, y, dtype=np.uint8), rng=50 + y)
    assert_frequencies(np.bincount(release.outcomes, minlength=mechanism.outcomes), mechanism.weights[y].tolist())


def test_draws_are_normal() -> None:
    """The distribution function of the draws, not only of the table, at the middle of each step of the grid."""
    mechanism = gaussian(2.0, 1e-5)
    counts = np.bincount(mechanism.release(np.zeros(1_000_000, np.uint8), rng=9).outcomes, minlength=mechanism.outcomes)
    half_step = (mechanism.values[1] - mechanism.values[0]) / 2
    distance = np.abs(np.cumsum(counts) / counts.sum() - stats.norm.cdf(mechanism.values + half_step, scale=2.0)).max()
    assert stats.kstwobign.sf(distance * math.sqrt(counts.sum())) > 1e-6


@pytest.mark.parametrize("sigma", [0, -1.0, math.nan, math.inf, 0.01, 1000.5, True, "1", None])
def test_bad_sigma_is_named(sigma: object) -> None:
    with pytest.raises(ValueError, match="sigma") as caught:
        gaussian(sigma, 1e-5)  # type: ignore[arg-type]
    assert repr(sigma) in str(caught.value)


@pytest.mark.parametrize("delta", [0, -1e-5, math.nan, math.inf, 0.6, 1, False, "1e-5", None])
def test_bad_delta_is_named(delta: object) -> None:
    with pytest.raises(ValueError, match="delta") as caught:
        gaussian(1.0, delta)  # type: ignore[arg-type]
    assert repr(delta) in str(caught.value)
