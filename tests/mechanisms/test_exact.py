"""Exact arithmetic, composition and the Gaussian trade-off, against integers, quadrature and OpenDP."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from tpsl.mechanisms import Cost, compose, epsilon_of_rho, rounded_up
from tpsl.mechanisms.exact import LEAST_VARIANCE, delta_of_gaussian, epsilon_of_gaussian, exp_lower, exp_of, log_upper

# The exact arithmetic: bounds are on the side they say, and close.

Bounds = Callable[[float | Fraction], tuple[Fraction, Fraction]]

EPSILONS = [1e-9, 0.001, 0.01, 0.1, 1 / 3, 0.5, 1.0, math.pi, 8.0, 10.0, 40.0]


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_exp_lower_is_below_the_exponential_and_close(epsilon: float, exp_bounds: Bounds) -> None:
    below, above = exp_bounds(epsilon)
    assert above * (1 - Fraction(2, 10**50)) < exp_lower(epsilon) < below


def test_exp_lower_of_zero_is_at_most_one() -> None:
    assert 1 - Fraction(2, 10**50) <= exp_lower(0.0) <= 1


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 3), Fraction(22, 7), Fraction(40)])
def test_exp_of_is_right_to_many_digits(x: Fraction, exp_bounds: Bounds) -> None:
    below, above = exp_bounds(x)
    assert abs(Fraction(exp_of(x)) / below - 1) < Fraction(1, 10**40)
    assert abs(Fraction(exp_of(-x)) * above - 1) < Fraction(1, 10**40)


@given(st.integers(1, 2**64), st.integers(1, 2**64))
def test_log_upper_is_the_smallest_float_that_is_not_below(exp_bounds: Bounds, a: int, b: int) -> None:
    ratio = Fraction(max(a, b), min(a, b))
    bound = log_upper(ratio)
    if ratio == 1:
        assert 0 < bound < 1e-49
        return
    assert exp_bounds(bound)[0] >= ratio, "the claimed logarithm is too small"
    next_below = math.nextafter(bound, 0.0)
    assert exp_bounds(next_below)[1] < ratio, "a smaller float would have done"


@given(st.floats(0.001, 40.0))
def test_log_upper_undoes_exp_lower(epsilon: float) -> None:
    """Up to one float: the lower bound of e^ε is a hair below it, the upper bound of ln a hair above."""
    assert log_upper(exp_lower(epsilon)) in (epsilon, math.nextafter(epsilon, math.inf))


@pytest.mark.parametrize("ratio", [Fraction(0), Fraction(-1, 2)])
def test_no_logarithm_of_what_has_none(ratio: Fraction) -> None:
    with pytest.raises(ValueError, match=str(ratio)):
        log_upper(ratio)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.0, "1"),
        (0.1, "0.1"),
        (0.9999999999999996, "1"),
        (4.377147118138726, "4.37715"),
        (1.2345641, "1.23457"),
        (1.2345600000001, "1.23457"),
        (0.000123456001, "0.000123457"),
        (1e-5, "1e-05"),
        (39.50936894715453, "39.5094"),
        (math.inf, "inf"),
    ],
)
def test_shown_numbers_are_rounded_up(value: float, shown: str) -> None:
    assert rounded_up(value) == shown


@given(st.floats(1e-9, 100.0))
def test_a_shown_number_is_never_below_the_number(value: float) -> None:
    assert value <= float(rounded_up(value)) <= value * (1 + 1.0001e-5)


# ε, δ and ρ: the conversion against OpenDP and against the definition, and totals that are never too small.

RHOS = [1e-7, 3.2e-4, 0.0066, 0.024, 0.088, 1.05, 9.9, 50.0]
DELTAS = [1e-12, 1e-6, 1e-3, 0.1]
COSTS = st.one_of(
    st.builds(Cost, st.floats(0.001, 10)),
    st.builds(Cost, st.floats(0.001, 10), st.floats(1e-12, 1e-3)),
    st.builds(
        lambda rho, delta: Cost(epsilon_of_rho(rho, delta), delta, rho),
        st.fractions(Fraction(1, 10**6), 10),
        st.floats(1e-12, 1e-3),
    ),
)


def of_opendp(rho: float, delta: float) -> float:
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    approximate = dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale=1 / math.sqrt(2 * rho)))
    return float(approximate.map(1.0).epsilon(delta))


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", RHOS)
def test_rho_becomes_the_epsilon_that_opendp_states(rho: float, delta: float) -> None:
    assert epsilon_of_rho(Fraction(rho), delta) == pytest.approx(of_opendp(rho, delta), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", RHOS)
def test_rho_becomes_the_smallest_epsilon_of_all_orders(rho: float, delta: float) -> None:
    def epsilon(alpha: float) -> float:
        """Canonne, Kamath, Steinke, Corollary 13, solved for ε as it is printed there: δ of an ε."""
        log_delta = (alpha - 1) * alpha * rho + alpha * math.log1p(-1 / alpha) - math.log(alpha - 1)
        return (log_delta - math.log(delta)) / (alpha - 1)

    orders = 1 + np.geomspace(1e-4, 1e12, 4000)
    best = orders[int(np.argmin([epsilon(alpha) for alpha in orders]))]
    least = optimize.minimize_scalar(epsilon, bounds=(1 + (best - 1) / 2, 1 + (best - 1) * 2), method="bounded").fun
    ours = epsilon_of_rho(Fraction(rho), delta)
    assert max(0.0, least) * (1 - 1e-7) - 1e-12 <= ours <= max(0.0, least) * (1 + 1e-7) + 1e-12


def test_no_rho_costs_nothing() -> None:
    assert epsilon_of_rho(Fraction(0), 1e-6) == 0


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1])
def test_rho_is_stated_at_a_delta_between_0_and_1_alone(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon_of_rho(Fraction(1), delta)


def test_pure_releases_add_up_exactly() -> None:
    total = compose([Cost(0.1)] * 3)
    assert total.delta == 0
    assert Fraction(total.epsilon) >= 3 * Fraction(0.1) > Fraction(math.nextafter(total.epsilon, 0))


def test_gaussian_releases_add_up_by_rho_and_cost_less_than_their_sum() -> None:
    one = Cost(epsilon_of_rho(Fraction(1, 40), 1e-6), 1e-6, Fraction(1, 40))
    total = compose([one] * 4)
    assert total.rho == Fraction(1, 10)
    assert total.delta == pytest.approx(4e-6)
    assert total.epsilon == epsilon_of_rho(Fraction(1, 10), 4 * Fraction(1e-6)) < 0.55 * 4 * one.epsilon


def test_many_small_pure_releases_join_the_sum_by_rho_and_a_large_one_stays_out() -> None:
    gaussian = Cost(epsilon_of_rho(Fraction(1, 2), 1e-6), 1e-6, Fraction(1, 2))
    small, large = [Cost(0.01)] * 100, Cost(8.0)
    joined = epsilon_of_rho(Fraction(1, 2) + 100 * Fraction(0.01) ** 2 / 2, 1e-6)
    assert compose([gaussian, *small]).epsilon == joined < gaussian.epsilon + 0.9
    assert compose([large, *small, gaussian]).epsilon == pytest.approx(8 + joined, rel=1e-12)


def test_a_release_of_unknown_rho_adds_its_epsilon_and_delta() -> None:
    gaussian = Cost(epsilon_of_rho(Fraction(1, 40), 1e-6), 1e-6, Fraction(1, 40))
    total = compose([gaussian, Cost(2.0, 1e-5), gaussian])
    assert total.rho is None
    assert total.delta >= 1.2e-5
    assert total.epsilon == pytest.approx(2 + epsilon_of_rho(Fraction(1, 20), 2e-6))


def test_a_larger_delta_buys_a_smaller_epsilon_and_a_smaller_one_is_refused() -> None:
    gaussian = Cost(epsilon_of_rho(Fraction(1, 40), 1e-6), 1e-6, Fraction(1, 40))
    assert compose([gaussian], 1e-5).epsilon == epsilon_of_rho(Fraction(1, 40), 1e-5) < gaussian.epsilon
    with pytest.raises(ValueError, match="more than 1e-07"):
        compose([gaussian], 1e-7)


def test_no_release_costs_nothing_and_one_without_noise_everything() -> None:
    assert compose([]) == Cost(0.0, 0.0, Fraction(0))
    assert compose([Cost(1.0), Cost(math.inf)]).epsilon == math.inf


@given(costs=st.lists(COSTS, max_size=6))
def test_a_total_is_at_most_the_sum_of_its_parts_and_no_part_is_forgotten(costs: list[Cost]) -> None:
    total = compose(costs)
    epsilons, deltas = ([Fraction(getattr(cost, name)) for cost in costs] for name in ("epsilon", "delta"))
    assert Fraction(total.delta) >= sum(deltas)
    assert total.epsilon <= math.nextafter(float(sum(epsilons)), math.inf)
    assert total.epsilon >= max((cost.epsilon for cost in costs if cost.zcdp is None), default=0.0)
    for cost in costs:
        assert total.rho is None or total.rho >= (cost.zcdp or 0)
    if total.rho is not None and total.delta:
        assert total.epsilon <= epsilon_of_rho(total.rho, sum(deltas)) * (1 + 1e-12)


# The (ε, δ) of Gaussian noise: the formula against scipy, and sums over integers that never exceed the bound.

GAUSSIAN_EPSILONS = [0.0, 0.1, 1.0, 4.0]


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


@pytest.mark.parametrize("epsilon", GAUSSIAN_EPSILONS)
@pytest.mark.parametrize("share", [0.02, 0.2, 1.0, 3.0])
def test_the_bound_is_the_formula_and_the_price_of_integers(epsilon: float, share: float) -> None:
    sigma = 10**5
    found = float(delta_of_gaussian(epsilon, round((share * sigma) ** 2), sigma**2))
    assert found == pytest.approx(continuous(epsilon, share) + (1 + share**2) / sigma**2, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("epsilon", GAUSSIAN_EPSILONS)
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
    for epsilon in GAUSSIAN_EPSILONS:
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
