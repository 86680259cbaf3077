"""Pages of rows that are kept give the batches that the features give, and are read once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.data import features
from tpsl.data.features import Features, RecentPages
from tpsl.data.order import BatchPlan

ROWS = 1003


class Counting(np.ndarray[Any, Any]):
    """Counts the slices that are read."""

    reads: list[tuple[int, int]]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            self.reads.append((key.start, key.stop))
        return np.asarray(super().__getitem__(key))


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Features:
    monkeypatch.setattr(features, "PAGE_ROWS", 16)
    monkeypatch.setattr(features, "_MOST_BYTES", 20 * 16 * 12)  # 20 pages of two categories and a number
    rng = np.random.default_rng(0)
    np.save(tmp_path / "c.npy", rng.integers(0, 50, (ROWS, 2)).astype(np.int32))
    np.save(tmp_path / "n.npy", rng.normal(size=(ROWS, 1)).astype(np.float32))
    return Features(
        np.load(tmp_path / "c.npy", mmap_mode="r"), np.load(tmp_path / "n.npy", mmap_mode="r"), 50, ("a", "b"), ("x",)
    )


def test_batches_are_those_of_the_features(on_disk: Features) -> None:
    pages, rng = RecentPages(on_disk), np.random.default_rng(1)
    for size in (1, 5, 40, 300, ROWS):  # the last ones lie in more pages than are kept
        for low in (0, 400, ROWS - 60):
            rows = rng.integers(low, min(low + 250, ROWS), size) if size < ROWS else rng.permutation(ROWS)
            for found, expected in zip(pages.batch(rows), on_disk.batch(rows), strict=True):
                assert found.dtype == expected.dtype
                assert np.array_equal(found, expected)


def test_a_page_is_read_once_while_its_rows_are_asked_for(on_disk: Features) -> None:
    counting: Any = on_disk.categorical.view(Counting)
    counting.reads = []
    features = replace(on_disk)
    object.__setattr__(features, "categorical", counting)
    pages = RecentPages(features)
    for step in range(10):
        pages.batch(BatchPlan(160, 16, 0).batch(step))  # ten pages, in any order
    assert sorted(counting.reads) == [(start, start + 16) for start in range(0, 160, 16)]
    pages.batch(np.arange(160, 480))  # all twenty places are taken by others
    counting.reads.clear()
    pages.batch(np.arange(464, 480))
    assert counting.reads == []
    pages.batch(np.arange(16))
    assert counting.reads == [(0, 16)]
