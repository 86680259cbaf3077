import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tpsl.data.order import permutation


@given(st.integers(0, 3000), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3))
def test_is_a_permutation_and_repeats_itself(size: int, key: list[int]) -> None:
    order = permutation(size, *key)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(size))
    assert np.array_equal(order, permutation(size, *key))


def test_follows_its_published_definition() -> None:
    words = np.random.PCG64(np.random.SeedSequence([5, 6])).random_raw(1000).tolist()
    expected = sorted(range(1000), key=lambda position: (words[position] >> 10, position))
    assert permutation(1000, 5, 6).tolist() == expected


def test_literal_values_never_change() -> None:
    assert permutation(10, 1, 0).tolist() == [9, 2, 4, 7, 5, 0, 8, 6, 3, 1]


def test_every_order_of_four_is_equally_likely() -> None:
    counts = np.zeros(256, dtype=int)
    for seed in range(6000):
        a, b, c, d = permutation(4, 9, seed).tolist()
        counts[a * 64 + b * 16 + c * 4 + d] += 1
    seen = counts[counts > 0]
    assert len(seen) == 24
    assert stats.chisquare(seen).pvalue > 1e-6


def test_keys_are_independent() -> None:
    assert not np.array_equal(permutation(50, 1, 2), permutation(50, 2, 1))
    assert not np.array_equal(permutation(50, 1), permutation(50, 1, 1))


@pytest.mark.parametrize("arguments", [(-1, 0), (5, -1)])
def test_negative_arguments_are_refused(arguments: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not negative"):
        permutation(*arguments)
