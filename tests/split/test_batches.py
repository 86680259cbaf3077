"""Batches on a device: one copy of the inputs there for all runs on them, as long as the inputs live."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.split import batches
from tpsl.split.batches import Batches

DEVICE = torch.device("meta")
"""Stands for a GPU: its tensors have no content."""


def features(rows: int = 5) -> Features:
    categorical = np.arange(2 * rows, dtype=np.int32).reshape(rows, 2)
    return Features(categorical, np.ones((rows, 1), np.float32), 2 * rows, ("a", "b"), ("c",))


def test_runs_on_the_same_inputs_share_one_copy_on_a_device() -> None:
    held, others = features(), features()
    first, second, third = Batches(held, DEVICE), Batches(held, DEVICE), Batches(others, DEVICE)
    assert [tuple(tensor.shape) for tensor in first._features] == [(5, 2), (5, 1)]
    assert all(a is b for a, b in zip(first._features, second._features, strict=True))
    assert not any(a is b for a, b in zip(first._features, third._features, strict=True))


def test_a_copy_goes_with_its_inputs() -> None:
    gc.collect()
    before, held = set(batches._resident), features()
    Batches(held, DEVICE)
    assert len(set(batches._resident) - before) == 2
    del held
    gc.collect()
    assert set(batches._resident) == before


def test_batches_are_those_of_the_rows() -> None:
    held, rows = features(), np.array([3, 0])
    categories, numbers = Batches(held).batch(rows)
    assert categories.tolist() == held.categorical[rows].tolist()
    assert numbers.tolist() == held.numeric[rows].tolist()


def test_features_on_disk_are_read_ahead_by_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, read = features(), Features.batch
    np.save(tmp_path / "categorical.npy", held.categorical)
    on_disk = replace(held, categorical=np.load(tmp_path / "categorical.npy", mmap_mode="r"))
    readers: list[str] = []

    def noted(self: Features, rows: Rows) -> Any:
        readers.append(threading.current_thread().name)
        return read(self, rows)

    monkeypatch.setattr(Features, "batch", noted)
    batches, first, second = Batches(on_disk), np.array([3, 0]), np.array([4, 4])
    batches.expect(first)
    batches.expect(second)  # one batch ahead is enough
    assert batches.batch(first)[0].tolist() == held.categorical[first].tolist()
    batches.expect(first)
    assert batches.batch(second)[0].tolist() == held.categorical[second].tolist()  # not what was expected
    assert batches.batch(second)[0].tolist() == held.categorical[second].tolist()
    assert readers == ["reads ahead_0", "reads ahead_0", "MainThread", "MainThread"]


def test_neither_memory_nor_a_users_source_is_read_ahead() -> None:
    class Source:
        def __len__(self) -> int:
            return 3

        def batch(self, rows: Rows) -> tuple[np.ndarray, ...]:
            assert threading.current_thread() is threading.main_thread()
            return (rows.astype(np.float32),)

    for each in (Batches(Source()), Batches(features())):
        each.expect(np.array([1]))
        assert each._ahead is None
    assert Batches(Source()).batch(np.array([2]))[0].tolist() == [2.0]
