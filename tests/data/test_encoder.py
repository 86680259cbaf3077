import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.data.encoder import (
    Categories,
    EncoderState,
    HashedCategories,
    IndexedCategories,
    learn,
)
from tpsl.data.features import Features
from tpsl.data.rawtable import RawTable
from tpsl.data.row_encoder import FIRST_VALUE, MISSING, UNSEEN
from tpsl.tables import DataError

VALUES = st.lists(st.one_of(st.none(), st.text(max_size=3)), min_size=4, max_size=60)


def table(columns: dict[str, list[str | None]]) -> RawTable:
    rows = len(next(iter(columns.values())))
    ids = pa.array([f"{row:04d}" for row in range(rows)])
    return RawTable("test", ids, {name: pa.array(values, pa.string()) for name, values in columns.items()}, {})


@given(VALUES, st.integers(1, 3))
def test_equal_values_share_a_row_and_frequent_ones_have_their_own(values: list[str | None], min_count: int) -> None:
    training = np.arange(len(values)) < len(values) // 2
    column = pa.array(values, pa.string())
    vocabulary = IndexedCategories(min_count).learn([column], training)
    rows, size = vocabulary.rows(column), vocabulary.size
    seen = values[: int(training.sum())]
    in_pieces = [column[start : start + 3] for start in range(0, len(column), 3)]
    assert IndexedCategories(min_count).learn(in_pieces, training).values.equals(vocabulary.values)
    for value, row in zip(values, rows.tolist(), strict=True):
        if value is None:
            assert row == 1
        else:
            assert (row >= 2) == (seen.count(value) >= min_count)
            assert row != 1
    kept = sorted({v for v in seen if v is not None and seen.count(v) >= min_count}, key=lambda v: v.encode())
    assert size == 2 + len(kept)
    assert [int(rows[values.index(value)]) for value in kept] == list(range(2, size))


@given(VALUES, st.integers(1, 9))
def test_hashing_does_not_depend_on_the_other_records(values: list[str | None], buckets: int) -> None:
    field = HashedCategories(buckets).learn([], np.array([True]))
    rows = field.rows(pa.array(values, pa.string()))
    assert field.size == buckets + 1
    assert all((row == 0) == (value is None) for value, row in zip(values, rows.tolist(), strict=True))
    alone = [int(field.rows(pa.array([value], pa.string()))[0]) for value in values]
    assert rows.tolist() == alone


def test_fields_share_one_table_without_overlap() -> None:
    columns: dict[str, list[str | None]] = {"a": ["x", "y", "x", "y"], "b": ["x", "x", None, "z"]}
    _, features = learn(table(columns), IndexedCategories(1), np.arange(4))
    assert features.categorical.tolist() == [[2, 6], [3, 6], [2, 5], [3, 7]]
    assert features.embedding_rows == 8
    assert features.categorical.dtype == np.int32
    assert features.numeric.dtype == np.float32


def test_a_table_beyond_32_bits_is_refused() -> None:
    columns: dict[str, list[str | None]] = {"a": ["x"], "b": ["x"], "c": ["x"]}
    with pytest.raises(DataError, match=r"column 'b' the embedding table has more than 2\*\*31 rows"):
        learn(table(columns), HashedCategories(2**30), np.arange(1))


def test_large_numbers_are_standardised_without_losing_their_differences() -> None:
    moments = 1.7e9 + np.arange(100.0)  # seconds since 1970: float32 alone could not tell them apart
    raw = RawTable("test", pa.array([f"{row:04d}" for row in range(100)]), {}, {"when": moments})
    encoded = learn(raw, IndexedCategories(), np.arange(100))[1].numeric[:, 0]
    assert len(np.unique(encoded)) == 100
    assert np.allclose(np.diff(encoded), encoded[1] - encoded[0], atol=1e-6)


def test_a_test_value_far_from_all_training_values_stays_finite() -> None:
    values = np.array([0.0, 1e-30, 2e-30, 3e38])
    raw = RawTable("test", pa.array(["1", "2", "3", "4"]), {}, {"tiny": values, "same": np.array([5, 5, 5, 3e38])})
    encoded = learn(raw, IndexedCategories(), np.arange(3))[1].numeric
    assert np.isfinite(encoded).all()
    assert encoded[3].tolist() == [1e4, 1e4]


def test_the_unit_of_a_column_does_not_matter() -> None:
    values = np.random.default_rng(0).normal(3, 2, 50)
    columns = {"metres": values, "light years": values * 1e-16}
    raw = RawTable("test", pa.array([str(row) for row in range(50)]), {}, columns)
    numeric = learn(raw, IndexedCategories(), np.arange(40))[1].numeric
    assert np.allclose(numeric[:, 0], numeric[:, 1], atol=1e-6)


