"""What records have spent in all, on the page of a run: by its vault, wherever it is, and by those that are gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import identity, laplace, randomized_response
from tpsl.report.hero import hero, promise_sentence
from tpsl.report.ledgers import Memory, result_now
from tpsl.report.run_list import spent_on
from tpsl.report.run_reading import read_run
from tpsl.report.run_table import summary, vault_sentences
from tpsl.report.watching import WatchedFolder
from tpsl.report.words import of_vault
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.run.result import TrainResult
from tpsl.run.run_folder import RunFolder
from tpsl.run.vaults import VaultChoice
from tpsl.vault import ReleasePolicy, Vault, the_vault
from tpsl.vault.place import move

SMALL: dict[str, Any] = {
    "data": {"source": "synthetic", "rows": 200, "numeric_fields": 3, "categorical_fields": 2},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 80, "epochs": 1},
}


@pytest.fixture
def elsewhere(tmp_path: Path) -> tuple[Path, Path]:
    """A run at ε = 5 whose vault lies outside its folder."""
    return trained(tmp_path / "runs" / "run", tmp_path / "vault", 5.0), tmp_path / "vault"


def trained(run: Path, vault: Path | VaultChoice | None = None, epsilon: float = 1.0, **other: Any) -> Path:
    """A run that releases from the label party's vault unless another is named."""
    job = make_job({**SMALL, "privacy": {"mechanism": "discrete", "epsilon": epsilon}, **other}, {}, "test")
    train(job, run, vault=vault or the_vault())
    return run


def compose(vault: Path, mechanism: Any = None) -> None:
    with Vault.open(vault) as opened:
        opened.release(mechanism or randomized_response(1.0), compose=True)


def test_a_later_release_shows_on_the_page_of_an_earlier_run(elsewhere: tuple[Path, Path]) -> None:
    run, vault = elsewhere
    before = read_run(run)
    assert (before.promise.total_epsilon_text, before.promise.epsilon_text) == ("5", "5")
    assert before.ledger and before.ledger.epsilon_per_record == 5.0
    compose(vault)
    after = read_run(run)
    assert (after.promise.total_epsilon_text, after.promise.epsilon_text) == ("6", "5")
    assert after.promise.ceiling == before.promise.ceiling
    assert "by this run (ε = 5) and by others" in promise_sentence(after)
    assert after.ledger and len(after.ledger.entries) == 4
    compose(vault, identity())
    assert (read_run(run).promise.total_epsilon, read_run(run).promise.private) == (None, False)


def test_records_of_other_runs_do_not_add_to_this_one(elsewhere: tuple[Path, Path]) -> None:
    run, vault = elsewhere
    with Vault.open(vault) as opened:
        opened.add([(["a stranger"], [1], None)])
        opened.release(laplace(9.0), ids=["a stranger"])
    assert read_run(run).promise.total_epsilon_text == "5"


def test_the_note_is_for_its_owner_and_stands_in_for_a_vault_that_is_gone(elsewhere: tuple[Path, Path]) -> None:
    run, vault = elsewhere
    compose(vault)
    note = run / "label" / "ledger.json"
    assert note.stat().st_mode & 0o777 == 0o600
    with Vault.open(vault) as opened:
        entries = opened.ledger().entries
    assert json.loads(note.read_text())["head"] == entries[2].hash  # before the composition
    vault.rename(vault.with_name("moved"))
    view = read_run(run)
    assert (view.ledger, view.promise.total_epsilon_text) == (None, "5")
    assert "is gone" in view.ledger_note and view.gone_vaults == 1


def total(run: Path) -> tuple[float | None, int]:
    view = read_run(run)
    return view.promise.total_epsilon, view.gone_vaults


def test_vaults_that_were_deleted_count_in_every_total(tmp_path: Path) -> None:
    """Three trainings, and each time the vault is deleted: three draws of the same labels, at the same place."""
    runs = [tmp_path / "runs" / name for name in ("one", "two", "three")]
    for run in runs:
        shutil.rmtree(the_vault(), ignore_errors=True)
        trained(run)
    assert [total(run) for run in runs] == [(3.0, 2)] * 3
    view = read_run(runs[2])
    card = hero(view, [view])
    assert card.cards[0].number.value == 3.0
    assert "20.1 times surer of a label (odds; at least ε = 3: 2 vaults that runs name are gone" in card.headline
    (row,) = spent_on(WatchedFolder(tmp_path / "runs").snapshot())
    assert (row.runs, row.total.epsilon) == (3, 3.0)
    assert row.notes[0] == "at least ε = 3: 2 vaults that runs name are gone"
    now, ledger = result_now(RunFolder(runs[2]), view_result(runs[2]))
    assert (now.total_epsilon, ledger.gone_vaults) == (3.0, 2)
    # What the others remember does not depend on where they lie, if they are given too.
    away = runs[0].rename(tmp_path / "away")
    assert total(runs[2]) == (2.0, 1)
    given = Memory.of([away, *runs[1:]])
    assert read_run(runs[2], memory=given).promise.total_epsilon == 3.0
    # The page for the other side says the same.


