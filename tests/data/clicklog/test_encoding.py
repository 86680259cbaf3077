import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.data.clicklog.encoding import Buckets, Moments, Vocabulary, signed_logarithm, split_mix

VALUES = st.lists(st.integers(0, 2**32 - 1), max_size=50)


def test_the_hash_is_that_of_split_mix() -> None:
    # The first outputs of Vigna's splitmix64.c for the seeds 0 and 1234567.
    assert split_mix(np.array([0, 1234567], dtype=np.uint32)).tolist() == [0xE220A8397B1DCDAF, 6457827717110365317]


@settings(deadline=None)
@given(VALUES, st.integers(1, 1000))
def test_buckets_are_within_the_field_and_leave_row_0_to_missing_values(values: list[int], count: int) -> None:
    rows = Buckets(count).rows(np.array(values, dtype=np.uint32))
    assert ((rows >= 1) & (rows < Buckets(count).size)).all()
    assert rows.tolist() == [1 + int(split_mix(np.array([v], dtype=np.uint32))[0]) % count for v in values]


@settings(deadline=None)
@given(VALUES, VALUES)
def test_a_vocabulary_finds_exactly_its_values(known: list[int], asked: list[int]) -> None:
    vocabulary = Vocabulary(np.unique(np.array(known, dtype=np.uint32)))
    in_order = sorted(set(known))
    values = [*asked, *known]
    rows = vocabulary.rows(np.array(values, dtype=np.uint32)).tolist()
    assert rows == [2 + in_order.index(value) if value in in_order else 0 for value in values]
    assert vocabulary.size == 2 + len(in_order)


def test_signed_logarithm_keeps_the_sign_and_what_is_missing() -> None:
    found = signed_logarithm(pa.array([0, 1, -1, 2**62, None], pa.int64()))
    assert np.allclose(found, [0, np.log(2), -np.log(2), 62 * np.log(2), np.nan], equal_nan=True)


@settings(deadline=None)
@given(st.lists(st.lists(st.one_of(st.just(np.nan), st.floats(-50, 50)), max_size=20), max_size=6))
def test_moments_of_a_stream_are_those_of_the_whole(parts: list[list[float]]) -> None:
    moments = Moments()
    for part in parts:
        moments.add(np.array(part, dtype=np.float64))
    whole = np.array([value for part in parts for value in part], dtype=np.float64)
    known = whole[~np.isnan(whole)]
    found = moments.standard()
    assert found.indicated == np.isnan(whole).any()
    assert found.mean == pytest.approx(known.mean() if len(known) else 0, abs=1e-9)
    assert found.deviation == pytest.approx(known.std() if len(known) else 0, abs=1e-7)


def test_a_constant_column_has_no_deviation_however_it_is_cut() -> None:
    moments = Moments()
    for size in (3, 1, 7, 1000):
        moments.add(np.full(size, np.log1p(17)))
    assert moments.standard().deviation < 1e-12
