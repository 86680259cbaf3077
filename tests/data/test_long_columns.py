"""Columns are the same in memory and in files without a name, which go with them."""

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpsl import spill
from tpsl.data import out_of_core
from tpsl.data.order import permutation, split_rows
from tpsl.data.out_of_core import (
    TextStack,
    ascending,
    chosen,
    counting,
    empty,
    is_mapped,
    mask_of,
    others,
    taken,
    taken_texts,
)
from tpsl.files import DiskFull
from tpsl.tables import DataError


@pytest.fixture(params=["in memory", "on disk"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(out_of_core, "_ROWS_AT_ONCE", 5)
    monkeypatch.setattr(spill, "ROWS_AT_ONCE", 5)
    if request.param == "on disk":
        monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)
    return bool(request.param == "on disk")


def test_columns_are_those_of_numpy(on_disk: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values, rows = rng.normal(size=23), rng.permutation(23)[:17]
    for found, expected in (
        (taken(values, rows), values[rows]),
        (counting(23), np.arange(23)),
        (mask_of(23, rows), np.isin(np.arange(23), rows)),
        (others(23, rows), np.setdiff1d(np.arange(23), rows)),
        (chosen(rows, np.arange(23) % 3 > 0), rows[rows % 3 > 0]),
        (ascending(rows), np.sort(rows)),
    ):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
        assert is_mapped(found) == on_disk
    assert others(4, np.arange(4)).size == taken(values, rows[:0]).size == empty(0, np.int8).size == 0
    assert not on_disk or not list((tmp_path / "cache").iterdir())  # no file has a name


def test_permutations_and_splits_do_not_depend_on_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = [permutation(1000, 3, 5), *split_rows(1000, "random", 0.3, 7)]
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path))
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)
    for found, expected in zip([permutation(1000, 3, 5), *split_rows(1000, "random", 0.3, 7)], in_memory, strict=True):
        assert np.array_equal(found, expected)
    assert is_mapped(permutation(1000, 3, 5))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(texts=st.lists(st.text(max_size=6), max_size=30), size=st.integers(1, 9), wide=st.booleans())
def test_texts_come_back_as_they_were_added(on_disk: bool, texts: list[str], size: int, wide: bool) -> None:
    column = pa.array(["before", *texts, "after"], pa.large_string() if wide else pa.string())[1:-1]
    stack = TextStack()
    for start in range(0, len(texts), size):
        stack.add(column[start : start + size])
    found: Any = stack.finish()
    assert found.to_pylist() == texts
    found.validate(full=True)
    order = np.arange(len(texts))[::-1]
    assert taken_texts(column, order).to_pylist() == texts[::-1]
    assert not on_disk or found.type == pa.string()


def test_a_full_disk_is_a_sentence_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setenv("TPSL_CACHE", str(tmp_path))
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull, match=f"{tmp_path}: cannot be written, the disk is full"):
        empty(10, np.int64)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written .* TPSL_CACHE names another folder"):
        empty(10, np.int64)


def test_what_lies_on_disk_is_no_memory_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path))

    def anonymous() -> int:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024

    before = anonymous()
    column = counting(20_000_000)  # 160 MB
    assert isinstance(column.base, mmap.mmap)
    assert anonymous() - before < 60e6
    assert column[-1] == 19_999_999
