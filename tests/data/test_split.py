import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.data.order import split_rows, subset_rows
from tpsl.tables import DataError


@given(
    st.integers(10, 5000), st.floats(0.1, 0.9), st.integers(0, 2**63 - 1), st.sampled_from(["random", "chronological"])
)
def test_the_split_is_a_partition_of_the_right_size(rows: int, fraction: float, seed: int, kind: str) -> None:
    train, test = split_rows(rows, kind, fraction, seed)  # type: ignore[arg-type]
    assert len(test) == round(rows * fraction)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(rows))
    assert (np.diff(train) > 0).all()
    assert (np.diff(test) > 0).all()


def test_chronological_tests_on_the_last_rows() -> None:
    train, test = split_rows(10, "chronological", 0.2, 7)
    assert train.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert test.tolist() == [8, 9]


def test_random_depends_on_the_seed_and_nothing_else() -> None:
    assert np.array_equal(split_rows(1000, "random", 0.2, 1)[1], split_rows(1000, "random", 0.2, 1)[1])
    assert not np.array_equal(split_rows(1000, "random", 0.2, 1)[1], split_rows(1000, "random", 0.2, 2)[1])


@pytest.mark.parametrize(("rows", "fraction"), [(2, 0.1), (3, 0.9), (1, 0.5)])
def test_an_empty_side_is_refused(rows: int, fraction: float) -> None:
    with pytest.raises(DataError, match=f"{fraction} of {rows} records"):
        split_rows(rows, "random", fraction, 0)


def test_a_subset_is_chosen_without_repetition() -> None:
    chosen = subset_rows(100, 30, 4)
    assert len(set(chosen.tolist())) == 30
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen, subset_rows(100, 30, 4))
    assert not np.array_equal(chosen, subset_rows(100, 30, 5))
    with pytest.raises(DataError, match="101 records were asked for, there are 100"):
        subset_rows(100, 101, 4)
