"""Rows of integers with a bounded norm, whatever the other side sends."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tpsl.mechanisms import DEFAULT_BOUND, Norm, clip_rows, to_integers
from tpsl.mechanisms.exact import MAX_WIDTH
from tpsl.mechanisms.statistic_noise import MAX_BOUND

NORMS: list[Norm] = ["l1", "l2"]
SHAPES = arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=12)
INTEGERS = st.sampled_from([np.int8, np.int32, np.int64, np.uint8, np.uint64])
FLOATS = st.sampled_from([np.float32, np.float64])


def norm_of(row: list[int], norm: Norm) -> int:
    """The norm, squared for "l2", in Python's integers."""
    return sum(abs(q) for q in row) if norm == "l1" else sum(q * q for q in row)


def assert_bounded(clipped: np.ndarray, bound: int, norm: Norm) -> None:
    limit = bound if norm == "l1" else bound**2
    assert all(norm_of(row, norm) <= limit for row in clipped.tolist())


@given(
    rows=INTEGERS.flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)),
    bound=st.integers(1, MAX_BOUND),
    norm=st.sampled_from(NORMS),
)
def test_no_integers_exceed_the_bound(rows: np.ndarray, bound: int, norm: Norm) -> None:
    clipped = clip_rows(rows, bound, norm)
    assert clipped.shape == rows.shape
    assert_bounded(clipped, bound, norm)
    assert (np.sign(clipped) * np.sign(rows.astype(np.float64)) >= 0).all(), "no number changes its sign"
    short = [norm_of(row, norm) <= (bound if norm == "l1" else bound**2) for row in rows.tolist()]
    assert (clipped[short] == rows[short]).all(), "a row within the bound stays as it is"


@given(
    phi=FLOATS.flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)),
    bound=st.integers(1, MAX_BOUND),
    norm=st.sampled_from(NORMS),
)
def test_no_floats_exceed_the_bound(phi: np.ndarray, bound: int, norm: Norm) -> None:
    """NaN, infinities, -0, denormal and huge numbers among them, and without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        integers = to_integers(phi, bound)
    assert (np.abs(integers) <= bound).all()
    assert_bounded(clip_rows(integers, bound, norm), bound, norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e308, -1e308])
def test_hostile_floats_are_harmless(value: float, norm: Norm) -> None:
    phi = np.full((3, 1000), value)
    clipped = clip_rows(to_integers(phi, DEFAULT_BOUND), DEFAULT_BOUND, norm)
    assert_bounded(clipped, DEFAULT_BOUND, norm)
    if not np.isfinite(value) or abs(value) < 1:
        assert (clipped == 0).all() == (np.isnan(value) or abs(value) < 1)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bound", [1, 1000, DEFAULT_BOUND, MAX_BOUND])
def test_a_one_hot_row_reaches_the_bound_and_not_more(bound: int, norm: Norm) -> None:
    rows = np.zeros((2, 50), np.int64)
    rows[0, 7], rows[1, 8] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    clipped = clip_rows(rows, bound, norm)
    assert clipped[0, 7] == -bound
    assert clipped[1, 8] == bound
    assert np.count_nonzero(clipped) == 2


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [2, 64, 4096])
def test_a_row_that_is_too_long_keeps_its_direction(width: int, norm: Norm) -> None:
    rows = np.random.default_rng(1).integers(-DEFAULT_BOUND, DEFAULT_BOUND + 1, (20, width))
    rows[:, 0] = DEFAULT_BOUND
    scaled = rows * (DEFAULT_BOUND / np.linalg.norm(rows, 1 if norm == "l1" else 2, axis=1, keepdims=True))
    assert np.abs(clip_rows(rows, DEFAULT_BOUND, norm) - scaled).max() <= 2, "two units of 32,768"


def test_the_widest_row_of_the_largest_numbers_does_not_overflow() -> None:
    rows = np.full((1, MAX_WIDTH), np.iinfo(np.int64).min)
    for norm in NORMS:
        clipped = clip_rows(rows, MAX_BOUND, norm)
        total = int(np.abs(clipped).astype(np.int64).sum())
        assert (total if norm == "l1" else total * int(np.abs(clipped).max())) <= MAX_BOUND ** (
            1 if norm == "l1" else 2
        )


def test_rounding_is_to_the_nearest() -> None:
    phi = np.array([[0.0, 0.5, -0.5, 1.0, 0.2499, 2.0, -3.0]])
    assert to_integers(phi, 1000).tolist() == [[0, 500, -500, 1000, 250, 1000, -1000]]


def test_many_rows_are_treated_as_each_by_itself() -> None:
    rng = np.random.default_rng(2)
    phi = rng.normal(size=(3000, 700)) / 20
    together = clip_rows(to_integers(phi, DEFAULT_BOUND), DEFAULT_BOUND, "l2")
    for row in (0, 1497, 1498, 2999):
        alone = clip_rows(to_integers(phi[row : row + 1], DEFAULT_BOUND), DEFAULT_BOUND, "l2")
        assert (together[row] == alone[0]).all()


def test_what_is_no_row_of_integers_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of at most"):
        clip_rows(np.zeros((2, 2)), 10, "l2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows of at most"):
        clip_rows(np.zeros(3, np.int64), 10, "l2")
    for bound in (0, -1, MAX_BOUND + 1, 2.5, True):
        with pytest.raises(ValueError, match="bound of a statistic"):
            clip_rows(np.zeros((2, 2), np.int64), bound, "l2")  # type: ignore[arg-type]
