"""`tpsl tune`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.vault import the_vault


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.yaml"
    rates = [{"feature_optimizer": {"learning_rate": rate}} for rate in (0.001, 0.01)]
    path.write_text(yaml.safe_dump([{"training": rate} for rate in rates]))
    return path


def test_tuning_spends_once_and_writes_the_best_job(
    tpsl: Any, small_job: Path, space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "runs" / f"{small_job.stem}-tuned"
    command = ("tune", small_job, "--space", space)
    shown = tpsl(*command)
    assert shown.status == 0, shown.stderr
    assert "one release for all of them" in shown.stdout
    assert not re.search(r"\b400\b", shown.stdout)
    content = tpsl(*command, "--json").json()
    assert content == json.loads((out / "tune.json").read_text())
    assert [candidate["number"] for candidate in content["candidates"]] == [0, 1]
    assert content["best"]["configuration"] in shown.stdout
    vault = the_vault() / "synthetic"
    assert content["vault"] == str(vault)
    ledger = tpsl("vault", "ledger", "synthetic", "--json").json()
    assert ledger["epsilon_per_record"] == content["total_epsilon"] == content["epsilon"]
    page = tpsl("report", out, "--out", tmp_path / "page.html", "--json").json()
    assert [run["test_auc"] for run in page["runs"]] == [candidate["test_auc"] for candidate in content["candidates"]]
    again = tpsl("train", out / "best.yaml", "--vault", vault, "--out", tmp_path / "run", "--json").json()
    assert again["test_auc"] == content["best"]["test_auc"]


def test_tuning_asks_before_it_releases(tpsl: Any, table_job: Path, space: Path, tmp_path: Path) -> None:
    command = ("tune", table_job, "--out", tmp_path / "tuned", "--space", space)
    assert "local.max_epsilon" in tpsl(*command, "--set=local.max_epsilon=1").error()
    assert not the_vault().exists()
    assert tpsl("train", table_job, "--epsilon", 1, "--out", tmp_path / "run").status == 0
    assert "local.compose=true" in tpsl(*command).error()
    shown = tpsl(*command, "--set=local.compose=true")
    promised = "ε = 3 in all (this run's release: ε = 2): one release for all of them"
    assert shown.facts()["guarantee"] == promised
    assert tpsl(*command, "--json").json()["total_epsilon"] == 3.0  # released already: nothing to compose


def test_what_is_wrong_is_one_sentence(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("learning_rate: [1, 2]")
    tune = ("tune", small_job, "--out", tmp_path / "out", "--space")
    assert "bad.yaml: a space is a list" in tpsl(*tune, bad).error()
    assert "missing.yaml: cannot be read" in tpsl(*tune, tmp_path / "missing.yaml").error()
    bad.write_text("- {privacy: {epsilon: 8}}")
    assert "configuration 1 of the space: privacy.epsilon must stay" in tpsl(*tune, bad).error()
    bad.write_text("- [")
    assert "bad.yaml: is not YAML" in tpsl(*tune, bad).error()
    started = (*tune[:-1], "--set=local.start_from=runs/monday")
    assert "tuning takes no local.start_from" in tpsl(*started).error()
    statistic = (*tune[:-1], "--set=method=statistic")
    assert "nothing to tune" in tpsl(*statistic).error() and "train it with `tpsl train`" in tpsl(*statistic).error()
