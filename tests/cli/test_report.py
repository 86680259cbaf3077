"""`tpsl report`: from trained, attacked and audited runs to one page, and one sentence for each wrong input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tpsl.report.findings import read_finding
from tpsl.report.run_reading import read_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run(tpsl: Any, small_job: Path, folder: Path) -> Path:
    """A recorded run, trained once for all tests."""
    if not (folder / "run").exists():
        assert (
            tpsl("train", small_job, "--set=local.record_transcript=true", "--out", folder / "run", "--json").status
            == 0
        )
    return folder / "run"


def test_what_attack_and_audit_found_is_in_the_report(
    tpsl: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpsl.audit.repeated_releases._RECORDS", 500)
    attacked = tpsl("attack", run, "--only", "norm", "--only", "likelihood", "--json").json()
    found = tpsl("audit", run, "--confidence", 0.999999, "--json").json()
    audited, replayed = found["canaries"], found["replay"]
    content = tpsl("report", run, "--out", tmp_path / "page.html", "--json").json()
    assert content["page"] == str(tmp_path / "page.html")
    shown = read_run(run)
    assert shown.attacks is not None
    assert {one.name: one.auc.value for one in shown.attacks.made} == {
        name: one["auc"] for name, one in attacked["attacks"].items()
    }
    assert shown.audited_epsilon == audited["lower_bound"]
    assert read_finding(run, "audit") == audited and read_finding(run, "replay") == replayed
    parts = ["canaries", "releases", "replay", "vault"]
    assert read_finding(run, "examination") == {"passed": True, "accusations": [], "parts": parts}
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(f'data-value="{attack["auc"]}"' in page for attack in attacked["attacks"].values())
    assert f"of {audited['guessed']} coins right" in page and f"{replayed['flipped']:,} true labels flipped" in page
    assert "The audit looked at canaries, releases, replay, vault and found nothing." in page
    (summary,) = content["runs"]
    assert summary["audited_epsilon"] == audited["lower_bound"]
    assert summary["test_auc"] == json.loads((run / "result.json").read_text())["test_auc"]
    # An audit of another job than the run's says nothing about the run.
    (run / "label" / "audit.json").unlink()
    assert (
        tpsl("audit", run, "--epsilon", 1.0, "--set=privacy.mechanism=laplace", "--only", "canaries", "--json").status
        == 0
    )
    assert read_finding(run, "audit") is None


def test_it_ends_with_a_table_and_the_path_of_the_page(tpsl: Any, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "stopped")
    (tmp_path / "stopped" / "result.json").unlink()
    shown = tpsl("report", run, tmp_path / "stopped", "--out", tmp_path / "page.html")
    assert shown.status == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == f"The page: {tmp_path / 'page.html'}"
    assert "stopped" in shown.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>run, stopped</title>" in page
    assert "unfinished: epoch" in page


def test_the_page_of_a_feature_party(tpsl: Any, run: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(run, whole)
    result = json.loads((whole / "result.json").read_text())
    # Numbers that stand nowhere else: a short one, as 0.65, may be a length in the style sheet too.
    known = {"test_auc": 0.6180339887498949, "test_log_loss": 0.5671432904097838, "test_accuracy": 0.7390851332151607}
    assert known.keys() <= result.keys()
    (whole / "result.json").write_text(json.dumps(result | known))
    content = tpsl("report", whole, "--for", "feature", "--out", tmp_path / "page.html", "--json").json()
    assert content["runs"][0]["test_auc"] is content["runs"][0]["attack_auc"] is None
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for number in known.values():
        assert str(number)[:6] not in page
    assert "For the feature party feature." in page
    tpsl("report", whole, "--out", tmp_path / "own.html")
    assert str(known["test_auc"])[:6] in (tmp_path / "own.html").read_text(encoding="utf-8")


def test_wrong_input_is_one_sentence(tpsl: Any, run: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "page.html")
    (tmp_path / "other").mkdir()
    assert "'nobody' is not a feature party" in tpsl("report", run, "--for", "nobody", *out).error()
    assert "there is no folder" in tpsl("report", run, "--out", tmp_path / "no" / "page.html").error()
    assert "it is a folder" in tpsl("report", run, "--out", tmp_path / "other").error()
    assert not (tmp_path / "page.html").exists()
    assert "Missing argument 'RUN…'" in tpsl("report").error(status=2)
