"""Which label of the vault a run releases: found by what it holds, refused where it would be released again."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
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
from tpsl.mechanisms import randomized_response
from tpsl.progress import no_progress
from tpsl.run.job import Job, make_job
from tpsl.run.local import Local
from tpsl.run.observer import UNWATCHED, Watching
from tpsl.run.one_process import train
from tpsl.run.over_network import join, serve
from tpsl.run.result import TrainResult
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import RunVault, VaultChoice, choose_vault, vault_name
from tpsl.select.search import tune
from tpsl.vault import Overlap, ReleasePolicy, Vault, VaultError, place, the_vault


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
    """A label party with its one vault, and runs by number."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.vault, self.runs = folder, the_vault(), 0
        self.notices: list[str] = []

    def train(self, epsilon: float = 1.0, records: Dataset | None = None, **options: Any) -> TrainResult:
        self.runs += 1
        records = data() if records is None else records
        choice: dict[str, Any] = {"vault": self.vault, "policy": ReleasePolicy(), **options}
        watching = Watching(progress=choice.pop("progress", no_progress), notice=self.notices.append)
        agreed = choice.pop("job", job(epsilon))
        vault = VaultChoice(choice.pop("vault"), **choice)
        return train(agreed, self.run, vault=vault, data=records, watching=watching)

    @property
    def run(self) -> Path:
        return self.folder / f"run-{self.runs}"

    def labels(self) -> list[str]:
        return Vault.labels(self.vault)

    def released(self, name: str = "synthetic") -> list[int]:
        with Vault.open(self.vault / name) as vault:
            return [entry.details["records"] for entry in vault.ledger().own if entry.kind == "released"]


@pytest.fixture
def party(tmp_path: Path) -> Party:
    return Party(tmp_path)


def test_a_second_run_finds_the_vault_and_releases_nothing(party: Party) -> None:
    first = party.train()
    assert any("storing 80 training labels" in notice for notice in party.notices)
    second = party.train()
    assert (party.labels(), party.released()) == (["synthetic"], [80])
    assert party.vault.stat().st_mode & 0o777 == 0o700
    assert first.total_epsilon == second.total_epsilon == 1.0
    assert not (party.run / "label" / "vault").exists()
    assert json.loads((party.run / "label" / "ledger.json").read_text())["vault"] == str(party.vault / "synthetic")


def test_records_that_are_new_are_added(party: Party) -> None:
    party.train(records=data(80), job=job(rows=80))
    party.train()
    known = set(data(80).ids.take(pa.array(data(80).train)).to_pylist())
    added = len(set(data().ids.take(pa.array(data().train)).to_pylist()) - known)
    assert added
    assert party.released() == [64, added]
    assert f"adding {added} training labels to the vault {party.vault / 'synthetic'}" in party.notices


@pytest.mark.parametrize("named", [False, True])
def test_labels_that_differ_are_an_error_until_they_are_corrected_in_the_vault(party: Party, named: bool) -> None:
    party.train()
    vault = party.vault / "synthetic"
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


def test_another_label_of_the_same_records_is_released_beside_the_first(party: Party) -> None:
    party.train()
    other = data().with_labels(np.random.default_rng(0).integers(0, 2, len(data())))
    party.train(records=other)
    assert party.labels() == ["synthetic", "synthetic-2"]
    assert party.train(records=other).total_epsilon == 1.0  # found by its labels
    assert party.released("synthetic-2") == [80]
    with Vault.open(party.vault / "synthetic") as vault:
        together = vault.ledger().all_labels
    assert together is not None and together.epsilon == 2.0


def test_further_records_of_a_label_are_added_to_it(party: Party) -> None:
    party.train()
    side = data().label_side
    others = replace(side.records, ids=pa.array([f"stranger {number}" for number in range(len(data()))]))
    party.train(records=Dataset(data().feature_sides, LabelSide(others, side.labels)))
    assert (party.labels(), party.released()) == (["synthetic"], [80, 80])


COMPOSING = ReleasePolicy(max_epsilon=1.0, compose=True)


def of_classes(classes: int, values: Callable[[np.ndarray], np.ndarray] = lambda labels: labels) -> Dataset:
    """The same labels, declared with another number of classes or with other values."""
    side = data().label_side
    records = replace(side.records, class_names=tuple("abcdefgh"[:classes]))
    return Dataset(
        data().feature_sides, LabelSide(records, TrueLabels(values(reveal(side.labels)), records.class_names))
    )


