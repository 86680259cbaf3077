"""The exact arithmetic: bounds are on the side they say, and close."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.mechanisms import rounded_up
from tpsl.mechanisms.exact import exp_lower, exp_of, log_upper

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
