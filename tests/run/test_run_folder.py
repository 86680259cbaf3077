"""The run folder and its result: whole or absent, for their owner, for one job and one process."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.peak_memory import peak_bytes

from tpsl.run.job import Job, make_job
from tpsl.run.own_parts import OwnParts
from tpsl.run.result import TrainResult
from tpsl.run.run_folder import RunError, RunFolder

RESULT = TrainResult(
    run="runs/a",
    data="flights",
    mechanism="laplace",
    estimator="linear",
    draws=1,
    epsilon=1.0,
    delta=0.0,
    private=True,
    total_epsilon=2.0,
    total_delta=0.0,
    classes=2,
    train_records=80,
    statistic_records=0,
    test_records=20,
    epochs=2,
    kept_epoch=2,
    steps=10,
    validation_loss=0.52,
    validation_auc=0.74,
    validation_auc_low=0.70,
    validation_auc_high=0.78,
    test_auc=0.75,
    test_auc_low=0.7,
    test_auc_high=0.8,
    test_log_loss=0.5,
    test_accuracy=0.8,
    test_calibration_error=0.01,
    samples_per_second=1000.0,
    seconds=2.5,
)


def test_a_result_survives_json_with_what_json_lacks(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for changes in ({}, {"epsilon": math.inf, "total_epsilon": math.inf, "private": False}):
        run.finish(dataclasses.replace(RESULT, **changes))
        assert run.result() == dataclasses.replace(RESULT, **changes)
    run.finish(dataclasses.replace(RESULT, test_auc=math.nan, test_auc_low=math.nan, test_auc_high=math.nan))
    assert json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)["test_auc"] is None
    again = run.result()
    assert again is not None
    assert [math.isnan(value) for value in (again.test_auc, again.test_auc_low, again.test_auc_high)] == [True] * 3
    run.finish(RESULT)
    assert json.loads((tmp_path / "result.json").read_text()) == RESULT.as_dict()


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TrainResult)])
def test_a_field_that_is_missing_or_of_another_type_is_named(name: str, tmp_path: Path) -> None:
    written = RESULT.as_dict()
    for damaged in ({key: value for key, value in written.items() if key != name}, {**written, name: [1]}):
        (tmp_path / "result.json").write_text(json.dumps(damaged))
        with pytest.raises(RunError, match=rf"result\.json: is damaged \({name}: "):
            RunFolder(tmp_path).result()


def test_a_run_that_fails_before_it_has_anything_leaves_its_folder_free(tmp_path: Path) -> None:
    """What is wrong is found after the job was written, or Ctrl-C has come; a corrected job may use the same folder."""
    run = RunFolder(tmp_path / "run")
    other = make_job({"training": {"seed": 7}}, {}, "test")
    for error in (OSError("no such file"), KeyboardInterrupt("the other side never came")):
        with pytest.raises(type(error), match=str(error)), run.started(Job(), ["feature", "label"]):
            raise error
    with pytest.raises(OSError, match="disk full"), run.started(other, ["feature", "label"]):
        (run.label / "vault").mkdir()
        raise OSError("disk full")
    with pytest.raises(RunError, match="another job"), run.started(Job(), ["feature", "label"]):
        pass
    assert run.job() == other
    with run.started(other, ["feature", "label"]):
        assert (run.label / "vault").is_dir()


def test_a_finished_run_has_a_result(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with run.started(Job(), ["label"]):
        assert run.result() is None
        run.finish(RESULT)
    assert run.result() == RESULT
    with run.started(Job(), ["label"]):
        assert run.result() == RESULT
    assert run.job() == Job()


def test_the_folder_is_its_owners(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "deep" / "run")
    with run.started(Job(), ["label"]):
        assert {path.stat().st_mode & 0o777 for path in (run.path, run.label)} == {0o700}


def test_another_job_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with run.started(Job(), ["label"]):
        pass
    other = make_job({"training": {"epochs": 9}}, {}, "test")
    with pytest.raises(RunError, match=r"run: holds a run of another job \(training.epochs: 20 against 9\)"):
        run.started(other, ["label"]).__enter__()
    assert run.job() == Job()


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with run.started(Job(), ["label"]), pytest.raises(RunError, match="another process is training in this folder"):
        RunFolder(tmp_path / "run").started(Job(), ["label"]).__enter__()
    with run.started(Job(), ["label"]):
        pass


def test_what_a_run_leaves_that_was_killed_at_once_is_taken_over(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    (run.path / ".lock").touch()
    (run.path / ".job.yaml.new").write_text("data: {sou")
    with run.started(Job(), ["label"]):
        assert run.job() == Job()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo").touch()
    before = tmp_path.stat().st_mode
    with pytest.raises(RunError, match=r"holds no run but other files \(photo\)"):
        RunFolder(tmp_path).started(Job(), ["label"]).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["photo"]
    assert tmp_path.stat().st_mode == before


def test_a_folder_without_a_job_or_with_a_damaged_one_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        RunFolder(tmp_path).job()
    (tmp_path / "job.yaml").write_text("data: 3\n")
    with pytest.raises(RunError, match=r"job\.yaml: data: "):
        RunFolder(tmp_path).job()


def test_metrics_are_kept_and_a_damaged_line_is_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    entries: list[dict[str, Any]] = [{"epoch": 1, "step": 5, "test_auc": 0.5}, {"epoch": 2, "step": 9, "a": 1}]
    with run.started(Job(), ["label"]):
        assert run.metrics() == []
        run.write_metrics(entries)
    assert run.metrics() == entries
    for line in ("{", "[]", "8", "\xff"):
        (run.label / "metrics.jsonl").write_text(json.dumps(entries[0]) + "\n" + line + "\n", encoding="latin-1")
        with pytest.raises(RunError, match=r"metrics\.jsonl, line 2: is damaged"):
            run.metrics()


def test_a_start_removes_drafts_wherever_they_lie_and_nothing_else(tmp_path: Path) -> None:
    run, job = RunFolder(tmp_path / "run"), make_job({}, {}, "test")
    with run.started(job, ["label", "feature"]):
        run.write_metrics([{"epoch": 1}])
    drafts = [
        ".result.json.new",
        "feature/.result.json.new",
        "feature/.confirmed.json.new",
        "feature/transcript/.transcript.json.new",
        "label/predictions/.epoch-0001.safetensors.new",
        "label/NOT-PRIVATE/.inputs.new",
        "label/checkpoints/.step-000000003.new",
    ]
    kept = ["label/vault/vault.sqlite-journal", "label/.hidden", "label/report.new"]
    for name in (*drafts, *kept):
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"part")
    with run.started(job, ["label", "feature"]):
        left = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert left == {".lock", "job.yaml", "label/metrics.jsonl", *kept}


def test_a_run_goes_on_with_the_own_parts_it_was_begun_with(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    parts = OwnParts.model_validate({"bottom": {"factory": "networks:convolutions", "arguments": {"depth": 2}}})
    with pytest.raises(OSError), run.started(Job(), ["feature", "label"], own={"feature": parts}):
        raise OSError("nothing was kept")
    misspelt = OwnParts.model_validate({"bottom": "networks:convolution"})
    with run.started(Job(), ["feature", "label"], own={"feature": misspelt, "label": misspelt}):
        (run.label / "ledger.json").touch()
    with run.started(Job(), ["feature", "label"], own={"feature": parts}):
        (run.party("feature") / "bottom.safetensors").touch()
        (run.party("label") / "top.safetensors").touch()
    assert run.own_parts("feature") == parts and run.own_parts("label") == OwnParts()
    assert not (run.label / "own_parts.json").exists()
    with run.started(Job(), ["feature", "label"], own={"feature": parts}):
        pass
    others = OwnParts.model_validate({"bottom": {"factory": "networks:convolutions", "arguments": {"depth": 3}}})
    begun = "feature has begun this run with another bottom"
    for own in ({"feature": others}, {}):
        with pytest.raises(RunError, match=begun), run.started(Job(), ["feature", "label"], own=own):
            pass
    with (
        pytest.raises(RunError, match="label has begun this run with another bottom"),
        run.started(Job(), ["feature", "label"], own={"feature": parts, "label": parts}),
    ):
        pass
    with (
        pytest.raises(RunError, match="the parties are feature, label: there is no 'left' to have parts of its own"),
        run.started(Job(), ["feature", "label"], own={"left": parts}),
    ):
        pass
    (run.party("feature") / "own_parts.json").write_text("{}}")
    with pytest.raises(RunError, match=r"own_parts\.json: is damaged"):
        run.own_parts("feature")


def test_predictions_are_kept_and_read_without_a_copy_in_memory(tmp_path: Path) -> None:
    run, records = RunFolder(tmp_path), 1 << 20
    validation = np.empty(0, np.float32)
    test = np.memmap(tmp_path / "test", np.float32, "w+", shape=records)
    test[:] = np.random.default_rng(0).random(records, np.float32)
    kept: dict[str, np.ndarray] = {}
    assert peak_bytes(lambda: run.write_predictions(3, validation, test)) < records
    assert peak_bytes(lambda: kept.update(run.predictions(3))) < records
    assert np.array_equal(kept["test"], test) and kept["validation"].shape == (0,)
    assert [file.name for file in (tmp_path / "label" / "predictions").iterdir()] == ["epoch-0003.safetensors"]
    run.write_predictions(3, validation, np.zeros((5, 3), np.float32))
    assert run.predictions(3)["test"].shape == (5, 3)
    assert np.array_equal(kept["test"], test)  # what was replaced stays what it was


def test_predictions_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    run, path = RunFolder(tmp_path), tmp_path / "label" / "predictions" / "epoch-0001.safetensors"
    with pytest.raises(RunError, match=r"epoch-0001\.safetensors: cannot be read \(No such file"):
        run.predictions(1)
    run.write_predictions(1, np.ones(3, np.float32), np.ones(4, np.float32))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"epoch-0001\.safetensors: is damaged"):
        run.predictions(1)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match=r"epoch-0001\.safetensors: cannot be read \(it is no plain file"):
        run.predictions(1)
