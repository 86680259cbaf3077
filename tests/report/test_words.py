from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.report.run_view import RunView
from tpsl.report.words import (
    auc_text,
    bound_text,
    interval_text,
    measured_text,
    privacy_text,
    rounded_up,
)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.9999871, 4, "1"),
        (1.00001, 4, "1.001"),
        (0.1, 4, "0.1"),
        (10.0, 4, "10"),
        (123456.0, 3, "124000"),
        (1e-5, 2, "1e-5"),
        (1.01e-6, 2, "1.1e-6"),
        (1e-12, 2, "1e-12"),
        (0.0, 2, "0"),
        (inf, 4, "∞"),
    ],
)
def test_bounds_are_rounded_up(value: float, digits: int, text: str) -> None:
    assert rounded_up(value, digits) == text


@given(st.floats(min_value=1e-15, max_value=1e6))
def test_a_shown_bound_is_never_below_the_bound_and_close_to_it(value: float) -> None:
    assert value <= float(rounded_up(value, 4)) <= value * 1.0011


def test_numbers_as_text(views: list[RunView]) -> None:
    assert auc_text(0.73106) == "0.7311"
    assert auc_text(None) == "–"
    assert interval_text(0.7, 0.8) == "0.7000–0.8000"
    assert interval_text(None, 0.8) == interval_text(0.7, None) == ""
    assert measured_text(0.75, 0.7, 0.8) == "0.7500 (0.7000–0.8000)"
    assert bound_text(0.73105, 0.73105, 0.73105) == "0.7311"  # proved: never below
    assert bound_text(0.8515, 0.8485, 0.8545) == "≈ 0.852 ±0.003"
    assert bound_text(None, 0.8, 0.9) == bound_text(nan, nan, nan) == "–"
    assert [view.budget for view in views[:3]] == ["∞", "2", "0.5"]
    assert views[3].budget.endswith(", δ = 1e-6")
    assert [privacy_text(view) for view in views] == ["no: no noise", "yes", "yes", "no: seeded noise", "yes"]
