"""What workers are given: arrays are mapped, features are not loaded again, and true labels are not handed on."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from tpsl.select.pool import Task, run_tasks
from tpsl.select.shared_records import SharedRecords
from tpsl.training.job import make_job
from tpsl.training.one_process import load_records


def _use(array: Any, same: Any, texts: Any, empty: Any, records: SharedRecords, numbers: float) -> None:
    """Raise unless all is as it was given, and then change it; another worker does the same."""
    assert array is same and array.tolist() == [0, 1, 2, 3, 4]
    assert texts.to_pylist() == ["a", "bc"] and len(empty) == 0
    assert torch.from_numpy(array).data_ptr() == array.ctypes.data and array.ctypes.data % 64 == 0
    array += 1
    assert records._sides is not None, "the features would be loaded again"
    data = records.dataset
    features: Any = data.feature_sides["feature"].features
    assert features is records._sides["feature"].features and float(features.numeric.sum()) == numbers
    assert len(data.labels) == len(data) == 200
    array -= 1


def test_workers_map_what_they_share_and_a_change_stays_with_one() -> None:
    job = make_job({"data": {"source": "synthetic", "rows": 200}}, {}, "test")
    data, array = load_records(job), np.arange(5.0)
    records, features = SharedRecords(job, {}, data), data.feature_sides["feature"].features
    numbers = float(features.numeric.sum())  # type: ignore[union-attr]
    check = partial(_use, array, array, pa.array(["a", "bc"]), np.empty(0), records, numbers)
    assert sorted(run_tasks([Task(name, check) for name in "abcd"], 2)) == list("abcd")
    assert array.tolist() == [0, 1, 2, 3, 4] and records.dataset is data


def test_no_true_label_is_handed_on() -> None:
    job = make_job({"data": {"source": "synthetic", "rows": 200}}, {}, "test")
    state = SharedRecords(job, {}, load_records(job)).__getstate__()
    assert state["_dataset"] is None and set(state) == {"_job", "_own", "_sides", "_dataset"}
