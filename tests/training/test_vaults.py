"""Which vault a run releases from: found by what it holds, refused where labels differ or another vault has them."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.ports import free_port

import tpsl
from tpsl.data.dataset import Dataset, load
from tpsl.data.sides import LabelSide
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.progress import no_progress
from tpsl.training.job import Job, make_job
from tpsl.training.join import join
from tpsl.training.local import Local
from tpsl.training.observer import UNWATCHED, Watching
from tpsl.training.one_process import train
from tpsl.training.result import TrainResult
from tpsl.training.run_folder import RunFolder
from tpsl.training.serve import serve
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import VaultChoice, vault_name
from tpsl.tuning.search import tune
from tpsl.vault import ReleasePolicy, Vault, VaultError
from tpsl.vault.place import vaults_in


def job(epsilon: float = 1.0, rows: int = 100, **privacy: Any) -> Job:
    content = {
        "data": {"source": "synthetic", "rows": rows, "numeric_fields": 3, "categorical_fields": 1},
        "privacy": {"mechanism": "discrete", "epsilon": epsilon, **privacy},
        "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
        "training": {"batch_size": 40, "epochs": 1},
    }
    return make_job(content, {}, "test")


@cache
def data(rows: int = 100) -> Dataset:
    return load(job(rows=rows).data)


def relabelled(*training_records: int) -> Dataset:
    """The data with other labels of these training records."""
    labels = reveal(data().labels).copy()
    labels[data().train[list(training_records)]] ^= 1
    return data().with_labels(labels)


class Party:
    """A label party with a place of its own for vaults, and runs by number."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place, self.runs = folder, folder / "place", 0
        self.notices: list[str] = []

    def train(self, epsilon: float = 1.0, records: Dataset | None = None, **options: Any) -> TrainResult:
        self.runs += 1
        records = data() if records is None else records
        choice: dict[str, Any] = {"vault": None, "place": self.place, "policy": ReleasePolicy(), **options}
        watching = Watching(progress=choice.pop("progress", no_progress), notice=self.notices.append)
        agreed = choice.pop("job", job(epsilon))
        vault = VaultChoice(choice.pop("vault"), **choice)
        return train(agreed, self.run, vault=vault, data=records, watching=watching)

    @property
    def run(self) -> Path:
        return self.folder / f"run-{self.runs}"

    def vaults(self) -> list[str]:
        return [path.name for path in vaults_in(self.place)]

    def released(self, name: str = "synthetic") -> list[int]:
        with Vault.open(self.place / name) as vault:
            return [entry.details["records"] for entry in vault.ledger().entries if entry.kind == "released"]


@pytest.fixture
def party(tmp_path: Path) -> Party:
    return Party(tmp_path)


def test_a_second_run_finds_the_vault_and_releases_nothing(party: Party) -> None:
    first = party.train()
    assert any("storing 80 training labels in the new vault" in notice for notice in party.notices)
    second = party.train()
    assert (party.vaults(), party.released()) == (["synthetic"], [80])
    assert (party.place / "synthetic").stat().st_mode & 0o777 == 0o700
    assert first.total_epsilon == second.total_epsilon == 1.0
    assert not (party.run / "label" / "vault").exists()
    assert json.loads((party.run / "label" / "ledger.json").read_text())["vault"] == str(party.place / "synthetic")


def test_records_that_are_new_are_added(party: Party) -> None:
    party.train(records=data(80), job=job(rows=80))
    party.train()
    known = set(data(80).ids.take(pa.array(data(80).train)).to_pylist())
    added = len(set(data().ids.take(pa.array(data().train)).to_pylist()) - known)
    assert added
    assert party.released() == [64, added]
    assert f"adding {added} training labels to the vault {party.place / 'synthetic'}" in party.notices


@pytest.mark.parametrize("named", [False, True])
def test_labels_that_differ_are_an_error_until_they_are_corrected_in_the_vault(party: Party, named: bool) -> None:
    party.train()
    vault = party.place / "synthetic"
    first = data().ids[int(data().train[3])].as_py()
    sentence = (
        f"^2 of the 80 training records that the vault {vault} knows have another label there .*'{first}'.*vault add"
    )
    with pytest.raises(ValueError, match=sentence):
        party.train(records=relabelled(3, 30), **({"vault": vault} if named else {}))
    corrected = relabelled(3, 30)
    with Vault.open(vault) as opened:
        opened.add([(corrected.ids.take(pa.array(corrected.train)), reveal(corrected.labels)[corrected.train], None)])
    assert party.train(records=corrected).total_epsilon == 1.0
    assert party.released() == [80]  # the release stays


def test_other_records_under_the_same_ids_get_a_vault_by_name(party: Party) -> None:
    party.train()
    other = data().with_labels(1 - reveal(data().labels))
    party.train(records=other, vault=party.place / "other")
    assert party.vaults() == ["other", "synthetic"]
    party.train(records=other)  # found by its labels
    assert party.released("other") == [80]