@pytest.mark.parametrize("classes", range(3, 8))
def test_other_numbers_of_classes_are_no_way_round_the_total(party: Party, classes: int) -> None:
    """A vote over releases of one label, each declared with other classes, tells more than the ε of each."""
    party.train(policy=COMPOSING)
    for policy, sentence in (
        (ReleasePolicy(), "local.compose=true"),
        (COMPOSING, "ε = 2 in all, more than the ε = 1 that"),
    ):
        with pytest.raises(VaultError, match=sentence):
            party.train(records=of_classes(classes), policy=policy)
    assert party.released() == [80]
    assert [entry["kind"] for entry in ledger_of(party)].count("released") == 1


def chosen(party: Party, name: str, records: Dataset, **choice: Any) -> RunVault:
    setup = RunSetup(job(), RunFolder(party.folder / name), watching=Watching(notice=party.notices.append))
    return choose_vault(setup, records.label_side, VaultChoice(**choice))


@pytest.mark.parametrize("named", [False, True], ids=["the vault", "a vault by its folder"])
@pytest.mark.parametrize("stored", [False, True], ids=["no vault", "a vault with another label"])
def test_labels_that_were_chosen_at_the_same_moment_are_stored_apart_or_as_one(
    party: Party, named: bool, stored: bool
) -> None:
    """Each run has looked before any other has stored: what it found is looked for again inside the transaction."""
    if stored:
        Vault.create(party.vault, label="other", classes=9).close()
    others = np.random.default_rng(0).integers(0, 2, len(data()))
    several = [data(), of_classes(3, lambda labels: labels), data(), data().with_labels(others)]
    choice = {"named": party.vault} if named else {}
    vaults = [chosen(party, f"run {number}", records, **choice) for number, records in enumerate(several)]
    for vault in vaults:
        vault.store()
    first, of_three, again, unlike = (vault.path.name for vault in vaults)
    assert first == again and len({first, of_three, unlike}) == 3
    for vault, records in zip(vaults, several, strict=True):
        with Vault.open(vault.path) as opened:
            overlap = opened.compare(records.label_side.records.training_ids, reveal(records.labels)[records.train])
            assert (overlap.known, overlap.differing) == (80, 0)
    assert len(party.labels()) == 3 + stored


def test_records_that_were_added_at_the_same_moment_keep_their_labels(party: Party) -> None:
    """Two runs find the label that knows none of their records; the second one stores its labels as another."""
    Vault.create(party.vault, label="synthetic").close()
    others = data().with_labels(np.random.default_rng(0).integers(0, 2, len(data())))
    vaults = [chosen(party, f"run {number}", records) for number, records in enumerate([data(), others])]
    assert {vault.path for vault in vaults} == {party.vault / "synthetic"}
    compare = Vault.compare

    def while_the_other_stores(vault: Vault, *asked: Any) -> Overlap:
        overlap = compare(vault, *asked)
        Vault.compare = compare  # type: ignore[method-assign]
        vaults[0].store()
        return overlap

    Vault.compare = while_the_other_stores  # type: ignore[method-assign]
    vaults[1].store()
    assert [vault.path.name for vault in vaults] == ["synthetic", "synthetic-2"]
    with Vault.open(vaults[0].path) as opened:
        assert opened.compare(data().label_side.records.training_ids, reveal(data().labels)[data().train]).same


def test_classes_that_are_reversed_are_no_way_round_the_total(party: Party) -> None:
    party.train(policy=COMPOSING)
    reversed_classes = of_classes(2, lambda labels: 1 - labels)
    for policy in (ReleasePolicy(), COMPOSING):
        with pytest.raises(VaultError):
            party.train(records=reversed_classes, policy=policy)
    party.train(records=reversed_classes, policy=ReleasePolicy(compose=True))
    for label in party.labels():
        with Vault.open(party.vault / label) as vault:
            statement = vault.statement()
            assert (
                vault.total(None).epsilon == vault.ledger().epsilon_per_record == statement["epsilon_per_record"] == 2
            )
    assert party.train().total_epsilon == 2.0, "the first label's own release costs nothing, and its total is the sum"


