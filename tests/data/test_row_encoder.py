"""Records one by one are encoded as a table of them is, to the last bit."""

import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.data.encoder import Categories, EncoderState, HashedCategories, IndexedCategories, learn
from tpsl.data.features import Features
from tpsl.data.rawtable import KINDS, RawTable, fields_of
from tpsl.tables import DataError
from tpsl.tables.columns import Place
from tpsl.tables.spelling import Spelling

Rows = list[dict[str, Any]]

SPACES = st.sampled_from(["", " ", "\t", "\u2003", "\n"])
MISSING = ("", "NA")


def spaced(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(SPACES, texts, SPACES).map("".join)


def column(*values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Return columns of twelve values of one type, or missing."""
    return st.one_of(st.lists(st.one_of(st.none(), value), min_size=12, max_size=12) for value in values)


MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
ISO_8601 = MOMENTS.flatmap(
    lambda moment: st.sampled_from(
        [
            f"{moment:%H}",
            f"{moment:%H:%M}",
            f"{moment:%H:%M:%S}",
            f"{moment:%H:%M:%S}.{moment.microsecond:06d}",
            f"{moment:%H:%M:%S}.5",
        ]
    ).map(lambda clock: f"{moment.date().isoformat()}T{clock}")
)
OFFSETS = st.sampled_from(["Z", "+01", "-0330", "+23:59"])
WHOLE = st.integers(-(2**63), 2**63 - 1)
COLUMNS = {
    "category": column(
        st.one_of(st.sampled_from(["a", "b", " a", *MISSING]), st.text(st.characters(exclude_categories=["Cs"]))),
        st.integers(-5, 5) | WHOLE,
        st.booleans(),
        st.floats() | st.sampled_from([1.0, 1e10, 1e9, 1e-6, 1.5e-7, -0.0]),
        st.dates(),
    ),
    "number": column(
        st.floats(-3e38, 3e38, allow_subnormal=True) | st.just(math.nan),
        st.integers(-20, 20) | WHOLE,
        st.booleans(),
        spaced(st.floats(-3e38, 3e38).map(repr) | st.sampled_from(["1.", ".5", "+7", "1E-400", "nan", *MISSING])),
    ),
    "date": column(
        MOMENTS,
        MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
        st.dates(),
        spaced(ISO_8601 | st.dates().map(str) | st.just("NA")),
        st.tuples(ISO_8601, OFFSETS).map("".join).filter(lambda text: "0002" < text[:4] < "9999"),
    ),
    "day_first_date": column(
        MOMENTS,
        spaced(
            MOMENTS.map(lambda moment: f"{moment.day}.{moment.month:02}.{moment.year:04}")
            | MOMENTS.map(lambda moment: f"{moment.day}/{moment.month:02}/{moment.year % 100:02}")
            | ISO_8601
            | st.just("NA")
        ),
    ),
    "month_first_date": column(
        st.dates(),
        spaced(
            MOMENTS.map(lambda moment: f"{moment.month}/{moment.day}/{moment.year:04} {moment:%H:%M}")
            | MOMENTS.map(lambda moment: f"{moment.month}.{moment.day}.{moment.year % 100:02}T{moment:%H:%M}")
            | st.just("NA")
        ),
    ),
    "count": column(WHOLE, spaced(WHOLE.map(str) | st.sampled_from(["007", "1.5", "NA"]))),
    "hour": column(MOMENTS, st.sampled_from(["14102100", " 24022923 ", "69010100"])),
}
TABLES = st.fixed_dictionaries(COLUMNS)
ENCODERS = st.sampled_from([IndexedCategories(1), IndexedCategories(2), HashedCategories(5)])


def table(rows: Rows, columns: dict[str, str], missing: tuple[str, ...] = MISSING) -> RawTable:
    """Return records as a table, read as a Parquet file is."""
    typed, spelled = {}, {name: Spelling(frozenset(["", *missing])) for name in columns}
    for name, kind in columns.items():
        values = [row[name] for row in rows]
        texts = not any(value is not None for value in values)
        typed[name] = KINDS[kind].read(
            pa.array(values, pa.string() if texts else None), Place("test", name), spelled[name]
        )
    fields = fields_of(columns, typed)
    ids = pa.array([f"{row:04d}" for row in range(len(rows))])
    return RawTable("test", ids, *fields, columns=columns, missing=missing, spellings=spelled)


def records(columns: dict[str, Sequence[Any]]) -> Rows:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def same(one: Features, other: Features) -> bool:
    return (
        one.categorical.tobytes() == other.categorical.tobytes()
        and one.numeric.tobytes() == other.numeric.tobytes()
        and (one.embedding_rows, one.categorical_fields, one.numeric_fields)
        == (other.embedding_rows, other.categorical_fields, other.numeric_fields)
    )


@settings(max_examples=60)
@given(columns=TABLES, categories=ENCODERS)
def test_any_records_are_encoded_as_a_table_of_them(columns: dict[str, list[Any]], categories: Categories) -> None:
    rows = records(columns)
    raw = table(rows, {name: name for name in columns})
    state, _ = learn(raw, categories, np.arange(6))
    expected = state.encode(raw)
    encoder = state
    assert same(encoder.encode_records(rows), expected)
    for at in (0, 11):  # each by itself
        assert same(encoder.encode_records(rows[at : at + 1]), expected.take(np.array([at])))


def colours() -> EncoderState:
    columns = {"colour": ["red", "blue", None, "red"], "weight": [1.0, 2.0, None, 5.0]}
    raw = table(records(columns), {"colour": "category", "weight": "number"})
    return learn(raw, IndexedCategories(1), np.arange(4))[0]


def test_unseen_values_other_columns_and_no_records() -> None:
    encoder = colours()
    found = encoder.encode_records(
        [{"weight": None, "more": object(), "colour": "green"}, {"colour": "", "weight": " 2 "}]
    )
    assert found.categorical.tolist() == [[0], [1]]
    assert found.numeric[0].tolist() == [0, 1]
    assert found.numeric[1, 1] == 0
    nothing = encoder.encode_records([])
    assert (nothing.categorical.shape, nothing.numeric.shape) == ((0, 1), (0, 2))


def test_numpy_scalars_are_the_values_they_hold() -> None:
    encoder = colours()
    one, other = (
        encoder.encode_records([{"colour": colour, "weight": weight}])
        for colour, weight in ((7, 2.5), (np.int64(7), np.float32(2.5)))
    )
    assert same(one, other)


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        ("number", "1_000", "'1_000' is not a number (if it stands for a missing value, list it in `missing`)"),
        ("number", "１", "'１' is not a number"),
        ("number", "inf", "the number inf is too large for float32"),
        ("number", 10**400, "the number inf is too large for float32"),
        ("number", -1e39, "the number -1e+39 is too large for float32"),
        ("number", [1], "[1] is of type list, which is not numeric"),
        ("category", {"a": 1}, "{'a': 1} is of type dict, which cannot be read as text"),
        ("count", "9" * 5000, "the number inf is too large for float32"),
        ("hour", "14102199", "'14102199' cannot be read as a time"),
        ("date", "2024-02-30", "'2024-02-30' cannot be read as a time (an ISO 8601 date or timestamp)"),
        ("date", "20240229", "'20240229' cannot be read as a time"),
        ("date", "2024-02-29T24:00:00", "cannot be read as a time"),
        ("date", "0001-01-01T00:00:00+01:00", "cannot be read as a time"),
        ("date", 5, "5 is of type int, and dates must be dates, timestamps or text"),
    ],
)
def test_what_cannot_be_read_is_named(kind: str, value: Any, sentence: str) -> None:
    good = {"number": 1, "category": "a", "count": 1, "hour": "14102100"}
    rows = [{"x": good.get(kind, date(2024, 1, 1))}] * 2
    state, _ = learn(table(rows, {"x": kind}), IndexedCategories(1), np.arange(2))
    with pytest.raises(DataError, match=r"^record 3: column 'x': .*" + re.escape(sentence)):
        state.encode_records([*rows, {"x": value}])


def test_a_missing_column_is_named() -> None:
    with pytest.raises(DataError, match="record 2: there is no column 'weight', which the encoder has learned from"):
        colours().encode_records([{"colour": "red", "weight": 1}, {"colour": "red"}])


def test_text_that_is_no_unicode_is_a_value_like_others() -> None:
    rows = [{"x": "a"}, {"x": "b"}]
    state, _ = learn(table(rows, {"x": "category"}), HashedCategories(7), np.arange(2))
    assert 1 <= state.encode_records([{"x": "\ud800"}]).categorical[0, 0] <= 7


def test_a_moment_before_the_epoch_is_on_its_own_day() -> None:
    rows = [{"x": datetime(1969, 12, 31, 23) + timedelta(hours=step)} for step in range(3)]
    raw = table(rows, {"x": "date"})
    state, features = learn(raw, IndexedCategories(1), np.arange(3))
    assert same(state.encode_records(rows), features)
    assert len(set(features.categorical[:, 0])) == 3
