from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.report import RunSummary
from tpsl.report.words import auc_text, baseline, difference_text, epsilon_text, interval_text, promise, rounded_up


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


def test_numbers_as_text(rows: list[RunSummary]) -> None:
    assert auc_text(0.73106) == "0.7311"
    assert auc_text(nan) == "–"
    assert interval_text(0.7, 0.8) == "0.7000–0.8000"
    assert interval_text(nan, 0.8) == interval_text(0.7, nan) == ""
    assert difference_text(0.7, 0.75) == "−0.0500"
    assert difference_text(0.75, 0.7) == "+0.0500"
    assert [epsilon_text(row) for row in rows] == ["∞", "1", "1", "2.001, δ = 1.1e-6", "0.5"]


def test_only_a_private_run_promises_anything(rows: list[RunSummary]) -> None:
    without_noise, laplace, _, seeded, _ = map(promise, rows)
    assert "nothing is promised" in without_noise
    assert "Nothing is promised" in seeded
    assert "a factor of at most 2.72." in laplace
    assert "a factor of at most 2.72, apart from a slack of δ = 1e-6" in promise(replace(rows[1], delta=1e-6))
    assert "a factor of at most e^20." in promise(replace(rows[1], epsilon=20.0))


def test_the_baseline_is_the_first_run_without_noise(rows: list[RunSummary]) -> None:
    assert baseline(rows) is rows[0]
    assert baseline(rows[1:]) is None
