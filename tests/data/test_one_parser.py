"""A record means the same however it is cut into files, blocks and formats, in training and in scoring.

Random tables of all kinds of columns, with odd spellings, are cut into random files, blocks and formats; the same
records come as JSON and as pandas and Polars frames. All give equal arrays, or all are refused.
"""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tpsl.data.encoder import EncoderState, IndexedCategories, learn
from tpsl.data.features import Features
from tpsl.data.party_file import PartyFile, encode_file
from tpsl.tables import DataError, pages, reading
from tpsl.tables.reading import dialect_of

MISSING = ("", "NA")
ROWS = 12
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)).map(lambda moment: moment.replace(microsecond=0))


def texts_of(*texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(*texts, st.sampled_from(["", "NA"]))


PLAIN = st.sampled_from(["0", "7", "-3", "12.5", "1e3", ".5", "+4", "0.125", "true", "False", " 8 ", "nan"])
TEXTS = {
    "category": texts_of(
        st.sampled_from(["a", "b", " a", "1", "1.0", "01", "True", "true", "TRUE", "false", "Ünal", "1.50", "no\nend"])
    ),
    "number": texts_of(PLAIN, st.floats(-1e30, 1e30).map(repr)),
    "german": texts_of(st.sampled_from(["1,5", "0,25", "7", "-12,125", "1.234,56", "1.234", "1.234.567,5", "0.5"])),
    "english": texts_of(st.sampled_from(["1.5", "1,234.56", "-12,345,678.9", "7", "1,234"])),
    "date": texts_of(MOMENTS.map(str), MOMENTS.map(lambda moment: moment.date().isoformat())),
    "zones": texts_of(
        st.sampled_from(["2024-02-29T10:00:00Z", "2024-02-29 10:00+01:00", "2024-02-29", "1999-12-31T23"])
    ),
    "day_first_date": texts_of(MOMENTS.map(lambda moment: f"{moment.day}.{moment.month}.{moment.year}")),
    "count": texts_of(st.integers(-(2**63), 2**63 - 1).map(str), st.sampled_from(["007", "1.0"])),
}
KIND_OF = {"german": "number", "english": "number", "zones": "date"}


@contextmanager
def blocks_of(rows: int) -> Iterator[None]:
    """Have files read in blocks of very few records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK_BYTES", 1 << 10)
        patch.setattr(pages, "BLOCK_ROWS", rows)
        yield


def written(folder: Path, values: Sequence[str], cuts: Sequence[int], form: str, delimiter: str) -> Path:
    """Write a column of texts as the files of one table; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(values)], strict=True)):
        if start == stop:
            continue
        ids = [f"{row:03d}" for row in range(start, stop)]
        if form == "parquet":
            part = pa.table({"id": ids, "x": pa.array(values[start:stop], pa.string())})
            pq.write_table(part, folder / f"{number}.parquet", row_group_size=3)
        else:
            with (folder / f"{number}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, delimiter=delimiter)
                writer.writerow(["id", "x"])
                writer.writerows(zip(ids, values[start:stop], strict=True))
    return folder


def trained(folder: Path, kind: str) -> tuple[EncoderState, Features] | type[DataError]:
    """Learn from all rows of a table; what is refused is its error's class."""
    file = PartyFile(folder, {"x": kind}, missing=MISSING, dialect=dialect_of(folder))
    try:
        return learn(file.read(label=False), IndexedCategories(1), np.arange(ROWS))
    except DataError as error:
        return type(error)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, type) or isinstance(other, type):
        return bool(one == other)
    (first, features), (second, others) = one, other
    return first.digest() == second.digest() and equal(features, others)


def equal(one: Features, other: Features) -> bool:
    return bool(
        one.categorical.tobytes() == other.categorical.tobytes() and one.numeric.tobytes() == other.numeric.tobytes()
    )


CUTS = st.lists(st.integers(0, ROWS), max_size=4).map(sorted)


