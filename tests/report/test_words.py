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
    promise_text,
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


def test_only_a_private_run_promises_anything() -> None:
    assert "nothing is promised" in promise_text(inf, 0.0, False, inf)
    assert "Another release of these labels had no noise" in promise_text(inf, 0.0, False, 1.0)
    assert "Nothing is promised" in promise_text(1.0, 0.0, False, 1.0)
    assert "a factor of at most 2.72." in promise_text(1.0, 0.0, True, 1.0)
    assert "a factor of at most 2.72, apart from a slack of δ = 1e-6" in promise_text(1.0, 1e-6, True, 1.0)
    assert "a factor of at most e^20." in promise_text(20.0, 0.0, True, 20.0)
    assert promise_text(0.0, 0.0, True, 0.0) == "Nothing that depends on a label crosses the border."


def test_the_sentence_about_other_knowledge_speaks_of_the_total() -> None:
    alone, composed, unknown = (
        promise_text(epsilon, 0.0, True, share) for epsilon, share in ((1, 1), (6, 1), (1, None))
    )
    assert alone.startswith("Everything that crosses the border, however it is combined with other knowledge")
    assert composed.startswith(
        "All that was released of these labels, by this run (ε = 1) and by others, however it is"
    )
    assert composed.endswith("a factor of at most 404.")  # e^6, rounded up
    assert "however it is combined" not in unknown
