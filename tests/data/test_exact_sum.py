from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.data import encoder
from tpsl.data.encoder import ExactSum

FLOATS = st.lists(st.floats(-1e300, 1e300, allow_subnormal=True), max_size=40)


@given(FLOATS, st.integers(1, 7))
def test_the_mean_is_rounded_once(numbers: list[float], size: int) -> None:
    found = ExactSum()
    for start in range(0, len(numbers), size):
        found.add(np.array(numbers[start : start + size]))
    expected = float(sum(map(Fraction, numbers), Fraction()) / len(numbers)) if numbers else 0.0
    assert found.mean() == expected
    assert found.count == len(numbers)


def test_neither_order_nor_pieces_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_AT_ONCE", 1000)
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=10_007) * 10.0 ** rng.integers(-30, 30, 10_007)
    one, other = ExactSum(), ExactSum()
    one.add(numbers)
    for piece in np.array_split(rng.permutation(numbers), 13):
        other.add(piece)
    assert one.mean() == other.mean()


@pytest.mark.parametrize("number", [5e-324, -5e-324, 1.7976931348623157e308, 0.0, -1.5])
def test_one_number_is_its_own_mean(number: float) -> None:
    found = ExactSum()
    found.add(np.array([number, number, number]))
    assert found.mean() == number
