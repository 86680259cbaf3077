from pathlib import Path

import numpy as np
import pytest

from tpsl.data.features import Features, joined_features
from tpsl.data.out_of_core import is_mapped


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


def test_a_batch_of_mapped_features_is_that_of_features_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    held = Features(
        rng.integers(0, 9, (300, 2)).astype(np.int32),
        rng.random((300, 3)).astype(np.float32),
        9,
        ("a", "b"),
        tuple("xyz"),
    )
    np.save(tmp_path / "categorical.npy", held.categorical)
    np.save(tmp_path / "numeric.npy", held.numeric)
    stored = Features(
        np.load(tmp_path / "categorical.npy", mmap_mode="r"),
        np.load(tmp_path / "numeric.npy", mmap_mode="r"),
        9,
        ("a", "b"),
        ("x", "y", "z"),
    )
    assert (held.is_mapped, stored.is_mapped) == (False, True)
    for rows in (rng.permutation(300), np.arange(0), np.array([7, 7, 299])):
        expected = held.take(rows)
        for found in (held.batch(rows), stored.batch(rows)):
            assert np.array_equal(found[0], expected.categorical)
            assert np.array_equal(found[1], expected.numeric)
            assert not is_mapped(found[0]) and not is_mapped(found[1])


def test_joined_features_keep_the_categories_of_parties_apart() -> None:
    numbers = Features(np.empty((3, 0), np.int32), np.ones((3, 1), np.float32), 0, (), ("y",))
    joined = joined_features([features(), numbers, features()])
    assert joined.categorical.tolist() == [[0, 3, 5, 8], [1, 4, 6, 9], [2, 3, 7, 8]]
    assert joined.numeric.tolist() == [[0.5, 1.0, 0.5], [1.5, 1.0, 1.5], [2.5, 1.0, 2.5]]
    assert joined.embedding_rows == 10
    assert (joined.categorical_fields, joined.numeric_fields) == (("a", "b", "a", "b"), ("x", "y", "x"))
