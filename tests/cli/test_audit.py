"""`tpsl audit`: all parts by default, one table, one JSON object, exit status 1 if any part accuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tpsl.audit import AuditResult, Difference, Examination, ReleasesResult, ReplayResult
from tpsl.run.run_folder import RunFolder


@pytest.fixture(autouse=True)
def _few_made_up_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpsl.audit.repeated_releases._RECORDS", 500)


def test_a_sound_job_passes_every_part(tpsl: Any, small_job: Path) -> None:
    content = tpsl("audit", small_job, "--set=data.rows=3000", "--confidence", 0.999999, "--json").json()
    assert content["passed"]
    assert content["accusations"] == []
    assert content["vault"] is None  # a job has none yet
    canaries, releases, replay = content["canaries"], content["releases"], content["replay"]
    assert canaries["passed"] and releases["passed"] and replay["passed"]
    assert canaries["claimed"] == 2.0
    assert 1.0 < canaries["lower_bound"] <= 2.0
    assert canaries["confidence"] == 0.999999
    assert canaries["canaries"] == 2400
    assert 500 < canaries["neighbours"] <= 600
    assert (releases["releases"], releases["records"]) == (64, 500)
    assert replay["differences"] == []
    assert replay["first_message"] is None
    assert replay["frames"] > 20


def test_a_run_folder_has_its_own_vault_examined_and_out_keeps_the_runs(
    tpsl: Any, small_job: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert tpsl("train", small_job, "--out", run, "--json").status == 0
    shown = tpsl("audit", run, "--only", "replay", "--only", "vault", "--out", tmp_path / "audit")
    assert shown.status == 0, shown.stderr
    assert "every byte of the transcript and every weight is the same" in shown.stdout
    assert "canaries" not in shown.stdout
    assert "one in a hundred" in " ".join(shown.stderr.split())  # what the tests of the vault cannot see
    assert (tmp_path / "audit" / "replay" / "before" / "result.json").exists()
    kept = json.loads((run / "label" / "examination.json").read_text())
    assert kept == {"passed": True, "accusations": [], "parts": ["replay", "vault"]}


def test_a_run_whose_vault_was_tampered_with_fails(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert tpsl("train", small_job, "--out", run, "--json").status == 0
    (RunFolder(run).vault().parent / "vault.sqlite").chmod(0o644)
    shown = tpsl("audit", run, "--only", "vault")
    assert shown.status == 1
    assert "vault: " in shown.stderr and "can be read by others" in shown.stderr


def test_replay_as_json(tpsl: Any, small_job: Path) -> None:
    content = tpsl("audit", small_job, "--only", "replay", "--json").json()
    assert content["passed"]
    assert content["canaries"] is None and content["releases"] is None
    assert content["replay"]["differences"] == []
    assert content["replay"]["flipped"] > 100


def accused(tpsl: Any, job: Path, monkeypatch: pytest.MonkeyPatch, found: Examination) -> Any:
    monkeypatch.setattr("tpsl.audit.examine", lambda *args, **options: found)
    shown = tpsl("audit", job, "--json")
    assert shown.status == 1
    assert json.loads(shown.stdout)["passed"] is False
    return shown


def test_a_bound_above_the_claim_is_a_red_line_and_status_1(
    tpsl: Any, small_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpsl.audit.canary_bound import judged

    found = judged(AuditResult(1.0, 0.0, 1.8, 0.95, True, 100, 100, 90, 0.9, 1e-9, 0.0, "laplace", "linear", 1, 1))
    shown = accused(tpsl, small_job, monkeypatch, Examination(canaries=found))
    assert "canaries: the audit found ε ≥ 1.8000, more than the claimed 1" in shown.stderr


def test_a_leak_in_replay_is_a_red_line_and_status_1(
    tpsl: Any, small_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (Difference("feature/transcript/gradients.f32", 7),)
    found = ReplayResult(False, 10, 3, 99, files, 20, 999, "label → feature: gradients of step 0, part 0")
    shown = accused(tpsl, small_job, monkeypatch, Examination(replay=found))
    assert "the first message that changes is label → feature: gradients of step 0, part 0" in shown.stderr
    assert "1 files differ, the first is feature/transcript/gradients.f32" in shown.stderr


def test_noise_that_repeats_is_a_red_line_and_status_1(
    tpsl: Any, small_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ReleasesResult(False, 64, 100, 1, "laplace", 100, ("two have noise in common",))
    shown = accused(tpsl, small_job, monkeypatch, Examination(releases=found))
    assert "releases: two have noise in common" in shown.stderr


def test_errors_name_the_culprit(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    assert "nothing.yaml" in tpsl("audit", tmp_path / "nothing.yaml").error()
    assert "confidence" in tpsl("audit", small_job, "--confidence", 1.5).error()
    assert "there is no part 'magic'" in tpsl("audit", small_job, "--only", "magic").error()
    assert "vault cannot be audited" in tpsl("audit", small_job, "--only", "vault").error()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert str(tmp_path / "full") in tpsl("audit", small_job, "--out", tmp_path / "full").error()


def test_an_audit_releases_no_more_than_is_permitted(tpsl: Any, tmp_path: Path) -> None:
    command = (
        "audit",
        "--set=data.source=synthetic",
        "--set=data.rows=200",
        "--set=training.epochs=1",
        "--canaries",
        50,
    )
    assert "local.not_private=true" in tpsl(*command, "--set=privacy.mechanism=none").error()
    assert "local.max_epsilon" in tpsl(*command, "--epsilon", 11).error()