def test_a_vault_of_other_records_is_refused(party: Party) -> None:
    party.train()
    side = data().label_side
    others = replace(side.records, ids=pa.array([f"stranger {number}" for number in range(len(data()))]))
    strangers = Dataset(data().feature_sides, LabelSide(others, side.labels))
    with pytest.raises(
        ValueError, match="synthetic does not know 80 of the 80 training records: it holds others, or none"
    ):
        party.train(records=strangers, vault=party.place / "synthetic")
    party.train(records=strangers)
    assert party.vaults() == ["synthetic", "synthetic-2"]


def test_a_second_vault_for_released_records_has_to_be_asked_for(party: Party) -> None:
    party.train()
    elsewhere = party.folder / "elsewhere" / "vault"
    with pytest.raises(
        ValueError, match=r"^80 of the 80 training records were released by the vault .*synthetic.*--compose"
    ):
        party.train(vault=elsewhere)
    with pytest.raises(ValueError, match="--compose"):  # a few corrected labels make no other records of them
        party.train(records=relabelled(1, 2), vault=elsewhere)
    assert not elsewhere.exists()
    party.train(vault=elsewhere, policy=ReleasePolicy(compose=True))
    party.train(vault=elsewhere)  # it has released them: nothing more is spent
    # Beside a named vault counts like the place.
    with pytest.raises(ValueError, match=r"were released by the vault .*elsewhere/vault"):
        party.train(vault=elsewhere.with_name("third"), place=party.folder / "nowhere")


def test_several_vaults_with_the_records_are_named(party: Party) -> None:
    party.train()
    party.train(vault=party.place / "second", policy=ReleasePolicy(compose=True))
    with pytest.raises(ValueError, match=r"several vaults: .*second, .*synthetic; choose one with --vault"):
        party.train()
    party.train(vault=party.place / "second")


def test_a_further_release_has_to_be_asked_for_and_is_totalled(party: Party) -> None:
    party.train(5.0)
    with pytest.raises(ValueError, match=r"80 records were released before under something else .* --compose"):
        party.train(1.0)
    composed = party.train(1.0, policy=ReleasePolicy(compose=True))
    assert (composed.total_epsilon, composed.epsilon, composed.private) == (6.0, 1.0, True)
    assert list(composed.as_dict())[5:9] == ["total_epsilon", "total_delta", "epsilon", "delta"]
    assert RunFolder(party.run).result() == composed
    note = json.loads((party.run / "label" / "ledger.json").read_text())
    with Vault.open(party.place / "synthetic") as vault:
        assert (note["epsilon"], note["head"]) == (6.0, vault.head())
    with pytest.raises(ValueError, match="ε = 12 in all, more than the ε = 10"):
        party.train(6.0, policy=ReleasePolicy(compose=True))


