"""`tpsl attack`: every attack on a recorded run, scored by the label party."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tpsl.attacks import ATTACKS
from tpsl.run.transcript import RECORDED_STEPS, Transcript


@pytest.fixture
def recorded(tpsl: Any, small_job: Path, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    assert (
        tpsl(
            "train", small_job, "--set=data.rows=2000", "--set=local.record_transcript=true", "--out", run, "--json"
        ).status
        == 0
    )
    return run


def test_json_has_every_attack_with_interval_theory_and_bound(tpsl: Any, recorded: Path) -> None:
    content = tpsl("attack", recorded, "--json").json()
    assert set(content["attacks"]) == set(ATTACKS) - {"statistic"}
    assert content["ceiling"] == pytest.approx(0.8808, abs=1e-4)
    assert content["closed_form"] == pytest.approx(0.8161, abs=1e-3)
    for attack in content["attacks"].values():
        assert 0 <= attack["auc_low"] <= attack["auc"] <= attack["auc_high"] <= 1
        assert attack["auc_folded"] == max(attack["auc"], 1 - attack["auc"])
        assert {"ceiling", "closed_form", "tpr_at_fpr_0_001", "tpr_at_fpr_0_01"} <= set(attack)
    shortest = content["attacks"]["shortest_distance"]
    assert shortest["auc"] == pytest.approx(shortest["closed_form"], abs=0.08)


def test_the_table_names_what_each_attacker_has(tpsl: Any, recorded: Path) -> None:
    shown = tpsl("attack", recorded, "--only", "norm", "--only", "no transcript")
    assert shown.status == 0, shown.stderr
    assert "norm" in shown.stdout
    assert "no transcript" in shown.stdout
    assert "no_transcript" not in shown.stdout + shown.stderr
    assert "spectral" not in shown.stdout


@pytest.mark.parametrize(
    ("elsewhere", "sentence"),
    [
        (
            "feature",
            "run: what feature party 'feature' has recorded is in its own run; with its consent, copy its fold",
        ),
        ("label", "run: guesses are scored with true labels, so the label party attacks, in its own run"),
    ],
)
def test_who_has_one_part_of_a_run_is_told_where_the_other_is(
    tpsl: Any, recorded: Path, elsewhere: str, sentence: str
) -> None:
    (recorded / elsewhere).rename(recorded.parent / elsewhere)
    refused = tpsl("attack", recorded)
    assert refused.status == 1
    assert sentence in refused.stderr


@pytest.mark.parametrize("columns", ["80", "100"])
def test_each_row_has_the_bound_of_its_own_kind_of_attacker(
    tpsl: Any, recorded: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    found = tpsl("attack", recorded, "--json").json()
    shown = tpsl("attack", recorded)
    lines = shown.stdout.splitlines()
    assert max(len(line) for line in lines if str(recorded) not in line) <= int(columns)
    names = {name.replace("_", " "): name for name in found["attacks"]}
    of_line = {
        line: max((name for name in names if line.startswith(f" {name} ")), key=len, default="") for line in lines
    }
    assert found["predicted_from"] == ["an additive model of the features", "the network's logits"]
    for name, attack in found["attacks"].items():
        (row,) = [line for line in lines if names.get(of_line[line]) == name]
        if attack["scored_by"] == "noisy label":
            assert attack["ceiling"] == attack["ceiling_low"] == attack["ceiling_high"] == found["ceiling"]
            assert row.rstrip().endswith(" 0.8808")
        else:
            assert attack["ceiling_low"] < attack["ceiling"] < attack["ceiling_high"]
            half = (attack["ceiling_high"] - attack["ceiling_low"]) / 2
            assert row.rstrip().endswith(f" ≈ {attack['ceiling']:.3f} ±{half:.3f}")
    kinds = {attack["scored_by"] for attack in found["attacks"].values()}
    assert kinds == {"noisy label", "features", "noisy label and features"}
    explained = " ".join(shown.stderr.split())
    assert "Bound 0.8808: what ε allows an attacker who scores by the noisy label alone" in explained
    assert "noisy label and best prediction from features together" in explained


def test_one_process_records_its_first_steps_unless_it_is_told_to_record_all(
    tpsl: Any, small_job: Path, tmp_path: Path
) -> None:
    longer = ("--set=data.rows=5000",)  # 80 steps of 50 records: a fifth is for the test
    for name, steps, flags in (
        ("plain", RECORDED_STEPS, ()),
        ("recorded", 80, ("--set=local.record_transcript=true",)),
    ):
        run = tmp_path / name
        shown = tpsl("train", small_job, *longer, *flags, "--vault", tmp_path / "vault", "--out", run)
        assert shown.facts()["play the attacker"] == f"tpsl attack {run}"
        assert len(Transcript(run / "feature" / "transcript")) == steps
    found = tpsl("attack", tmp_path / "plain", "--only", "likelihood", "--json").json()
    assert found["steps"] == RECORDED_STEPS
    assert contents(tmp_path / "plain") == contents(tmp_path / "recorded"), "recording changes nothing"


def contents(run: Path) -> dict[str, bytes]:
    """The weights of a run, by file."""
    return {str(file.relative_to(run)): file.read_bytes() for file in sorted(run.rglob("*.safetensors"))}


def test_errors_name_the_culprit(tpsl: Any, small_job: Path, recorded: Path, tmp_path: Path) -> None:
    assert "unknown attack 'magic'" in tpsl("attack", recorded, "--only", "magic").error()
    assert f"{tmp_path / 'nowhere'}: is not a run folder" in tpsl("attack", tmp_path / "nowhere").error()
    assert tpsl("train", small_job, "--out", tmp_path / "plain", "--json").status == 0
    shutil.rmtree(tmp_path / "plain" / "feature" / "transcript")
    assert "record one with --set local.record_transcript=true" in tpsl("attack", tmp_path / "plain").error()
    (recorded / "feature" / "transcript" / "gradients.f32").write_bytes(b"12345")
    assert "gradients.f32" in tpsl("attack", recorded).error()


def test_of_a_statistic_alone_one_attack_exists_and_its_attacker_is_described(
    tpsl: Any, small_job: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    given = ("--set=method=statistic", "--set=privacy.mechanism=discrete", "--epsilon", 1, "--set=data.rows=1000")
    trained = tpsl("train", small_job, *given, "--set=local.record_transcript=true", "--out", run)
    assert trained.status == 0, trained.stderr
    lines = [" ".join(line.split()) for line in trained.stdout.splitlines()]
    assert "mechanism gaussian statistic" in lines, "without the estimator and the draws of noisy labels"
    assert "samples/s" not in trained.stdout
    shown = tpsl("attack", run)
    assert shown.status == 0, shown.stderr
    assert (shown.facts()["mechanism"], shown.facts()["guarantee"]) == ("gaussian statistic", "ε = 1, δ = 1e-6")
    assert "statistic + all other labels" in " ".join(shown.stdout.split())
    explained = " ".join(shown.stderr.split())
    assert "granted the noisy sum, all vectors, all other labels" in explained
    assert "No gradients were sent, so no other attack exists." in explained
    assert "noisy label alone" not in explained
