"""`tpsl plan`, as a user gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_a_job_is_predicted_from_an_earlier_run(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    asked = ("plan", small_job, "--rows", "2000", "--run", runs, "--json")
    unknown = tpsl(*asked).json()
    assert unknown["speed"] is None and unknown["predictions"][0]["seconds"] is None
    assert tpsl("train", small_job, "--out", runs / "first").status == 0
    found = tpsl(*asked, "--bandwidth", "1Mb/s", "--latency", "1s").json()
    assert found["speed"]["run"] == str(runs / "first")
    split, handed_over = found["predictions"]
    assert (split["exchange"], handed_over["exchange"]) == ("gradients", "labels")
    for prediction in (split, handed_over):
        assert prediction["rows"] == 2000 and prediction["steps"] == 32
    assert split["step_seconds"] > 1 > handed_over["step_seconds"]
    assert split["seconds"] > 32 and split["bytes_to_label"] > 2 * handed_over["bytes_to_label"]
    assert split["bytes_to_label"] == unknown["predictions"][0]["bytes_to_label"]
    facts = tpsl(*asked[:-1]).facts()
    assert facts["speed"].endswith(f"as {runs / 'first'} had") and "evaluations as fast as training" in facts["assumed"]


def test_it_says_what_it_cannot_plan(tpsl: Any, small_job: Path) -> None:
    assert "'fast' is not a bandwidth" in tpsl("plan", small_job, "--bandwidth", "fast").error()
    late = ("--set=training.labels=arriving", "--set=training.order=arrival")
    assert "takes as long as they do" in tpsl("plan", small_job, *late).error()
