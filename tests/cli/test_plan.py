"""`tpsl plan`, as a user gives it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def quick_commands(quick_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(quick_programs / "python"))


def test_a_job_is_predicted_and_checked(tpsl: Any, small_job: Path) -> None:
    slow = ("--bandwidth", "1Mb/s", "--latency", "1s", "--price-hour", "3600", "--price-gb", "1e9")
    found = tpsl("plan", small_job, "--rows", "2000", "--seconds", "1", "--check", *slow, "--json").json()
    assert "load" in found["machine"]
    split, handed_over = found["predictions"]
    assert (split["exchange"], handed_over["exchange"]) == ("gradients", "labels")
    for prediction in (split, handed_over):
        assert prediction["rows"] == 2000 and prediction["steps"] == 32
        assert prediction["seconds"] == pytest.approx(sum(prediction["phases"].values()))
        assert prediction["machine_cost"] == pytest.approx(2 * prediction["seconds"])
        carried = prediction["bytes_to_label"] + prediction["bytes_from_label"]
        assert prediction["traffic_cost"] == pytest.approx(carried)
        assert {"label", "feature"} == prediction["memory_bytes"].keys()
    assert split["step_seconds"] > 1 > handed_over["step_seconds"]
    assert split["bytes_to_label"] > 2 * handed_over["bytes_to_label"]
    checked = {row["what"]: (row["predicted"], row["measured"]) for row in found["check"]}
    assert list(checked) == [
        *("time", "to label party", "from label party"),
        *("memory of label", "memory of feature"),
    ]
    assert checked["time"][0] == split["seconds_here"] < split["seconds"] - 32
    predicted, measured = checked["to label party"]
    assert predicted == pytest.approx(measured, rel=0.02, abs=1500)


def test_it_says_what_it_cannot_plan(tpsl: Any, small_job: Path) -> None:
    assert "--workers: 'two' is not LxF" in tpsl("plan", small_job, "--workers", "two").error()
    assert "'fast' is not a bandwidth" in tpsl("plan", small_job, "--bandwidth", "fast").error()
    late = ("--set", "training.labels=arriving", "--set", "training.order=arrival")
    assert "takes as long as they do" in tpsl("plan", small_job, *late).error()
