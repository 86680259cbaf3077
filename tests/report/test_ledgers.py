"""What records have spent in all, on the page of a run: its own vault, wherever it is, and all others known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpsl.mechanisms import identity, laplace, randomized_response
from tpsl.report.label_view import read_run
from tpsl.report.ledgers import known_vaults, with_sums
from tpsl.report.run_view import RunView
from tpsl.report.watching import WatchedFolder
from tpsl.training.job import make_job
from tpsl.training.one_process import train
from tpsl.training.run_folder import RunFolder
from tpsl.vault import Vault, sums_over

SMALL = {
    "data": {"source": "synthetic", "rows": 200, "numeric_fields": 3, "categorical_fields": 2},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 80, "epochs": 1},
}


@pytest.fixture
def elsewhere(tmp_path: Path) -> tuple[Path, Path]:
    """A run at ε = 5 whose vault lies outside its folder."""
    job = make_job({**SMALL, "privacy": {"mechanism": "discrete", "epsilon": 5.0}}, {}, "test")
    train(job, tmp_path / "runs" / "run", vault=tmp_path / "vault")
    return tmp_path / "runs" / "run", tmp_path / "vault"


def compose(vault: Path, mechanism: Any = None) -> None:
    with Vault.open(vault) as opened:
        opened.release(mechanism or randomized_response(1.0), compose=True)


def test_a_later_release_shows_on_the_page_of_an_earlier_run(elsewhere: tuple[Path, Path]) -> None:
    run, vault = elsewhere
    before = read_run(run)
    assert (before["promise"]["total_epsilon_text"], before["promise"]["epsilon_text"]) == ("5", "5")
    assert before["ledger"] and before["ledger"]["epsilon_text"] == "5"
    compose(vault)
    after = read_run(run)
    assert (after["promise"]["total_epsilon_text"], after["promise"]["epsilon_text"]) == ("6", "5")
    assert after["promise"]["ceiling"] == before["promise"]["ceiling"]
    assert "by this run (ε = 5) and by others" in after["promise"]["words"]
    assert after["ledger"] and len(after["ledger"]["entries"]) == 4
    compose(vault, identity())
    assert (read_run(run)["promise"]["total_epsilon"], read_run(run)["promise"]["private"]) == (None, False)


def test_records_of_other_runs_do_not_add_to_this_one(elsewhere: tuple[Path, Path]) -> None:
    run, vault = elsewhere
    with Vault.open(vault) as opened:
        opened.add([(["a stranger"], [1], None)])
        opened.release(laplace(9.0), ids=["a stranger"])
    assert read_run(run)["promise"]["total_epsilon_text"] == "5"


def test_the_note_is_for_its_owner_and_stands_in_for_a_vault_that_is_gone(elsewhere: tuple[Path, Path]) -> None:
    run, vault = elsewhere
    compose(vault)
    note = run / "label" / "ledger.json"
    assert note.stat().st_mode & 0o777 == 0o600
    with Vault.open(vault) as opened:
        entries = opened.ledger().entries
    assert json.loads(note.read_text())["head"] == entries[2].hash  # before the composition
    moved = vault.rename(vault.with_name("moved"))
    view = read_run(run)
    assert (view["ledger"], view["promise"]["total_epsilon_text"]) == (None, "5")
    assert "cannot be reached" in view["ledger_note"]
    assert read_run(run, vault=moved)["promise"]["total_epsilon_text"] == "6"
    with pytest.raises(ValueError, match="there is no vault at"):
        read_run(run, vault=vault)
    Vault.create(vault.with_name("other")).close()
    with pytest.raises(ValueError, match="has not released what the run"):
        read_run(run, vault=vault.with_name("other"))


def summed(*runs: Path) -> list[RunView]:
    vaults = [RunFolder(run).vault() for run in runs]
    return with_sums([read_run(run) for run in runs], vaults, sums_over(known_vaults(vaults)))


def test_vaults_that_released_the_same_records_are_added_up(
    runs: Path, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    two, half = summed(runs / "laplace", runs / "discrete")
    assert two["over_vaults"] == half["over_vaults"] is not None
    assert two["over_vaults"]["epsilon_text"] == "2.5"
    assert two["over_vaults"]["vaults"] == [
        {"vault": "discrete/label/vault", "epsilon_text": "0.5"},
        {"vault": "laplace/label/vault", "epsilon_text": "2"},
    ]
    open_, _ = summed(runs / "non-private", runs / "laplace")
    assert open_["over_vaults"] and (open_["over_vaults"]["epsilon"], open_["over_vaults"]["private"]) == (None, False)
    assert summed(runs / "laplace")[0]["over_vaults"] is None
    # A copy is the same release.
    assert summed(runs / "laplace", copied("laplace"))[0]["over_vaults"] is None


def test_the_live_page_counts_the_place_and_follows_it(copied: Callable[[str], Path], tmp_path: Path) -> None:
    run = copied("laplace")
    place = tmp_path / "vaults"
    watched = WatchedFolder(run)
    assert watched.snapshot().views[0]["over_vaults"] is None
    shutil.copytree(run / "label" / "vault", place / "copy")
    compose(place / "copy")
    watched._last = None
    (view,) = watched.snapshot().views
    assert view["over_vaults"] and view["over_vaults"]["epsilon_text"] == "3"
    (place / "copy" / "vault.sqlite-journal").touch()
    watched._last = None
    snapshot = watched.snapshot()
    assert snapshot.views[0]["over_vaults"] is None
    assert any("copy: is being written" in problem for problem in snapshot.problems)
