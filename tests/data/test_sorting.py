"""The order of a column is that of Python's stable sort, and memory does not grow with the column."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.peak_memory import peak_bytes

from tpsl import spill
from tpsl.data import out_of_core
from tpsl.data.out_of_core import is_ascending, sorted_positions
from tpsl.data.rawtable import RawTable, sorted_by_id
from tpsl.tables import DataError

SKEWED = st.text("aé\U0001f600￿", max_size=3).map(lambda end: "common prefix " + end)


@pytest.fixture
def blocks_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Columns of more than a few rows lie on disk, and blocks have as many rows as a test says."""
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 1 << 20)

    def set_rows(rows: int) -> None:
        monkeypatch.setattr(out_of_core, "_ROWS_AT_ONCE", rows)
        monkeypatch.setattr(spill, "ROWS_AT_ONCE", rows)

    return set_rows


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    values=st.lists(st.text(max_size=3) | SKEWED, max_size=60)
    | st.lists(st.integers(-3, 3), max_size=60)
    | st.lists(st.floats(allow_nan=False), max_size=60),
    rows=st.integers(1, 70),
    wide=st.booleans(),
)
def test_the_order_is_that_of_a_stable_sort(blocks_of: Any, values: list[Any], rows: int, wide: bool) -> None:
    blocks_of(rows)
    texts = bool(values) and isinstance(values[0], str)
    column = pa.array(values, (pa.large_string() if wide else pa.string()) if texts else None)
    expected = sorted(range(len(values)), key=values.__getitem__)
    assert sorted_positions(column if values else pa.array([], pa.string())).tolist() == expected
    in_order = [values[at] for at in expected]
    assert is_ascending(pa.array(in_order, column.type))
    assert is_ascending(column) == (values == in_order)
    assert is_ascending(column, strictly=True) == (values == in_order and len(set(values)) == len(values))


@pytest.mark.parametrize("rows", [2, 7, 1000])
def test_ids_that_repeat_are_counted_and_the_first_is_named(blocks_of: Any, rows: int) -> None:
    blocks_of(rows)
    ids = [f"id {number * 7 % 100:02}" for number in range(100)]
    with pytest.raises(DataError, match=r"^a\.csv: id 'id 21' stands in row 4 and in row 101; 2 rows repeat an id"):
        sorted_by_id("a.csv", pa.array([*ids, "id 21", "id 70"]))


@pytest.mark.parametrize("rows", [3, 1000])
def test_records_are_in_the_order_of_time_and_then_of_ids(blocks_of: Any, rows: int) -> None:
    blocks_of(rows)
    ids, times = [str(number * 7 % 100) for number in range(100)], np.arange(100) % 9
    recent = times > 1
    found = RawTable("a.csv", pa.array(ids), times=times, recent=recent).canonical_order()
    expected = sorted(np.flatnonzero(recent).tolist(), key=lambda at: (times[at], ids[at]))
    assert found is not None and found.tolist() == expected


def test_memory_does_not_grow_with_the_ids(blocks_of: Any) -> None:
    """Whole numbers as ids, in their order as numbers, and a time that half of them have in common."""
    blocks_of(1 << 14)
    peaks = []
    for count in (100_000, 400_000):
        ids, times = pa.array(np.arange(count)).cast(pa.string()), np.arange(count) * 7 % count // 2 * 2
        times[: count // 2] = 5
        table = RawTable("a.csv", ids, times=times, recent=times > 3)
        peaks.append(peak_bytes(table.canonical_order))
    assert peaks[1] - peaks[0] < 300_000, peaks  # less than a byte for each id more