def test_an_interrupted_run_goes_on_with_its_vault(party: Party) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, total: int, note: str) -> None:
        if done:
            raise Stop

    with pytest.raises(Stop):
        party.train(vault=party.folder / "mine" / "vault", progress=stop)
    run, party.runs = party.run, 0
    assert (run / "label" / "ledger.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match=r"was begun with the vault .*mine/vault, not with"):
        party.train(vault=party.folder / "another")
    party.runs = 0
    party.train()
    assert party.vaults() == []  # no other was made


def test_an_older_run_goes_on_with_the_vault_in_its_folder(party: Party) -> None:
    Vault.create(party.folder / "run-1" / "label" / "vault", batches=[]).close()
    (party.folder / "run-1" / "job.yaml").write_text(job().to_yaml())
    with Vault.open(party.folder / "run-1" / "label" / "vault") as vault:
        vault.add([(data().ids.take(pa.array(data().train)), reveal(data().labels)[data().train], None)])
    party.train()
    assert party.vaults() == []


def test_an_experiment_has_a_vault_of_its_own(party: Party) -> None:
    party.train(place=None)
    assert (party.vaults(), Vault.exists(party.run / "label" / "vault")) == ([], True)


@pytest.mark.parametrize(
    ("privacy", "local", "sentence"),
    [
        ({"mechanism": "none", "epsilon": None}, {}, "NOT PRIVATE"),
        ({"noise_seed": 1}, {}, "NOT PRIVATE"),
        ({"epsilon": 40.0}, {}, r"ε = 39\.99\d* in all, more than the ε = 10 that the label party permits"),
        ({"epsilon": 1.0, "draws": 2}, {"max_epsilon": 1.5}, r"ε = 2 in all, more than the ε = 1\.5"),
    ],
)
def test_the_label_party_refuses_before_its_port_is_open(
    tmp_path: Path, privacy: dict[str, Any], local: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*arguments: object, **options: object) -> None:
        raise AssertionError("the port was opened")

    monkeypatch.setattr("tpsl.training.serve.LabelServer", opened)
    asked = job(**{"epsilon": 1.0, **privacy})
    mine = Local(listen="127.0.0.1:0", vaults=tmp_path / "place", **local)
    with pytest.raises(ValueError, match=sentence):
        serve(asked, mine, tmp_path / "run", insecure_loopback=True, watching=UNWATCHED)
    assert not (tmp_path / "place").exists()  # and no label was stored


@pytest.mark.parametrize(
    ("privacy", "sentence"),
    [
        ({"epsilon": 35.0}, "more than the ε = 10 that the label party permits"),
        ({"epsilon": 1.0, "noise_seed": 1}, "NOT PRIVATE"),
        ({"mechanism": "none", "epsilon": None}, "NOT PRIVATE"),
    ],
)
def test_whoever_names_a_vault_has_the_same_limits(tmp_path: Path, privacy: dict[str, Any], sentence: str) -> None:
    """A path, a choice that says nothing of limits, Python's `train` and a search; a run's own vault has none."""
    asked, named = job(**privacy), tmp_path / "vault"
    for number, release in enumerate(
        [
            lambda run: train(asked, run, vault=named, data=data()),
            lambda run: train(asked, run, vault=VaultChoice(place=tmp_path / "place"), data=data()),
            lambda run: tpsl.train(asked, run, vault=named, data=data(), progress=False),
            lambda run: tune(RunSetup(asked, RunFolder(run)), [{}], vault=VaultChoice(named), data=data()),
        ]
    ):
        with warnings.catch_warnings(), pytest.raises(VaultError, match=sentence):
            warnings.filterwarnings("ignore", "the noise is seeded")
            release(tmp_path / f"run {number}")
        assert not named.exists() and not (tmp_path / "place").exists()
    train(asked, tmp_path / "own", data=data())
    permitting = ReleasePolicy(max_epsilon=40.0, not_private=True)
    train(asked, tmp_path / "permitted", vault=VaultChoice(named, policy=permitting), data=data())
    with pytest.raises(VaultError, match=sentence):  # the vault that the run was begun with is no less a shared one
        train(asked, tmp_path / "again", vault=named, data=data())


def test_a_vault_is_named_after_what_it_holds() -> None:
    table = {"features": [{"path": "a.csv", "numeric": ["x"]}], "label": {"path": "b.csv", "label": "has bought?"}}
    named = {
        "flights-late": {"source": "flights"},
        "flights-delay5": {"source": "flights", "task": "delay5"},
        "table-has-bought": {"source": "table", **table},
        "criteo": {"source": "criteo", "path": "train.txt"},
    }
    assert {name: vault_name(make_job({"data": content}, {}, "test")) for name, content in named.items()} == {
        name: name for name in named
    }


def test_a_label_with_other_classes_is_another_label(party: Party) -> None:
    party.train()
    records = replace(data().label_side.records, class_names=tuple("abcde"))
    five = Dataset(
        data().feature_sides, LabelSide(records, TrueLabels(np.arange(len(data())) % 5, records.class_names))
    )
    party.train(records=five)
    assert party.vaults() == ["synthetic", "synthetic-2"]


def test_changed_labels_are_told_before_the_port_is_open(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    party.train(vault=party.folder / "vault")
    with Vault.open(party.folder / "vault") as vault:
        vault.add(
            [([data().ids[int(data().train[0])].as_py()], [1 - int(reveal(data().labels)[data().train[0]])], None)]
        )
    monkeypatch.setattr("tpsl.training.serve.LabelServer", None)
    mine = Local(listen="127.0.0.1:0", vault=party.folder / "vault", vaults=party.place)
    with pytest.raises(ValueError, match=r"^1 of the 80 training records that the vault .* have another label there"):
        serve(job(), mine, party.folder / "served", insecure_loopback=True, watching=UNWATCHED)


def test_a_finished_run_that_was_not_confirmed_releases_nothing_anew(tmp_path: Path) -> None:
    """With a wide part a feature party that comes back is sent the estimates again: those of the one release."""
    agreed = make_job(job().model_dump(mode="json", exclude_none=True), {"model": {"wide": True}}, "test")
    address = f"127.0.0.1:{free_port()}"
    quiet: dict[str, Any] = {"watching": UNWATCHED, "insecure_loopback": True}
    sides = {"feature": tmp_path / "feature", "label": tmp_path / "label"}

    def both() -> None:
        feature = Thread(
            target=join, args=(agreed, "feature", Local(connect=address), sides["feature"]), kwargs=quiet, daemon=True
        )
        feature.start()
        serve(agreed, Local(listen=address, vaults=tmp_path / "place"), sides["label"], **quiet)
        feature.join(60)
        assert not feature.is_alive()

    both()
    # Killed after its last step: the feature party has no result, and the label party no word of it.
    (sides["feature"] / "feature" / "result.json").unlink()
    for party, run in sides.items():
        (run / party / "confirmed.json").unlink(missing_ok=True)
    both()
    (vault,) = vaults_in(tmp_path / "place")
    with Vault.open(vault) as opened:
        assert [entry.kind for entry in opened.ledger().entries] == ["created", "added", "released"]
    assert not (sides["label"] / "label" / "vault").exists()
