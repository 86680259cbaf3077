"""The blockwise order of an epoch: all rows once, neighbours together, any part at any time in little memory."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from tpsl.data import order
from tpsl.data.order import (
    BLOCK_ROWS,
    BLOCK_STREAM,
    WINDOW_BLOCKS,
    WINDOW_STREAM,
    BatchPlan,
    blockwise_part,
    permutation,
)

WINDOW_ROWS = BLOCK_ROWS * WINDOW_BLOCKS
SHORT = 77
ROWS = 2 * WINDOW_ROWS + 3 * BLOCK_ROWS + SHORT


def by_definition(rows: int, seed: int, epoch: int) -> list[np.ndarray]:  # type: ignore[type-arg]
    """The windows of an epoch."""
    blocks = [np.arange(start, min(start + BLOCK_ROWS, rows)) for start in range(0, rows, BLOCK_ROWS)]
    ordered = [blocks[number] for number in permutation(len(blocks), BLOCK_STREAM, seed, epoch)]
    windows = [np.concatenate(ordered[at : at + WINDOW_BLOCKS]) for at in range(0, len(ordered), WINDOW_BLOCKS)]
    return [
        window[permutation(len(window), WINDOW_STREAM, seed, epoch, number)] for number, window in enumerate(windows)
    ]


@pytest.mark.parametrize("rows", [1, BLOCK_ROWS, BLOCK_ROWS + 1, WINDOW_ROWS, ROWS])
def test_an_epoch_is_what_the_definition_says(rows: int) -> None:
    for seed, epoch in ((0, 0), (0, 1), (2**62, 5)):
        whole = np.concatenate(by_definition(rows, seed, epoch))
        assert np.array_equal(np.sort(whole), np.arange(rows))
        assert np.array_equal(blockwise_part(rows, seed, epoch, 0, rows), whole)
        for batch in (1000, 8192, WINDOW_ROWS - 1):
            plan = BatchPlan(rows, batch, seed, "blockwise")
            steps = range(plan.steps(epoch), plan.steps(epoch + 1))
            assert np.array_equal(np.concatenate([plan.batch(step) for step in steps]), whole)


def test_the_short_block_may_stand_in_any_window() -> None:
    places = set()
    for seed in range(12):
        ends = order._window_ends(ROWS, seed, 0)
        sizes = np.diff([0, *ends])
        places.add(int(np.flatnonzero(sizes % BLOCK_ROWS)[0]))
        assert ends[-1] == ROWS
    assert places == {0, 1, 2}


def test_literal_places_never_change() -> None:
    plan = BatchPlan(ROWS, 4, 3, "blockwise")
    far = 200_000 // 4
    assert [plan.batch(0).tolist(), plan.batch(far).tolist()] == [
        [426726, 199507, 349931, 347204],
        [198814, 70971, 496848, 506430],
    ]
    assert plan.digest() == "3d4b85d3c68f38f90dbb739dd1700212b9d63c7eaf18958a51cbd9fddbd8bc86"


def test_another_process_and_a_later_moment_find_the_same_batch() -> None:
    code = f"from tpsl.data.order import BatchPlan as P; print(P({ROWS}, 8192, 3, 'blockwise').batch(100).tolist())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    plan = BatchPlan(ROWS, 8192, 3, "blockwise")
    for step in (200, 3, 100):
        found = plan.batch(step)
    assert printed.strip() == str(found.tolist())


def test_a_window_mixes_as_many_places_as_it_has_blocks() -> None:
    batch = BatchPlan(ROWS, 8192, 0, "blockwise").batch(5)
    assert len(np.unique(batch // BLOCK_ROWS)) == WINDOW_BLOCKS
    again = BatchPlan(ROWS, 8192, 0, "blockwise").batch(5 + BatchPlan(ROWS, 8192).batches_per_epoch)
    assert len(np.intersect1d(batch, again)) < 2000  # another epoch, other company


def test_a_batch_of_a_billion_rows_takes_the_memory_of_a_few_windows() -> None:
    tracemalloc.start()
    try:
        plan = BatchPlan(10**9, 8192, 1, "blockwise")
        batches = [plan.batch(step) for step in (0, plan.batches_per_epoch // 2, plan.batches_per_epoch - 1)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert all(0 <= batch.min() <= batch.max() < 10**9 for batch in batches)
    assert peak < 10 * WINDOW_ROWS * 8
