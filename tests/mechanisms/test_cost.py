"""ε, δ and ρ: the conversion against OpenDP and against the definition, and totals that are never too small."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from tpsl.mechanisms import Cost, compose, epsilon_of_rho

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
