import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from tpsl.data import out_of_core
from tpsl.data.out_of_core import (
    ColumnStack,
    RowStack,
    cached,
    is_kept,
    is_mapped,
    keep,
    mapped,
    release_pages,
)
from tpsl.spill import cache_folder
from tpsl.tables import DataError


@pytest.mark.parametrize("rows", [0, 1, 5, 100])
@pytest.mark.parametrize("count", [0, 1, 26])
def test_columns_become_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, count: int) -> None:
    monkeypatch.setattr(out_of_core, "_TRANSPOSED_AT_ONCE", 7)
    columns = [np.random.default_rng(number).random(rows) for number in range(count)]
    in_memory, on_disk = ColumnStack(np.float32, rows), ColumnStack(np.float32, rows, tmp_path / "a.npy")
    for column in columns:
        in_memory.add([column])
        on_disk.add([column[:3], column[3:]])
    whole = np.array(columns, dtype=np.float32).reshape(count, rows).T
    for found in (in_memory.finish(), on_disk.finish(), mapped(tmp_path / "a.npy"), np.load(tmp_path / "a.npy")):
        assert found.dtype == np.float32
        assert np.array_equal(found, whole)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.npy"]


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


def test_an_array_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"")
    with pytest.raises(FileExistsError):
        ColumnStack(np.int32, 1, tmp_path / "a.npy").finish()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc")
def test_released_pages_are_no_longer_in_memory_and_come_back(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    np.save(tmp_path / "a.npy", np.arange(1 << 24, dtype=np.int32))
    array = mapped(tmp_path / "a.npy")
    before = resident()
    total = int(array.sum(dtype=np.int64))
    assert resident() - before > 32e6
    release_pages(array[3:])
    assert resident() - before < 16e6
    assert int(array.sum(dtype=np.int64)) == total == (1 << 23) * ((1 << 24) - 1)
    release_pages(np.arange(3))  # an array in memory stays as it is


def test_a_folder_is_filled_once_for_each_key() -> None:
    places = [cached("table", key) for key in ({"a": 1}, {"a": 2}, {"a": 1})]
    assert places[0] == places[2] != places[1]
    for place in places[:2]:
        keep(place, lambda folder: (folder / "content").write_text("") and None)
    assert sorted(cache_folder().iterdir()) == sorted(places[:2])
    assert cache_folder().stat().st_mode & 0o777 == 0o700
    assert places[0].stat().st_mode & 0o777 == 0o700


def test_a_faster_process_wins() -> None:
    place = cached("table", {})

    def write(folder: Path) -> None:
        (folder / "mine").write_text("")
        keep(place, lambda other: (other / "theirs").write_text("") and None)

    keep(place, write)
    assert [path.name for path in place.iterdir()] == ["theirs"]
    assert [path.name for path in cache_folder().iterdir()] == [place.name]


def test_what_a_killed_process_leaves_is_removed_by_the_next() -> None:
    code = "import time, tpsl.data.out_of_core as a; draft = a.Draft(); print(draft.path, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        draft = Path(process.stdout.readline().strip())
        (draft / "half").write_text("")
        keep(cached("table", {"a": 1}), lambda folder: None)
        assert draft.is_dir()  # its process is alive
        process.send_signal(signal.SIGKILL)
        process.wait()
    keep(cached("table", {"a": 2}), lambda folder: None)
    assert not draft.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"file: cannot be written .* TPSL_CACHE names another folder"):
        keep(cached("table", {}), lambda folder: None)


def test_old_versions_of_a_table_go_when_a_new_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(table: str, version: int) -> Path:
        place = cached(table, {"version": version})
        keep(place, lambda folder: (folder / "content").write_text("") and None)
        return place

    other, *places = kept("b.csv", 0), *(kept("a.csv", version) for version in range(5))
    assert all(map(is_kept, places))  # in use within the last hour
    for age, place in enumerate([*reversed(places), other]):
        os.utime(place, times=(0, 1e9 - age))
    assert is_kept(places[0])  # from now on the one that was used last
    places.append(kept("a.csv", 5))
    assert [place.is_dir() for place in places] == [True, False, False, False, True, True]
    assert other.is_dir()
