import math
from fractions import Fraction
from functools import reduce
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.mechanisms import Cost, epsilon_of_rho, fit_noise
from tpsl.vault import VaultError
from tpsl.vault.cost import check_delta, of_group, times, total

amounts = st.floats(min_value=0, max_value=1e6, allow_nan=False)


@given(st.lists(amounts, max_size=20))
def test_a_total_is_the_smallest_float_that_is_not_below_the_exact_sum(parts: list[float]) -> None:
    exact = sum(map(Fraction, parts), Fraction(0))
    assert Fraction(total(parts)) >= exact
    assert total(parts) == 0 or Fraction(math.nextafter(total(parts), -math.inf)) < exact


@given(amounts, st.integers(0, 1000))
def test_times_is_repeated_addition(part: float, count: int) -> None:
    assert times(part, count) == total([part] * count)


def test_infinity_stays_infinity() -> None:
    assert total([1.0, math.inf]) == math.inf
    assert times(math.inf, 2) == math.inf
    assert times(math.inf, 0) == 0


def test_a_naive_sum_would_have_been_too_small() -> None:
    parts = [1.0] + [2.0**-54] * 3
    assert reduce(add, parts) == 1.0 < total(parts)


def test_a_delta_above_one_in_all_records_needs_to_be_asked_for() -> None:
    check_delta(0.001, 1000)
    check_delta(0.5, 1000, 0.5)
    check_delta(0.0, 0)
    with pytest.raises(VaultError, match=r"δ = 0\.00101 in all, more than 1/records = 0\.001 for 1,000 records"):
        check_delta(0.00101, 1000)
    with pytest.raises(VaultError, match=r"δ = 0\.5 in all, more than 0\.1:"):
        check_delta(0.5, 1, 0.1)
    with pytest.raises(VaultError, match="from 0 to 1, not nan"):
        check_delta(0.0, 1, math.nan)


def test_records_of_one_person_move_a_statistic_together() -> None:
    gaussian = fit_noise("gaussian", 1.0, 1e-6, 1 << 15, 2).cost(1 << 15, 2)
    assert gaussian.rho is not None
    assert of_group(gaussian, 1) == gaussian, "a person with one record spends what the record spends"
    assert of_group(gaussian, 3) == Cost(epsilon_of_rho(9 * gaussian.rho, 1e-6), 1e-6, 9 * gaussian.rho)
    assert of_group(Cost(0.1), 3) == Cost(times(0.1, 3))
