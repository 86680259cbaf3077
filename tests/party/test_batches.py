"""Batches on a device: one copy of the inputs there for all runs on them, as long as the inputs live."""

from __future__ import annotations

import gc

import numpy as np
import torch

from tpsl.data.features import Features
from tpsl.party import batches
from tpsl.party.batches import Batches

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
