import os
import weakref
from pathlib import Path

import numpy as np
import pytest

from tpsl.data import out_of_core
from tpsl.data.out_of_core import (
    ColumnStack,
    RowStack,
    is_mapped,
    release_pages,
)


@pytest.mark.parametrize("rows", [0, 1, 5, 100])
@pytest.mark.parametrize("count", [0, 1, 26])
def test_columns_become_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, count: int) -> None:
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(out_of_core, "_TRANSPOSED_AT_ONCE", 7)
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)
    columns = [np.random.default_rng(number).random(rows) for number in range(count)]
    in_memory, on_disk = ColumnStack(np.float32, rows), ColumnStack(np.float32, rows, large=True)
    for column in columns:
        in_memory.add([column])
        on_disk.add([column[:3], column[3:]])
    whole = np.array(columns, dtype=np.float32).reshape(count, rows).T
    for stack, is_on_disk in ((in_memory, False), (on_disk, whole.size > 0)):
        found = stack.finish()
        assert found.dtype == np.float32 and is_mapped(found) == is_on_disk
        assert np.array_equal(found, whole)
    assert not list((tmp_path / "cache").glob("*"))


@pytest.mark.parametrize("large_bytes", [100, 1 << 20], ids=["on disk", "in memory"])
@pytest.mark.parametrize("width", [0, 1, 3])
def test_rows_become_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large_bytes: int, width: int) -> None:
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", large_bytes)
    pieces = [np.random.default_rng(number).random((number, width), np.float32) for number in (5, 0, 70, 1)]
    stack = RowStack(np.float32, width)
    for piece in pieces:
        stack.add(piece)
    found = stack.finish()
    assert found.dtype == np.float32 and found.shape == (76, width)
    assert np.array_equal(found, np.concatenate(pieces))
    assert is_mapped(found) == (large_bytes == 100 and width > 0)
    release_pages(found)
    assert np.array_equal(found, np.concatenate(pieces))
    assert not list((tmp_path / "cache").glob("*")) and RowStack(np.int32, 2).finish().shape == (0, 2)


def test_rows_that_were_added_are_held_by_nobody() -> None:
    """Small results that are kept keep the memory around them from being used again."""
    stack, rows = RowStack(np.float32, 1), np.ones((4, 1), np.float32)
    added = weakref.ref(rows)
    stack.add(rows)
    rows[:] = 2
    del rows
    assert added() is None and np.array_equal(stack.finish(), np.ones((4, 1)))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc")
def test_released_pages_are_no_longer_in_memory_and_come_back(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    np.save(tmp_path / "a.npy", np.arange(1 << 24, dtype=np.int32))
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    before = resident()
    total = int(array.sum(dtype=np.int64))
    assert resident() - before > 32e6
    release_pages(array[3:])
    assert resident() - before < 16e6
    assert int(array.sum(dtype=np.int64)) == total == (1 << 23) * ((1 << 24) - 1)
    release_pages(np.arange(3))  # an array in memory stays as it is