def view_result(run: Path) -> TrainResult:
    result = RunFolder(run).result()
    assert result is not None
    return result


def test_the_largest_note_of_a_vault_that_is_gone_counts_once(tmp_path: Path) -> None:
    first = trained(tmp_path / "first")
    composing = VaultChoice(the_vault(), ReleasePolicy(compose=True))
    second = trained(tmp_path / "second", composing, 2.0)
    assert (total(first), total(second)) == ((3.0, 0), (3.0, 0))
    backup = tmp_path / "backup"
    with Vault.open(the_vault()) as vault:
        head = vault.ledger().entries[-1].hash
    shutil.move(the_vault(), backup)
    assert (total(first), total(second)) == ((3.0, 1), (3.0, 1))
    third = trained(tmp_path / "third", epsilon=0.5)
    assert [total(run) for run in (first, second, third)] == [(3.5, 1)] * 3
    # Back again, beside a vault that is there: nothing was lost.
    assert read_run(third, memory=Memory.of([third])).gone_vaults == 1
    shutil.rmtree(the_vault())
    shutil.move(backup, the_vault())
    assert [total(run) for run in (first, third)] == [(3.5, 1)] * 2
    assert read_run(first).ledger and read_run(first).ledger.entries[-1].hash == head


def test_a_vault_that_was_moved_is_not_gone(tmp_path: Path) -> None:
    first = trained(tmp_path / "first")
    move(tmp_path / "elsewhere" / "labels")
    assert total(first) == (1.0, 0)
    compose(the_vault(), randomized_response(2.0))
    assert total(first) == (3.0, 0)  # by its ledger, at the new place
    assert WatchedFolder(first).snapshot().runs[0].vault == "labels/synthetic"


def test_an_older_copy_of_the_vault_forgets_nothing(tmp_path: Path) -> None:
    first = trained(tmp_path / "first")
    shutil.copytree(the_vault(), tmp_path / "copy")
    trained(tmp_path / "second", VaultChoice(the_vault(), ReleasePolicy(compose=True)), 2.0)
    shutil.rmtree(the_vault())
    shutil.move(tmp_path / "copy", the_vault())
    assert total(first) == total(tmp_path / "second") == (3.0, 0)


def test_scratch_runs_and_runs_on_other_data_count_nowhere(tmp_path: Path) -> None:
    job = make_job({**SMALL, "privacy": {"mechanism": "none"}}, {}, "test")
    train(job, tmp_path / "scratch")
    shutil.rmtree(tmp_path / "scratch" / "label" / "vault")
    trained(tmp_path / "other", data={**SMALL["data"], "rows": 300})
    shutil.rmtree(the_vault())
    run = trained(tmp_path / "run")
    assert total(run) == (1.0, 0)
    assert total(tmp_path / "scratch") == (None, 0)


def test_a_second_label_and_a_vault_apart_are_named(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    assert (read_run(run).epsilon_all_labels, read_run(run).apart) == (None, None)
    with Vault.open(the_vault()) as opened:
        ids = [ids for block, _ in opened.released(randomized_response(1.0)) for ids in block]
    values = np.random.default_rng(3).integers(0, 2, len(ids))
    with Vault.create(the_vault() / "other", batches=[(ids, values, None)]) as other:
        other.release(randomized_response(0.5))
    view = read_run(run)
    assert (view.promise.total_epsilon, view.epsilon_all_labels) == (1.0, 1.5)
    numbers = summary(view)
    assert (numbers["epsilon_all_labels"], numbers["gone_vaults"], numbers["apart"]) == (1.5, 0, None)
    assert vault_sentences([view]) == ["run: over all labels of the vault: ε = 1.5"]
    Vault.create(tmp_path / "apart", apart="patients of another country").close()
    second = read_run(trained(tmp_path / "second", tmp_path / "apart"))
    assert (second.apart, second.gone_vaults) == ("patients of another country", 0)
    assert of_vault(second) == ["This vault is apart from the label party’s other one: patients of another country"]


def test_the_live_page_follows_vaults_that_go_and_come_back(tmp_path: Path) -> None:
    first, runs = trained(tmp_path / "runs" / "first"), tmp_path / "runs"
    the_vault().rename(tmp_path / "kept")
    second = trained(runs / "second")
    watched = WatchedFolder(runs)

    def totals() -> list[tuple[float | None, int]]:
        watched._last = None
        return [(view.promise.total_epsilon, view.gone_vaults) for view in watched.snapshot().views]

    before = watched.snapshot().version
    assert totals() == [(2.0, 1), (2.0, 1)] == [total(first), total(second)]
    compose(the_vault(), randomized_response(2.0))
    assert totals() == [(4.0, 1), (4.0, 1)] and watched.snapshot().version != before
    move_to = tmp_path / "moved"
    (tmp_path / "kept").rename(move_to)
    note = runs / "first" / "label" / "ledger.json"
    content = json.loads(note.read_text())
    note.write_text(json.dumps({**content, "vault": str(move_to / Path(content["vault"]).name)}))
    assert totals() == [(1.0, 0), (3.0, 0)]
