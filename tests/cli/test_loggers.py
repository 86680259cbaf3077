"""How the commands tell loggers what happens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest


def test_a_training_leaves_curves_in_the_label_partys_folder_and_nowhere_else(
    tpsl: Any, small_job: Path, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    result = tpsl("train", small_job, "--out", run, "--json").json()
    events = EventAccumulator(str(run / "label" / "tensorboard")).Reload()
    (point,) = events.Scalars("test_auc")
    assert (point.step, point.value) == (result["steps"], pytest.approx(result["test_auc"], rel=1e-6))
    assert [path.parent.parent.name for path in run.rglob("events.out.*")] == ["label"]
    assert tpsl("train", small_job, "--out", tmp_path / "none", "--set=local.log=none", "--json").status == 0
    assert list((tmp_path / "none").rglob("events.out.*")) == []


def test_a_logger_that_cannot_be_had_is_one_sentence(
    tpsl: Any, small_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    sentence = tpsl("train", small_job, "--out", tmp_path / "run", "--set=local.log=mlflow=http://127.0.0.1:1").error()
    assert sentence == "error: MLflow is not installed: `pip install 'tpsl[mlflow]'` gets it"
    assert not (tmp_path / "run").exists()
