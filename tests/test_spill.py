"""Rows that are spilled come back as they were written; the external sort gives the order of a stable sort."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.peak_memory import peak_bytes

from tpsl.spill import RowParts, SortedRows, SpillFile, by_high_bits


def opened_in(folder: Path) -> list[Path]:
    """Return the files of a folder that this process has open."""
    links = [handle.readlink() for handle in Path("/proc/self/fd").iterdir() if handle.is_symlink()]
    return [file for file in links if str(file).startswith(f"{folder}/")]


def test_parts_come_back_from_a_file_without_a_name(tmp_path: Path) -> None:
    rng, parts = np.random.default_rng(0), [b""] * 3
    with SpillFile(tmp_path, 3) as file:
        for number in range(3000):
            piece = f"person-{number}".encode() * int(rng.integers(0, 12))
            file.write(memoryview(np.frombuffer(piece, np.int8)) if number % 2 else piece, number % 3)
            parts[number % 3] += piece
        assert [file.read(part) for part in (2, 0, 1)] == [parts[2], parts[0], parts[1]]
        assert len(opened_in(tmp_path)) == 1 and list(tmp_path.iterdir()) == []
    assert opened_in(tmp_path) == []


def test_a_folder_that_is_missing_is_made_for_its_owner(tmp_path: Path) -> None:
    with SpillFile(tmp_path / "new" / "cache"):
        assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("at_once", [50, 1 << 21])
@pytest.mark.parametrize("bits", [5, 36, 64])
def test_every_pair_comes_back_once_in_parts_that_follow_each_other(tmp_path: Path, at_once: int, bits: int) -> None:
    keys = np.random.default_rng(0).integers(0, 1 << bits, 1000, np.uint64)
    with RowParts(tmp_path, 256, at_once) as rows:
        for start in range(0, 1000, 40):
            some = keys[start : start + 40]
            rows.write(by_high_bits(some, bits), some, np.arange(start, start + 40))
        assert len(opened_in(tmp_path)) == (at_once == 50)
        found = list(rows.parts())
        assert rows.count == 1000
    assert opened_in(tmp_path) == []
    assert len(found) == (256 if at_once == 50 else 1)
    ranges = [(here.min(), here.max()) for here, _ in found if len(here)]
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    values = np.concatenate([positions for _, positions in found])
    assert (keys[values] == np.concatenate([here for here, _ in found])).all()
    assert sorted(values.tolist()) == list(range(1000))


@pytest.mark.parametrize("at_once", [7, 1000])
def test_texts_and_rows_of_numbers_keep_their_type_and_order_within_a_part(tmp_path: Path, at_once: int) -> None:
    texts = ["", "é" * 3, "b\0", "", "c"] * 20
    wide = np.arange(300, dtype=np.float32).reshape(100, 3)
    part_of = np.arange(100) % 3
    with RowParts(tmp_path, 3, at_once) as rows:
        for start in range(0, 100, 11):
            some = slice(start, start + 11)
            rows.write(part_of[some], pa.array(texts[some], pa.large_string()).view(pa.large_binary()), wide[some])
        found = list(rows.parts())
    expected = range(100) if at_once == 1000 else np.argsort(part_of, kind="stable").tolist()
    assert [text.decode() for ids, _ in found for text in ids.to_pylist()] == [texts[row] for row in expected]
    assert all(numbers.dtype == np.float32 for _, numbers in found)
    assert np.array_equal(np.concatenate([numbers for _, numbers in found]), wide[list(expected)])


def test_no_rows_are_no_part(tmp_path: Path) -> None:
    with RowParts(tmp_path, 4) as rows, SortedRows(tmp_path, lambda: []) as ordered:
        assert list(rows.parts()) == list(ordered.parts()) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.lists(st.binary(max_size=2), max_size=60)
    | st.lists(st.integers(-3, 3), max_size=60)
    | st.lists(st.floats(allow_nan=False), max_size=60),
    block=st.integers(1, 70),
    at_once=st.integers(1, 70),
)
def test_the_order_is_that_of_a_stable_sort(tmp_path: Path, keys: list[Any], block: int, at_once: int) -> None:
    texts = bool(keys) and isinstance(keys[0], bytes)
    column = pa.array(keys, pa.large_binary()) if texts else np.array(keys)

    def blocks() -> Any:
        for start in range(0, len(keys), block):
            yield column[start : start + block], np.arange(start, min(start + block, len(keys)))

    with SortedRows(tmp_path, blocks, at_once) as ordered:
        found = list(ordered.parts())
    assert [row for _, rows in found for row in rows.tolist()] == sorted(range(len(keys)), key=keys.__getitem__)
    assert [key for here, _ in found for key in here.tolist()] == sorted(keys)


@pytest.mark.parametrize("different", [1, 10, 1 << 40])
@pytest.mark.parametrize("texts", [False, True])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, different: int, texts: bool) -> None:
    def peak(count: int) -> int:
        keys = np.random.default_rng(0).integers(0, different, count)

        def blocks() -> Any:
            for start in range(0, count, 1 << 12):
                some = keys[start : start + (1 << 12)]
                key = pa.array(some).cast(pa.large_string()).view(pa.large_binary()) if texts else some
                yield key, np.arange(start, start + len(some))

        def sort() -> None:
            with SortedRows(tmp_path, blocks, 1 << 14) as ordered:
                assert sum(len(rows) for _, rows in ordered.parts()) == count

        return peak_bytes(sort)

    assert peak(400_000) - peak(100_000) < 600_000
