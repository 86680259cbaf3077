import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.data.encode import HashedCategories, IndexedCategories, encode
from tpsl.data.errors import DataError
from tpsl.data.rawtable import RawTable

VALUES = st.lists(st.one_of(st.none(), st.text(max_size=3)), min_size=4, max_size=60)


def table(columns: dict[str, list[str | None]]) -> RawTable:
    rows = len(next(iter(columns.values())))
    ids = pa.array([f"{row:04d}" for row in range(rows)])
    return RawTable("test", ids, {name: pa.array(values, pa.string()) for name, values in columns.items()}, {})


@settings(deadline=None)
@given(VALUES, st.integers(1, 3))
def test_equal_values_share_a_row_and_frequent_ones_have_their_own(values: list[str | None], min_count: int) -> None:
    train = np.arange(len(values) // 2)
    rows, size = IndexedCategories(min_count).rows(pa.array(values, pa.string()), train)
    seen = values[: len(train)]
    for value, row in zip(values, rows.tolist(), strict=True):
        if value is None:
            assert row == 1
        else:
            assert (row >= 2) == (seen.count(value) >= min_count)
            assert row != 1
    kept = sorted({v for v in seen if v is not None and seen.count(v) >= min_count}, key=lambda v: v.encode())
    assert size == 2 + len(kept)
    assert [int(rows[values.index(value)]) for value in kept] == list(range(2, size))


@settings(deadline=None)
@given(VALUES, st.integers(1, 9))
def test_hashing_does_not_depend_on_the_other_records(values: list[str | None], buckets: int) -> None:
    categories = HashedCategories(buckets)
    rows, size = categories.rows(pa.array(values, pa.string()), np.arange(1))
    assert size == buckets + 1
    assert all((row == 0) == (value is None) for value, row in zip(values, rows.tolist(), strict=True))
    alone = [int(categories.rows(pa.array([value], pa.string()), np.arange(1))[0][0]) for value in values]
    assert rows.tolist() == alone


def test_fields_share_one_table_without_overlap() -> None:
    columns: dict[str, list[str | None]] = {"a": ["x", "y", "x", "y"], "b": ["x", "x", None, "z"]}
    features = encode(table(columns), np.arange(4), IndexedCategories(1))
    assert features.categorical.tolist() == [[2, 6], [3, 6], [2, 5], [3, 7]]
    assert features.embedding_rows == 8
    assert features.categorical.dtype == np.int32
    assert features.numeric.dtype == np.float32


def test_a_table_beyond_32_bits_is_refused() -> None:
    columns: dict[str, list[str | None]] = {"a": ["x"], "b": ["x"], "c": ["x"]}
    with pytest.raises(DataError, match=r"column 'b' the embedding table has more than 2\*\*31 rows"):
        encode(table(columns), np.arange(1), HashedCategories(2**30))


def test_large_numbers_are_standardised_without_losing_their_differences() -> None:
    moments = 1.7e9 + np.arange(100.0)  # seconds since 1970: float32 alone could not tell them apart
    raw = RawTable("test", pa.array([f"{row:04d}" for row in range(100)]), {}, {"when": moments})
    encoded = encode(raw, np.arange(100), IndexedCategories()).numeric[:, 0]
    assert len(np.unique(encoded)) == 100
    assert np.allclose(np.diff(encoded), encoded[1] - encoded[0], atol=1e-6)


def test_a_test_value_far_from_all_training_values_stays_finite() -> None:
    values = np.array([0.0, 1e-30, 2e-30, 3e38])
    raw = RawTable("test", pa.array(["1", "2", "3", "4"]), {}, {"tiny": values, "same": np.array([5, 5, 5, 3e38])})
    encoded = encode(raw, np.arange(3), IndexedCategories()).numeric
    assert np.isfinite(encoded).all()
    assert encoded[3].tolist() == [1e4, 1e4]


def test_the_unit_of_a_column_does_not_matter() -> None:
    values = np.random.default_rng(0).normal(3, 2, 50)
    columns = {"metres": values, "light years": values * 1e-16}
    numeric = encode(
        RawTable("test", pa.array([str(row) for row in range(50)]), {}, columns), np.arange(40), IndexedCategories()
    ).numeric
    assert np.allclose(numeric[:, 0], numeric[:, 1], atol=1e-6)
