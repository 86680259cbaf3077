"""The inner draw: the amplified δ against brute force, the cap under any composition, and what noise it costs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tpsl.mechanisms import (
    DEFAULT_BOUND,
    TOTAL,
    Cost,
    DiscreteGaussian,
    DiscreteLaplace,
    fit_noise,
    randomized_response,
)
from tpsl.mechanisms.amplification import (
    amplified,
    amplified_delta,
    fit_amplified_noise,
    profile_of,
    profile_of_noise,
)
from tpsl.mechanisms.exact import delta_of_rho, epsilon_of_rho, exp_upper

EPSILONS = [0.05, 0.2, 0.5, 1.0, 1.9, 2.5]


def divergence(p: list[Fraction], q: list[Fraction], alpha: Fraction) -> Fraction:
    return sum((max(Fraction(0), a - alpha * b) for a, b in zip(p, q, strict=True)), Fraction(0))


def outputs(classes: int, seed: int) -> list[list[Fraction]]:
    """An outer mechanism as it may be: what is put out under each value of the inner draw."""
    rows = np.random.default_rng(seed).integers(1, 1000, (classes, 12)) ** 3
    return [[Fraction(int(weight), int(row.sum())) for weight in row] for row in rows]


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("inner_epsilon", [0.5, 2.0, 4.0])
def test_the_amplified_delta_against_brute_force(classes: int, seed: int, inner_epsilon: float) -> None:
    """For two classes the expression is the divergence itself, for k a bound of it."""
    inner, rows = randomized_response(inner_epsilon, classes), outputs(classes, seed)
    weights = inner.weights.tolist()
    mixed = [
        [sum(Fraction(w, TOTAL) * row[o] for w, row in zip(weights[y], rows, strict=True)) for o in range(12)]
        for y in range(classes)
    ]
    pairs = [(y, z) for y in range(classes) for z in range(classes) if y != z]

    def profile(epsilon: float) -> Fraction:
        return max(divergence(rows[y], rows[z], exp_upper(epsilon)) for y, z in pairs)

    for epsilon in EPSILONS:
        exact = max(divergence(mixed[y], mixed[z], exp_upper(epsilon)) for y, z in pairs)
        stated = amplified_delta(inner, profile, epsilon)
        assert stated >= exact
        if classes == 2:
            assert float(stated) == pytest.approx(float(exact), abs=1e-12)


@pytest.mark.parametrize("rho", [Fraction(1, 100), Fraction(1, 2), Fraction(7)])
def test_delta_of_rho_inverts_epsilon_of_rho(rho: Fraction) -> None:
    for delta in (1e-3, 1e-6, 1e-12):
        epsilon = epsilon_of_rho(rho, delta)
        assert float(delta_of_rho(rho, epsilon)) == pytest.approx(delta, rel=1e-6)
    assert delta_of_rho(rho, 0.0) <= 1
    assert 0 < delta_of_rho(rho, 1e6) < 1e-300
    assert delta_of_rho(Fraction(0), 0.1) == 0


@pytest.mark.parametrize("releases", [1, 2, 10, 1000])
@pytest.mark.parametrize("epsilon", [0.1, 3.0, 20.0])
def test_any_composition_states_at_most_the_cap_and_less_than_without(releases: int, epsilon: float) -> None:
    inner = randomized_response(4.0)
    noise = fit_noise("gaussian", epsilon, 1e-6, DEFAULT_BOUND, 2)
    cost = amplified(inner, profile_of_noise(noise, DEFAULT_BOUND, 2, releases), releases * 1e-6)
    assert cost.epsilon <= inner.epsilon <= 4.0
    assert cost.epsilon <= epsilon_of_rho(releases * (noise.cost(DEFAULT_BOUND, 2).rho or Fraction(0)), releases * 1e-6)
    assert amplified(inner, lambda _: Fraction(1), 1e-6).epsilon == pytest.approx(4.0)


def test_pure_epsilon_is_amplified_to_its_closed_form() -> None:
    """`ln((keep e^ε + flip) / (flip e^ε + keep))`."""
    inner = randomized_response(4.0)
    for epsilon in (0.1, 1.0, 3.0):
        most = math.exp(epsilon)
        exact = math.log((inner.keep * most + inner.flip) / (inner.flip * most + inner.keep))
        assert amplified(inner, profile_of([Cost(epsilon)]), 1e-300).epsilon == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "inner_epsilon", "deviation"),
    [(0.1, 2, 36.28), (0.1, 4, 36.30), (0.5, 2, 7.93), (0.5, 4, 8.04), (1.0, 2, 3.93), (1.0, 4, 4.20)],
)
def test_the_inner_draw_costs_no_noise(epsilon: float, inner_epsilon: float, deviation: float) -> None:
    """σ for each unit of sensitivity, after the sum has been debiased; without an inner draw 36.30, 8.06 and 4.22."""
    inner = randomized_response(inner_epsilon)
    noise = fit_amplified_noise("gaussian", epsilon, 1e-6, inner, DEFAULT_BOUND)
    debiased = noise.deviation / DEFAULT_BOUND / (1 - 2 * inner.flip / TOTAL)
    assert debiased == pytest.approx(deviation, abs=0.006)
    assert amplified(inner, profile_of_noise(noise, DEFAULT_BOUND, 2), 1e-6).epsilon <= epsilon


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_noise_found_is_the_least(kind: str, classes: int) -> None:
    inner, epsilon, delta = randomized_response(3.0, classes), 0.7, 1e-5
    noise = fit_amplified_noise(kind, epsilon, delta, inner, 1 << 10)
    less = (
        DiscreteGaussian(noise.variance - 1, delta)
        if isinstance(noise, DiscreteGaussian)
        else DiscreteLaplace(noise.scale - 1)
        if isinstance(noise, DiscreteLaplace)
        else pytest.fail("another noise")
    )
    assert amplified_delta(inner, profile_of_noise(noise, 1 << 10, classes), epsilon) <= delta
    assert amplified_delta(inner, profile_of_noise(less, 1 << 10, classes), epsilon) > delta


def test_from_the_cap_on_the_least_noise_is_enough() -> None:
    inner = randomized_response(1.0)
    assert fit_amplified_noise("gaussian", 1.0, 1e-6, inner, 1 << 10) == DiscreteGaussian(1, 1e-6)


def test_a_seeded_attack_on_the_sum_gains_no_more_than_is_stated() -> None:
    """One record's cell at ε = 1: the best test of its label, on 200,000 draws of inner draw and noise."""
    inner = randomized_response(2.0)
    noise = fit_amplified_noise("gaussian", 1.0, 1e-6, inner, 1 << 6)
    generator, count = np.random.default_rng(5), 200_000
    sums = {
        y: (inner.release(np.full(count, y), 11 + y).outcomes.astype(int) << 6)
        + np.rint(generator.normal(0, noise.deviation, count))
        for y in (0, 1)
    }
    for threshold in (0, 32, 64, 96):
        hits, alarms = ((sums[y] > threshold).sum() for y in (1, 0))
        least = stats.beta.ppf(5e-7, hits, count - hits + 1)
        most = stats.beta.ppf(1 - 5e-7, alarms + 1, count - alarms)
        assert math.log(least / most) <= 1.0
