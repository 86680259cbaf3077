"""The (ε, δ) of Gaussian noise: the formula against scipy, and sums over integers that never exceed the bound."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tpsl.mechanisms.exact import LEAST_VARIANCE, delta_of_gaussian, epsilon_of_gaussian

EPSILONS = [0.0, 0.1, 1.0, 4.0]


def continuous(epsilon: float, mu: float) -> float:
    """Balle and Wang's δ in floats."""
    return float(stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)))


def over_integers(epsilon: float, moved: tuple[int, ...], sigma: float) -> float:
    """`Σ max(0, P(y) - e^ε P(y - moved))` over integer vectors, the definition."""
    axes = [np.arange(-math.ceil(9 * sigma) - d, math.ceil(9 * sigma) + d + 1, dtype=np.float64) for d in moved]
    total = sum(y**2 for y in np.meshgrid(*axes, indexing="ij"))
    shifted = sum((y - d) ** 2 for y, d in zip(np.meshgrid(*axes, indexing="ij"), moved, strict=True))
    own, other = (np.exp(-squares / (2 * sigma**2)) for squares in (total, shifted))
    return float(np.maximum(0, own - math.exp(epsilon) * other).sum() / own.sum())


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("share", [0.02, 0.2, 1.0, 3.0])
def test_the_bound_is_the_formula_and_the_price_of_integers(epsilon: float, share: float) -> None:
    sigma = 10**5
    found = float(delta_of_gaussian(epsilon, round((share * sigma) ** 2), sigma**2))
    assert found == pytest.approx(continuous(epsilon, share) + (1 + share**2) / sigma**2, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("moved", [1, 41, 2048, 5000])
def test_sums_over_integers_do_not_exceed_the_bound(epsilon: float, moved: int) -> None:
    exact = over_integers(epsilon, (moved,), math.sqrt(LEAST_VARIANCE))
    bound = float(delta_of_gaussian(epsilon, moved**2, LEAST_VARIANCE))
    assert exact <= bound + 1e-15
    assert bound <= exact + 3 * (1 + moved**2 / LEAST_VARIANCE) / LEAST_VARIANCE


@pytest.mark.parametrize("moved", [(1, 0), (3, 4), (7, 1), (5, 5), (20, 3)])
@pytest.mark.parametrize("sigma", [2.0, 5.0, 20.0])
def test_the_price_of_integers_is_enough_in_two_dimensions_and_far_below_the_least_variance(
    moved: tuple[int, int], sigma: float
) -> None:
    mu = math.hypot(*moved) / sigma
    for epsilon in EPSILONS:
        assert over_integers(epsilon, moved, sigma) <= continuous(epsilon, mu) + (1 + mu**2) / sigma**2 + 1e-13


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-2])
def test_epsilon_is_the_smallest_float_that_keeps_delta(delta: float) -> None:
    moved, variance = 1 << 30, 10**10
    epsilon = epsilon_of_gaussian(delta, moved, variance)
    assert delta_of_gaussian(epsilon, moved, variance) <= Fraction(delta)
    assert delta_of_gaussian(math.nextafter(epsilon, 0), moved, variance) > Fraction(delta)


def test_where_nothing_is_proved_nothing_is_claimed() -> None:
    assert delta_of_gaussian(1.0, 4, LEAST_VARIANCE - 1) == 1
    assert epsilon_of_gaussian(1e-6, 4, LEAST_VARIANCE - 1) == math.inf
    assert epsilon_of_gaussian(1e-6, 1 << 40, LEAST_VARIANCE) == math.inf, "noise that hides nothing"
    assert epsilon_of_gaussian(1e-9, 1, LEAST_VARIANCE) == math.inf, "a δ below the price of integers"
