import numpy as np
import pytest

from tpsl.data.features import Features


def features() -> Features:
    categorical = np.array([[0, 3], [1, 4], [2, 3]], dtype=np.int32)
    return Features(categorical, np.array([[0.5], [1.5], [2.5]], dtype=np.float32), 5, ("a", "b"), ("x",))


def test_take_keeps_order_and_repeats() -> None:
    taken = features().take(np.array([2, 0, 2]))
    assert len(taken) == 3
    assert taken.categorical.tolist() == [[2, 3], [0, 3], [2, 3]]
    assert taken.numeric.ravel().tolist() == [2.5, 0.5, 2.5]
    assert taken.embedding_rows == 5
    assert taken.categorical.flags.c_contiguous


def test_what_does_not_fit_is_refused() -> None:
    good = features()
    with pytest.raises(TypeError, match="float64"):
        Features(good.categorical, good.numeric.astype(np.float64), 5, ("a", "b"), ("x",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shapes"):
        Features(good.categorical, good.numeric[:2], 5, ("a", "b"), ("x",))
    with pytest.raises(ValueError, match="shapes"):
        Features(good.categorical, good.numeric, 5, ("a",), ("x",))
    with pytest.raises(ValueError, match="4 rows"):
        Features(good.categorical, good.numeric, 4, ("a", "b"), ("x",))
    with pytest.raises(ValueError, match="outside"):
        Features(good.categorical - np.int32(1), good.numeric, 5, ("a", "b"), ("x",))


def test_a_party_may_have_no_categories_or_no_numbers() -> None:
    only_numbers = Features(np.empty((2, 0), np.int32), np.zeros((2, 1), np.float32), 0, (), ("x",))
    only_categories = Features(np.zeros((2, 1), np.int32), np.empty((2, 0), np.float32), 1, ("a",), ())
    assert len(only_numbers) == len(only_categories) == 2
