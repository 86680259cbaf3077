"""A fitted encoding gives later rows the numbers that encoding everything at once gives them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.data.encode import FIRST_VALUE, MISSING, UNSEEN, IndexedCategories, encode
from tpsl.data.fitted import FittedEncoding
from tpsl.data.rawtable import RawTable

words = st.lists(st.sampled_from([None, "", "a", "b", "B", "ä", "10", "9"]), min_size=6, max_size=6)
values = st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=6, max_size=6)


@given(words, words, values, values, st.integers(1, 3), st.integers(1, 6))
def test_equals_encoding_everything_at_once(
    one: list[str | None], two: list[str | None], a: list[float], b: list[float], min_count: int, known: int
) -> None:
    table = RawTable(
        "X",
        pa.array([str(n) for n in range(6)]),
        {"one": pa.array(one, pa.string()), "two": pa.array(two, pa.string()).dictionary_encode()},
        {"a": np.array(a), "b": np.array(b)},
    )
    train = np.arange(known)
    expected = encode(table, train, IndexedCategories(min_count))
    found = FittedEncoding.learn(table.take(train), min_count).encode(table)
    assert np.array_equal(found.categorical, expected.categorical)
    assert np.array_equal(found.numeric, expected.numeric)
    assert (found.embedding_rows, found.numeric_fields) == (expected.embedding_rows, expected.numeric_fields)


def test_what_was_not_learned_from_is_unseen() -> None:
    def table(texts: list[str | None]) -> RawTable:
        return RawTable("X", pa.nulls(len(texts), pa.string()), {"word": pa.array(texts, pa.string())}, {})

    encoding = FittedEncoding.learn(table(["b", "a", "b", "a", "c"]), 2)
    assert encoding.encode(table(["a", "c", None, "new", "b"])).categorical[:, 0].tolist() == [
        FIRST_VALUE,
        UNSEEN,
        MISSING,
        UNSEEN,
        FIRST_VALUE + 1,
    ]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_column_without_categories_and_an_empty_table(missing: int) -> None:
    numbers = np.array([1.0, 3.0, *[np.nan] * missing])
    table = RawTable("X", pa.nulls(len(numbers), pa.string()), {}, {"x": numbers})
    encoding = FittedEncoding.learn(table, 1)
    assert encoding.embedding_rows == 0
    assert encoding.encode(table.take(np.arange(0))).numeric.shape == (0, 1 + missing)
