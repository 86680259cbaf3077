"""`tpsl audit`: the lower bound on ε, and record and replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpsl.audit import AuditResult, Difference, ReplayResult


def test_a_sound_job_passes(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    # The confidence is high so that a sound mechanism fails by chance once in a million times.
    content = tpsl("audit", small_job, "--rows", 3000, "--confidence", 0.999999, "--json").json()
    assert content["passed"]
    assert content["claimed"] == 2.0
    assert 1.0 < content["lower_bound"] <= 2.0
    assert content["confidence"] == 0.999999
    assert content["canaries"] == 2400


def test_a_run_folder_will_do_and_out_keeps_the_runs(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    assert tpsl("train", small_job, "--out", tmp_path / "run", "--json").status == 0
    shown = tpsl("audit", tmp_path / "run", "--replay", "--out", tmp_path / "audit")
    assert shown.status == 0, shown.stderr
    assert "every byte of the transcript and every weight is the same" in shown.stdout
    assert (tmp_path / "audit" / "before" / "result.json").exists()


def test_replay_as_json(tpsl: Any, small_job: Path) -> None:
    content = tpsl("audit", small_job, "--replay", "--json").json()
    assert content["passed"]
    assert content["differences"] == []
    assert content["flipped"] > 100


def test_a_bound_above_the_claim_is_a_red_line_and_status_1(
    tpsl: Any, small_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = AuditResult(1.0, 0.0, 1.8, 0.95, False, 100, 100, 90, 0.9, 1e-9, 0.0, "laplace", "linear", 1, 1)
    monkeypatch.setattr("tpsl.audit.audit", lambda *args, **options: found)
    shown = tpsl("audit", small_job, "--json")
    assert shown.status == 1
    assert "the audit found ε ≥ 1.8000, more than the claimed 1" in shown.stderr


def test_a_leak_in_replay_is_a_red_line_and_status_1(
    tpsl: Any, small_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ReplayResult(False, 10, 3, 99, (Difference("feature/transcript/gradients.f32", 7),))
    monkeypatch.setattr("tpsl.audit.replay", lambda *args, **options: found)
    shown = tpsl("audit", small_job, "--replay")
    assert shown.status == 1
    assert "true labels leak: 1 files differ, the first is feature/transcript/gradients.f32" in shown.stderr


def test_errors_name_the_culprit(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    assert "nothing.yaml" in tpsl("audit", tmp_path / "nothing.yaml").error()
    assert "confidence" in tpsl("audit", small_job, "--confidence", 1.5).error()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert str(tmp_path / "full") in tpsl("audit", small_job, "--out", tmp_path / "full").error()