def test_a_second_vault_is_no_way_round_the_total(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    party.train()
    elsewhere = party.folder / "elsewhere"
    for policy in (ReleasePolicy(), ReleasePolicy(compose=True)):
        with pytest.raises(VaultError, match="only one vault can add up"):
            party.train(vault=elsewhere, policy=policy)
    monkeypatch.chdir(party.folder)  # from another folder the same vault is found
    with pytest.raises(VaultError, match="released before"):
        party.train(0.5)
    with pytest.raises(VaultError, match="only one vault can add up"):
        Vault.create(elsewhere)
    assert not elsewhere.exists()


def test_from_a_copy_of_the_vault_nothing_is_released(party: Party) -> None:
    party.train()
    copy = party.folder / "copy"
    with Vault.open(party.vault) as vault:
        vault.back_up(copy)
    with pytest.raises(VaultError, match="only one vault can add up"):
        party.train(0.5, vault=copy, policy=ReleasePolicy(compose=True))
    with Vault.open(copy) as opened, pytest.raises(VaultError, match="only one vault can add up"):
        opened.release(randomized_response(0.5), compose=True)


def test_a_vault_that_was_moved_is_found_again(party: Party) -> None:
    party.train()
    before, there = party.vault, party.folder / "archive" / "vault"
    assert place.move(there) == before
    assert the_vault() == there
    assert party.train(vault=None, job=job()).total_epsilon == 1.0
    party.vault = there
    assert party.released() == [80]


def test_labels_of_nobody_in_the_first_vault_may_be_apart(party: Party) -> None:
    party.train()
    elsewhere = party.folder / "elsewhere"
    Vault.create(elsewhere, label="other", apart="customers of another country").close()
    party.train(vault=elsewhere)
    with Vault.open(elsewhere) as vault:
        assert (vault.apart, vault.total(None).epsilon) == ("customers of another country", 1.0)


def ledger_of(party: Party) -> list[dict[str, Any]]:
    with Vault.open(party.vault / "synthetic") as vault:
        return [entry.as_dict() for entry in vault.ledger().entries]


def test_a_further_release_has_to_be_asked_for_and_is_totalled(party: Party) -> None:
    party.train(5.0)
    with pytest.raises(
        ValueError, match=r"80 records were released before under something else .* --set local.compose=true"
    ):
        party.train(1.0)
    composed = party.train(1.0, policy=ReleasePolicy(compose=True))
    assert (composed.total_epsilon, composed.epsilon, composed.private) == (6.0, 1.0, True)
    assert list(composed.as_dict())[5:9] == ["total_epsilon", "total_delta", "epsilon", "delta"]
    assert RunFolder(party.run).result() == composed
    note = json.loads((party.run / "label" / "ledger.json").read_text())
    with Vault.open(party.vault) as vault:
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
        party.train(progress=stop)
    run, party.runs = party.run, 0
    assert (run / "label" / "ledger.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match=r"was begun with the vault .*/vault/synthetic, not with"):
        party.train(vault=party.folder / "another")
    party.runs = 0
    party.train()
    assert (party.labels(), party.released()) == (["synthetic"], [80])


def test_an_experiment_has_a_scratch_vault_of_its_own(party: Party) -> None:
    party.train(vault=None, scratch=True)
    assert (party.labels(), Vault.exists(party.run / "label" / "vault")) == ([], True)
    with Vault.open(party.run / "label" / "vault") as vault:
        assert vault.scratch


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

    monkeypatch.setattr("tpsl.run.over_network.LabelServer", opened)
    asked = job(**{"epsilon": 1.0, **privacy})
    mine = Local(listen="127.0.0.1:0", **local)
    with pytest.raises(ValueError, match=sentence):
        serve(asked, mine, tmp_path / "run", insecure_loopback=True, watching=UNWATCHED)
    assert not the_vault().exists()  # and no label was stored


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
            lambda run: train(asked, run, vault=VaultChoice(the_vault()), data=data()),
            lambda run: tpsl.train(asked, run, vault=named, data=data(), progress=False),
            lambda run: tune(RunSetup(asked, RunFolder(run)), [{}], vault=VaultChoice(named), data=data()),
        ]
    ):
        with warnings.catch_warnings(), pytest.raises(VaultError, match=sentence):
            warnings.filterwarnings("ignore", "the noise is seeded")
            release(tmp_path / f"run {number}")
        assert not named.exists() and not the_vault().exists()
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


def test_changed_labels_are_told_before_the_port_is_open(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    party.train()
    with Vault.open(party.vault) as vault:
        vault.add(
            [([data().ids[int(data().train[0])].as_py()], [1 - int(reveal(data().labels)[data().train[0]])], None)]
        )
    monkeypatch.setattr("tpsl.run.over_network.LabelServer", None)
    mine = Local(listen="127.0.0.1:0")
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
        serve(agreed, Local(listen=address), sides["label"], **quiet)
        feature.join(60)
        assert not feature.is_alive()

    both()
    # Killed after its last step: the feature party has no result, and the label party no word of it.
    (sides["feature"] / "feature" / "result.json").unlink()
    for party, run in sides.items():
        (run / party / "confirmed.json").unlink(missing_ok=True)
    both()
    with Vault.open(the_vault()) as opened:
        assert [entry.kind for entry in opened.ledger().entries] == ["created", "added", "released"]
    assert not (sides["label"] / "label" / "vault").exists()