@pytest.mark.parametrize("name", list(TEXTS))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_files_cut_differently_give_the_same_arrays_or_the_same_error(tmp_path: Path, name: str, data: Any) -> None:
    values = data.draw(st.lists(TEXTS[name], min_size=ROWS, max_size=ROWS))
    kind, delimiter = KIND_OF.get(name, name), ";" if name == "german" else ","
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    whole = trained(written(folder / "whole", values, [], "csv", delimiter), kind)
    with blocks_of(data.draw(st.integers(1, 5))):
        cut = trained(written(folder / "cut", values, data.draw(CUTS), "csv", delimiter), kind)
        assert same(cut, whole)
        if delimiter == ",":  # a Parquet file does not say which decimal sign its texts have
            parquet = trained(written(folder / "parquet", values, data.draw(CUTS), "parquet", delimiter), kind)
            assert same(parquet, whole)
    if isinstance(whole, type):
        return
    state, features = whole
    records = [{"x": text} for text in values]
    assert equal(state.encode_records(json.loads(json.dumps(records))), features)
    again = [part for _, part in encode_file(state, folder / "whole")]
    assert b"".join(part.numeric.tobytes() for part in again) == features.numeric.tobytes()


TYPED = {
    "category": st.one_of(
        st.lists(st.one_of(st.none(), st.booleans()), min_size=ROWS, max_size=ROWS),
        st.lists(st.one_of(st.none(), st.integers(-5, 5)), min_size=ROWS, max_size=ROWS),
        st.lists(st.one_of(st.none(), st.sampled_from([1.0, 2.5, -0.0, 0.1])), min_size=ROWS, max_size=ROWS),
        st.lists(st.one_of(st.none(), st.sampled_from(["a", "True", "1.0", ""])), min_size=ROWS, max_size=ROWS),
    ),
    "number": st.one_of(
        st.lists(st.one_of(st.none(), st.booleans()), min_size=ROWS, max_size=ROWS),
        st.lists(st.one_of(st.none(), st.floats(-1e30, 1e30)), min_size=ROWS, max_size=ROWS),
        st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40)), min_size=ROWS, max_size=ROWS),
    ),
    "date": st.lists(st.one_of(st.none(), MOMENTS), min_size=ROWS, max_size=ROWS),
}


@pytest.mark.parametrize("kind", list(TYPED))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@example(data=None)
def test_typed_columns_csv_json_and_frames_give_the_same_arrays(tmp_path: Path, kind: str, data: Any) -> None:
    values = [True, False, None] * 4 if data is None else data.draw(TYPED[kind])
    if data is None and kind == "date":
        values = [datetime(2024, 2, 29, 10), None] * 6
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    ids = [f"{row:03d}" for row in range(ROWS)]
    # A column without a single value has no type of its own.
    typed = pa.array(values, pa.string() if not any(value is not None for value in values) else None)
    pq.write_table(pa.table({"id": ids, "x": typed}), folder / "a.parquet")
    state, features = learn(
        PartyFile(folder / "a.parquet", {"x": kind}, missing=MISSING).read(label=False),
        IndexedCategories(1),
        np.arange(ROWS),
    )
    frame = pd.DataFrame({"id": ids, "x": values})
    frame.to_csv(folder / "pandas.csv", index=False)
    frame.to_parquet(folder / "pandas.parquet")
    polars = pl.DataFrame({"id": ids, "x": values})
    polars.write_csv(folder / "polars.csv")
    polars.write_parquet(folder / "polars.parquet")
    for name in ("pandas.csv", "pandas.parquet", "polars.csv", "polars.parquet"):
        (found,) = (part for _, part in encode_file(state, folder / name))
        assert equal(found, features), name
    for records in (frame.to_dict("records"), polars.to_dicts(), [{"x": value} for value in values]):
        assert equal(state.encode_records(records), features)
    if kind != "date":
        assert equal(state.encode_records(json.loads(json.dumps([{"x": value} for value in values]))), features)


def test_a_zone_at_scoring_is_refused_where_training_had_none(tmp_path: Path) -> None:
    values = ["2024-02-29 10:00:00"] * ROWS
    state, _ = trained(written(tmp_path / "a", values, [], "csv", ","), "date")  # type: ignore[misc]
    with pytest.raises(DataError, match="other rows of the column have times without a zone"):
        state.encode_records([{"x": datetime(2024, 2, 29, tzinfo=UTC)}])
    with pytest.raises(DataError, match="other rows of the column have times without a zone"):
        list(encode_file(state, written(tmp_path / "b", ["2024-02-29T10:00:00Z"], [], "csv", ",")))
    assert state.encode_records([{"x": None}, {"x": math.nan}]).numeric[0].tolist() is not None
