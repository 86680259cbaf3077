"""Gaussian noise: its (ε, δ) from the integers against the analytic Gaussian mechanism (Balle and Wang 2018)."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize, stats

from tpsl.mechanisms import TOTAL, Gaussian, gaussian
from tpsl.mechanisms.additive_noise import delta_of_two_coordinates, most_telling_first

Bounds = Callable[[float | Fraction], tuple[Fraction, Fraction]]

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
def test_every_outcome_is_as_frequent_as_its_integer_says(
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
