"""What all runs together have spent on the same records, and which vaults say so."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tpsl.mechanisms import build_mechanism
from tpsl.report.spent import spent_on
from tpsl.report.watching import WatchedFolder
from tpsl.training.run_folder import RunFolder
from tpsl.vault import Vault


def test_vaults_of_the_same_records_are_one_group(runs: Path, tmp_path: Path) -> None:
    for name in ("laplace", "discrete"):
        shutil.copytree(runs / name, tmp_path / "runs" / name)
    (spent,) = spent_on(WatchedFolder(tmp_path / "runs").snapshot())
    assert (spent["data"], spent["runs"], spent["epsilon_text"]) == ("synthetic", 2, "2.5")
    assert spent["private"] and spent["note"] == ""
    assert spent["vaults"] == [
        {"vault": "discrete/label/vault", "epsilon_text": "0.5"},
        {"vault": "laplace/label/vault", "epsilon_text": "2"},
    ]


def test_vaults_of_other_records_are_another_group(runs: Path, tmp_path: Path) -> None:
    for name in ("laplace", "discrete"):
        shutil.copytree(runs / name, tmp_path / "runs" / name)
    other = RunFolder(tmp_path / "runs" / "discrete")
    shutil.rmtree(other.label / "vault")
    ids = [f"patient {number}" for number in range(50)]
    with Vault.create(other.label / "vault", batches=[(np.array(ids), np.arange(50) % 2, None)]) as vault:
        vault.release(build_mechanism("discrete", 2, epsilon=3.0)[0])
    found = spent_on(WatchedFolder(tmp_path / "runs").snapshot())
    assert [(one["runs"], one["epsilon_text"], one["vaults"][0]["vault"]) for one in found] == [
        (1, "3", "discrete/label/vault"),
        (1, "2", "laplace/label/vault"),
    ]


def test_a_vault_out_of_reach_leaves_what_its_runs_have_noted(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "laplace", tmp_path / "runs" / "laplace")
    shutil.rmtree(tmp_path / "runs" / "laplace" / "label" / "vault")
    (spent,) = spent_on(WatchedFolder(tmp_path / "runs").snapshot())
    assert spent["epsilon_text"] == "2" and spent["vaults"] == [{"vault": "laplace/label/vault"}]
    assert spent["note"].startswith("The vault laplace/label/vault cannot be reached")


def test_a_feature_party_knows_no_vault(runs: Path) -> None:
    assert spent_on(WatchedFolder(runs, "feature").snapshot()) == []