words = st.lists(st.sampled_from([None, "", "a", "b", "B", "ä", "10", "9"]), min_size=6, max_size=6)
floats = st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=6, max_size=6)


def equal(one: Features, other: Features) -> bool:
    arrays = np.array_equal(one.categorical, other.categorical) and np.array_equal(one.numeric, other.numeric)
    names = (one.categorical_fields, one.numeric_fields) == (other.categorical_fields, other.numeric_fields)
    return arrays and names and one.embedding_rows == other.embedding_rows


@settings(max_examples=60)
@given(words, words, floats, floats, st.sampled_from([IndexedCategories(1), IndexedCategories(2), HashedCategories(5)]))
@pytest.mark.parametrize("known", [1, 4, 6])
def test_a_saved_state_encodes_as_it_did_when_it_was_learned(
    tmp_path_factory: pytest.TempPathFactory,
    known: int,
    one: list[str | None],
    two: list[str | None],
    a: list[float],
    b: list[float],
    categories: Categories,
) -> None:
    table = RawTable(
        "X",
        pa.array([str(n) for n in range(6)]),
        {"one": pa.array(one, pa.string()), "two": pa.array(two, pa.string()).dictionary_encode()},
        {"a": np.array(a), "b": np.array(b)},
    )
    state, expected = learn(table, categories, np.arange(known))
    folder = tmp_path_factory.mktemp("run") / "encoder"
    state.save(folder)
    saved = EncoderState.load(folder)
    more = RawTable(
        "Y",
        table.ids,
        {"more": table.categorical["one"], "two": table.categorical["two"], "one": table.categorical["one"]},
        {"b": table.numeric["b"], "a": table.numeric["a"]},
    )
    assert equal(state.encode(table), expected)
    assert equal(saved.encode(more), expected)  # other columns and another order of them do not matter
    alone = np.concatenate([saved.encode(table.take(np.array([row]))).numeric for row in range(6)])
    assert np.array_equal(alone, expected.numeric)
    assert (saved.columns, saved.missing) == (state.columns, state.missing)


def test_what_was_not_learned_from_is_unseen() -> None:
    state, _ = learn(table({"word": ["b", "a", "b", "a", "c"]}), IndexedCategories(2), np.arange(5))
    found = state.encode(table({"word": ["a", "c", None, "new", "b"]})).categorical[:, 0]
    assert found.tolist() == [FIRST_VALUE, UNSEEN, MISSING, UNSEEN, FIRST_VALUE + 1]


def test_a_missing_column_is_named() -> None:
    state, _ = learn(table({"word": ["a", "b"]}), IndexedCategories(1), np.arange(2))
    with pytest.raises(DataError, match="test: there is no column 'word', which the encoder has learned from"):
        state.encode(table({"other": ["a", "b"]}))


def test_a_saved_state_is_for_its_owner_only_and_refused_when_it_is_not_what_was_saved(tmp_path: Path) -> None:
    state, _ = learn(table({"word": ["a", "b"]}), IndexedCategories(1), np.arange(2))
    folder = tmp_path / "encoder"
    state.save(folder)
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, *folder.iterdir())] == ["0o700", "0o600"]
    whole = json.loads((folder / "encoder.json").read_text())
    for change, sentence in (
        ({"version": 2}, r"encoder\.json: .*the encoder is of version 2, and this program reads 1"),
        ({"columns": {"word": "image"}}, "there is no kind of column 'image', only category, number, date"),
        ({"numbers": {"x": {"mean": 1}}}, "cannot be read, it is no saved encoder"),
        ({"categories": []}, "cannot be read, it is no saved encoder"),
    ):
        (folder / "encoder.json").write_text(json.dumps(whole | change))
        with pytest.raises(DataError, match=sentence):
            EncoderState.load(folder)
    (folder / "encoder.json").write_text(json.dumps(whole))
    assert EncoderState.load(folder).embedding_rows == 4
    with pytest.raises(DataError, match="cannot be read, it is no saved encoder"):
        EncoderState.load(tmp_path)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_column_without_categories_and_an_empty_table(missing: int) -> None:
    numbers = np.array([1.0, 3.0, *[np.nan] * missing])
    raw = RawTable("X", pa.nulls(len(numbers), pa.string()), {}, {"x": numbers})
    state, _ = learn(raw, IndexedCategories(1), np.arange(len(numbers)))
    assert state.embedding_rows == 0
    assert state.encode(raw.take(np.arange(0))).numeric.shape == (0, 1 + missing)
