"""What all runs together have spent on the same records, and which vaults say so."""

from __future__ import annotations

import shutil
from pathlib import Path

from tpsl.report.run_list import spent_on
from tpsl.report.watching import WatchedFolder


def test_a_row_for_each_data_set_names_its_vaults(runs: Path, tmp_path: Path) -> None:
    for name in ("laplace", "discrete"):
        shutil.copytree(runs / name, tmp_path / "runs" / name)
    (spent,) = spent_on(WatchedFolder(tmp_path / "runs").snapshot())
    assert (spent.data, spent.runs, spent.total.epsilon) == ("synthetic", 2, 2.0)
    assert spent.total.private and spent.notes == []
    assert spent.vaults == ["discrete/label/vault/synthetic", "laplace/label/vault/synthetic"]


def test_a_vault_out_of_reach_leaves_what_its_runs_have_noted(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "laplace", tmp_path / "runs" / "laplace")
    shutil.rmtree(tmp_path / "runs" / "laplace" / "label" / "vault")
    (spent,) = spent_on(WatchedFolder(tmp_path / "runs").snapshot())
    assert spent.total.epsilon == 2.0 and spent.vaults == ["laplace/label/vault/synthetic"]
    assert spent.notes[0] == "at least ε = 2: 1 vault that runs name is gone"
    assert spent.notes[1].startswith("The vault laplace/label/vault/synthetic is gone")


def test_a_feature_party_knows_no_vault(runs: Path) -> None:
    assert spent_on(WatchedFolder(runs, "feature").snapshot()) == []
