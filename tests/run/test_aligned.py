"""Training on records that were aligned: as on tables that were joined beforehand, and with a ledger of people."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from tpsl.alignment.keys import read_keys
from tpsl.alignment.parties import align_all
from tpsl.audit import examine
from tpsl.data.aligned import Alignment
from tpsl.data.config import TableData
from tpsl.data.dataset import load_label_party
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import randomized_response
from tpsl.report.ledgers import result_now
from tpsl.run.job import Job, load_job, make_job
from tpsl.run.local import Local, LocalError, own_data
from tpsl.run.observer import UNWATCHED, Observer, Watching
from tpsl.run.one_process import ALL_STEPS, train
from tpsl.run.over_network import join, serve
from tpsl.run.run_folder import RunFolder
from tpsl.run.vaults import VaultChoice
from tpsl.vault import ReleasePolicy, Vault, VaultError

SHOP, BANK, COMMON = 160, 120, 90


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A shop and a bank with customers in common, in rows that have nothing to do with each other."""
    rng = np.random.default_rng(0)
    people = rng.permutation(SHOP + BANK - COMMON)
    shop, bank = rng.permutation(people[:SHOP]), rng.permutation(people[SHOP - COMMON :])
    size = rng.normal(size=len(people))
    label = (size + rng.normal(size=len(people)) > 0).astype(int)
    pq.write_table(pa.table({"id": shop, "size": size[shop], "colour": shop % 7}), tmp_path / "shop.parquet")
    pq.write_table(pa.table({"id": bank, "label": label[bank]}), tmp_path / "bank.parquet")
    return tmp_path


def job(tables: Path, mode: str, privacy: Mapping[str, Any] | None = None, **label: Any) -> Job:
    shop = {"path": str(tables / "shop.parquet"), "party": "shop", "numeric": ["size"], "categorical": ["colour"]}
    content = {
        "data": {
            "source": "table",
            "features": [shop | {"alignment": str(tables / "aligned-shop")}],
            "label": {"path": str(tables / "bank.parquet"), "alignment": str(tables / "aligned-bank"), **label},
            "alignment": {"mode": mode},
        },
        "privacy": {"mechanism": "discrete", "epsilon": 1.0, **(privacy or {})},
        "training": {"batch_size": 32, "epochs": 2, "patience": 0},
    }
    return make_job(content, {}, "test")


def align(agreed: Job, digest: str = "d" * 64) -> npt.NDArray[np.uint8]:
    """Write the alignments by hand, in the order of the keys; return the matched keys."""
    data = agreed.data
    assert isinstance(data, TableData) and data.alignment is not None and data.alignment.mode != "size"
    shop, bank = (read_keys(file, data.alignment.keys) for file in (data.features[0], data.label))
    known = {key.tobytes(): row for key, row in zip(bank.digests[:, 0], bank.rows.tolist(), strict=True)}
    rows = {key.tobytes(): row for key, row in zip(shop.digests[:, 0], shop.rows.tolist(), strict=True)}
    keys = sorted(rows if data.alignment.mode == "label-only" else rows.keys() & known.keys())
    matched = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32)
    for party, file, source, held in (
        ("shop", data.features[0], shop.source, rows),
        ("label", data.label, bank.source, known),
    ):
        assert file.alignment is not None
        found = np.array([held.get(key, -1) for key in keys])
        shown = matched if data.alignment.mode == "both" else None
        Alignment(party, data.alignment.mode, digest, ("id",), source, found, None, shown).save(file.alignment)
    return matched


def joined(tables: Path, agreed: Job, keys: npt.NDArray[np.uint8]) -> Job:
    """Write the tables that a database would have joined, under the ids of the alignment."""
    shop, bank = Alignment.load(tables / "aligned-shop"), Alignment.load(tables / "aligned-bank")
    for name, alignment in (("shop", shop), ("bank", bank)):
        chosen = pq.read_table(tables / f"{name}.parquet").take(pa.array(alignment.rows))
        pq.write_table(chosen.set_column(0, "id", alignment.ids()), tables / f"joined-{name}.parquet")
    content = agreed.model_dump(mode="json")
    content["data"]["alignment"] = None
    content["data"]["features"][0]["path"] = str(tables / "joined-shop.parquet")
    content["data"]["label"]["path"] = str(tables / "joined-bank.parquet")
    return make_job(content, {}, "test")


def weights(run: Path) -> dict[str, npt.NDArray[Any]]:
    found = {}
    for party, half in (("shop", "bottom"), ("label", "top")):
        found |= {f"{half}.{name}": values for name, values in load_file(run / party / f"{half}.safetensors").items()}
    return found


def test_training_on_aligned_tables_is_training_on_joined_ones(tables: Path) -> None:
    aligned = job(tables, "both", {"noise_seed": 1})
    plain = joined(tables, aligned, align(aligned))
    results = [train(each, tables / name) for each, name in ((aligned, "aligned"), (plain, "joined"))]
    assert results[0].train_records == results[1].train_records == round(COMMON * 0.8)
    assert results[0].test_auc == results[1].test_auc
    first, second = weights(tables / "aligned"), weights(tables / "joined")
    assert first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_all_of_the_feature_partys_records_are_trained_on_where_only_the_label_party_knows(tables: Path) -> None:
    agreed = job(tables, "label-only")
    align(agreed)
    result = train(agreed, tables / "run", record_steps=ALL_STEPS)
    assert result.train_records + result.test_records == SHOP
    with Vault.open(RunFolder(tables / "run").vault()) as vault:
        assert vault.counts_people and vault.classes == 2
        ids = [id for block, _ in vault.released(randomized_response(1.0)) for id in block]
    assert len(ids) == result.train_records
    assert all(id.startswith("d" * 16 + "-") for id in ids), "known and unknown ones look alike"


@pytest.mark.parametrize("first", [10_000, 0], ids=["nobody", "everybody"])
def test_whether_anybody_is_known_stops_no_training(tables: Path, first: int) -> None:
    """A feature party that aligns a list of one person must not learn from an end or an error who that is."""
    ids = pq.read_table(tables / "shop.parquet")["id"].to_numpy()
    pq.write_table(pa.table({"id": ids + first}), tables / "bank.parquet")
    agreed = job(tables, "label-only", label=None)
    align(agreed)
    result = train(agreed, tables / "run")
    assert result.train_records + result.test_records == SHOP and np.isnan(result.test_auc)


def test_aligned_runs_pass_an_audit(tables: Path) -> None:
    """Records that the label party does not know have a label, which nothing but the release may depend on."""
    agreed = job(tables, "label-only", label=None)
    align(agreed)
    found = examine(agreed, tables / "audit", only=("canaries", "replay"), canaries=100)
    assert found.passed and found.replay is not None
    assert SHOP * 0.35 < found.replay.flipped < SHOP * 0.65, "those of unknown records too"


def choice(tables: Path, limit: float) -> VaultChoice:
    return VaultChoice(tables / "vault", policy=ReleasePolicy(max_epsilon=limit))


def test_people_who_are_aligned_again_spend_again(tables: Path) -> None:
    agreed = job(tables, "label-only")
    align(agreed)
    assert train(agreed, tables / "first", vault=choice(tables, 1.0)).total_epsilon == 1.0
    assert train(agreed, tables / "again", vault=choice(tables, 1.0)).total_epsilon == 1.0, "the same records"
    align(agreed, digest="e" * 64)
    with pytest.raises(VaultError, match="would bring people to ε = 2 in all, more than the ε = 1 that"):
        train(agreed, tables / "second", vault=choice(tables, 1.0))
    assert train(agreed, tables / "third", vault=choice(tables, 2.0)).total_epsilon == 2.0
    path = tables / "vault"
    with Vault.open(path) as vault:
        largest = vault.ledger().largest_unit
        assert largest is not None and (largest.epsilon, largest.records) == (2.0, 2)
        assert vault.statement()["largest_unit"]["epsilon"] == 2.0
    first = RunFolder(tables / "first")
    noted = first.result()
    assert noted is not None and noted.total_epsilon == 1.0 and result_now(first, noted)[0].total_epsilon == 2.0


def test_a_second_vault_for_the_same_people_has_to_be_asked_for(tables: Path) -> None:
    agreed = job(tables, "label-only")
    align(agreed)
    train(agreed, tables / "first", vault=choice(tables, 1.0))
    align(agreed, digest="e" * 64)
    for policy in (ReleasePolicy(max_epsilon=9.0), ReleasePolicy(max_epsilon=9.0, compose=True)):
        with pytest.raises(VaultError, match="only one vault can add up"):
            train(agreed, tables / "second", vault=VaultChoice(tables / "other", policy))


def test_labels_that_were_released_of_records_are_not_released_again_of_people(tables: Path) -> None:
    both = job(tables, "both")
    align(both)
    named = VaultChoice(tables / "vault")
    train(both, tables / "first", vault=named)
    agreed = job(tables, "label-only")
    align(agreed)
    with pytest.raises(VaultError, match=r"local\.compose=true"):
        train(agreed, tables / "second", vault=named)


def test_records_in_both_keep_their_noise_when_they_are_aligned_again(tables: Path) -> None:
    agreed = job(tables, "both")
    align(agreed)
    train(agreed, tables / "first", vault=choice(tables, 1.0))
    align(agreed, digest="e" * 64)
    train(agreed, tables / "second", vault=choice(tables, 1.0))
    first, second = weights(tables / "first"), weights(tables / "second")
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_job_file_knows_where_its_alignments_are(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tables)
    content = job(tables, "both").model_dump(mode="json")
    for file in (*content["data"]["features"], content["data"]["label"]):
        del file["alignment"]
    (tables / "sales.yaml").write_text(json.dumps(content))
    data = load_job(tables / "sales.yaml").data
    assert isinstance(data, TableData)
    assert data.features[0].alignment == tables / "alignments" / "sales-shop"
    assert data.label.alignment == tables / "alignments" / "sales-label"
    moved = own_data(load_job(tables / "sales.yaml"), "label", None, Local(alignment=tables / "mine").alignment)
    assert isinstance(moved.data, TableData) and moved.data.label.alignment == tables / "mine"
    assert moved.digest() == load_job(tables / "sales.yaml").digest(), "each party's own affair"
    with pytest.raises(LocalError, match=r"the job has no data\.alignment, but the folder of one was given: x"):
        own_data(Job(), "label", None, Path("x"))


def test_three_parties_align_and_train(tables: Path) -> None:
    """Each record is about the same person at all of them, whatever rows they have."""
    shops = {"shop": range(0, 120), "garage": range(40, 160)}
    rng = np.random.default_rng(1)
    files = []
    for party, people in shops.items():
        rows = rng.permutation(people)
        pq.write_table(pa.table({"id": rows, "size": rows / 100}), tables / f"{party}.parquet")
        files.append({"path": str(tables / f"{party}.parquet"), "party": party, "numeric": ["size"]})
    for mode, records in (("label-only", 80), ("both", 60)):
        content = job(tables, mode).model_dump(mode="json")
        folders = {party: tables / mode / party for party in ("shop", "garage", "label")}
        content["data"]["features"] = [file | {"alignment": str(folders[file["party"]])} for file in files]
        content["data"]["label"]["alignment"] = str(folders["label"])
        bank = rng.permutation(range(60, 180))
        pq.write_table(pa.table({"id": bank, "label": bank % 2}), tables / "bank.parquet")
        agreed = make_job(content, {}, "test")
        found = align_all(agreed)
        assert {len(each.result.alignment) for each in found.values()} == {records}
        people = {}
        for party, folder in folders.items():
            ids = pq.read_table(tables / f"{party if party != 'label' else 'bank'}.parquet")["id"].to_numpy()
            rows = Alignment.load(folder).rows
            people[party] = np.where(rows >= 0, ids[rows], -1)
        assert np.array_equal(people["shop"], people["garage"])
        assert np.array_equal(people["label"], np.where(people["shop"] >= 60, people["shop"], -1))
        assert train(agreed, tables / mode / "run").train_records == round(records * 0.8)


def unaligned(tables: Path) -> Job:
    """The same people in tables that were joined beforehand, under the bank's own ids."""
    shop, bank = (pq.read_table(tables / f"{name}.parquet") for name in ("shop", "bank"))
    rows = shop.join(bank, "id", join_type="inner")
    pq.write_table(rows, tables / "people.parquet")
    content = job(tables, "both").model_dump(mode="json")
    content["data"]["alignment"] = None
    for file in (content["data"]["features"][0], content["data"]["label"]):
        file |= {"path": str(tables / "people.parquet"), "alignment": None}
    return make_job(content, {}, "test")


ONE_RELEASE = ReleasePolicy(max_epsilon=1.0)


@pytest.mark.parametrize("first", ["unaligned", "both"])
def test_one_vault_knows_people_with_and_without_an_alignment(tables: Path, first: str) -> None:
    """Each run asks for its own 80 % of 90 people; whom both train on has one noisy label, and spends once."""
    both = job(tables, "both")
    align(both)
    jobs = {"unaligned": unaligned(tables), "both": both}
    for name in sorted(jobs, key=lambda name: name != first):
        run = train(jobs[name], tables / name, vault=VaultChoice(tables / "vault", policy=ONE_RELEASE))
        assert run.total_epsilon == 1.0
    path = tables / "vault"
    bank = set(pq.read_table(tables / "bank.parquet")["id"].cast(pa.string()).to_pylist())
    with Vault.open(path) as vault:
        assert vault.knows(sorted(bank)).sum() == len(vault) <= COMMON
    align(both, digest="e" * 64)
    other_epsilon = job(tables, "both", {"epsilon": 0.5})
    with pytest.raises(VaultError, match=r"local\.compose=true"):
        train(other_epsilon, tables / "again", vault=choice(tables, 9.0))


@pytest.mark.parametrize("mode", ["unaligned", "both"])
def test_people_of_a_secret_alignment_are_recognised_without_it_and_the_other_way_round(
    tables: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, other = job(tables, "label-only"), unaligned(tables) if mode == "unaligned" else job(tables, "both")
    order = {"vaults": (secret, other), "reversed": (other, secret)}
    for place, jobs in order.items():
        monkeypatch.setenv("TPSL_HOME", str(tables / place / "home"))
        chosen = VaultChoice(policy=ReleasePolicy(max_epsilon=9.0))
        for name, each in zip(("first", "second"), jobs, strict=True):
            if isinstance(each.data, TableData) and each.data.alignment is not None:
                align(each)
            if name == "first":
                train(each, tables / place / "runs" / name, vault=chosen)
                continue
            with pytest.raises(VaultError, match=r"local\.compose=true"):
                train(each, tables / place / "runs" / name, vault=chosen)
            with pytest.raises(VaultError, match="only one vault can add up"):
                train(each, tables / place / "runs" / "named", vault=replace(chosen, named=tables / f"{place}-other"))
            composing = replace(chosen, policy=ReleasePolicy(max_epsilon=9.0, compose=True))
            assert train(each, tables / place / "runs" / name, vault=composing).total_epsilon == 2.0


def test_whether_a_released_person_is_in_a_secret_alignment_decides_no_refusal(tables: Path) -> None:
    """The label party refuses for what its own file and vaults hold: a feature party could not tell who was known."""
    other = unaligned(tables)
    train(other, tables / "first", vault=choice(tables, 9.0))
    shop = pq.read_table(tables / "shop.parquet")
    strangers = shop.set_column(0, "id", pa.array(shop["id"].to_numpy() + 10_000))
    for name, table in (("known", shop), ("strangers", strangers)):
        pq.write_table(table, tables / "shop.parquet")
        secret = job(tables, "label-only")
        align(secret)
        with pytest.raises(VaultError, match=r"local\.compose=true"):
            train(secret, tables / name, vault=choice(tables, 9.0))


def test_what_recognises_people_is_in_no_statement(tables: Path) -> None:
    secret = job(tables, "label-only")
    align(secret)
    train(secret, tables / "run", vault=choice(tables, 9.0))
    path = tables / "vault"
    with Vault.open(path) as vault:
        before = vault.statement()
        vault.keep_file_records(pa.array(["somebody"]), np.array([1]))
        assert vault.statement() == before and vault.verify() == []


class Peer(Observer):
    """A feature party that comes as soon as the label party listens."""

    def __init__(self, agreed: Job, run: Path) -> None:
        self._agreed, self._run, self._thread = agreed, run, Thread()

    def event(self, name: str, **facts: Any) -> None:
        if name == "listening":
            quiet: dict[str, Any] = {"watching": UNWATCHED, "insecure_loopback": True}
            local = Local(connect=str(facts["address"]))
            self._thread = Thread(target=join, args=(self._agreed, "shop", local, self._run), kwargs=quiet)
            self._thread.start()

    def sees(self) -> bool:
        """Whether the label party has listened and the run was finished."""
        if self._thread.ident is not None:
            self._thread.join(60)
        return (self._run / "shop" / "result.json").exists()


def served(agreed: Job, run: Path, local: Local) -> tuple[bool, str | None]:
    """Whether the feature party has trained, and how the label party's process ends otherwise."""
    peer = Peer(agreed, run / "shop-side")
    try:
        serve(agreed, local, run / "bank-side", watching=Watching(peer), insecure_loopback=True)
    except VaultError as error:
        return peer.sees(), str(error)
    return peer.sees(), None


def test_whether_a_person_with_several_records_is_known_shows_nowhere(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feature party lists five records of one person; it sees the same if the label party's list has all of them."""
    shop, bank = (pq.read_table(tables / f"{name}.parquet") for name in ("shop", "bank"))
    ids, found = 9000 + np.arange(5), {}
    person = pa.table({"id": ids, "size": np.zeros(5), "colour": ids % 7})
    pq.write_table(pa.concat_tables([shop, person]), tables / "shop.parquet")
    others = pa.table({"id": bank["id"], "customer": bank["id"].cast(pa.string())})
    rows = pa.table({"id": ids, "customer": ["the person"] * 5})
    for known, list_of_buyers in ((True, pa.concat_tables([others, rows])), (False, others)):
        folder = tables / str(known)
        monkeypatch.setenv("TPSL_HOME", str(folder / "home"))
        local = Local(listen="127.0.0.1:0", vault=folder / "vault", max_epsilon=2.5)
        pq.write_table(list_of_buyers, tables / "bank.parquet")
        agreed, seen = job(tables, "label-only", label=None, unit="customer"), []
        for digest in "def":  # the third brings people to ε = 3
            align(agreed, digest=digest * 64)
            seen.append(served(agreed, folder / digest, local))
        assert [trained for trained, _ in seen] == [True, True, False]
        path = folder / "vault"
        with Vault.open(path) as vault:
            changes = ("ledger_head",)
            stated = {name: value for name, value in vault.statement().items() if name not in changes}
            for release in stated["releases"]:
                del release["first"], release["last"]
            total, largest = vault.total(None), vault.ledger().largest_unit
        found[known] = [(trained, error and error.replace(str(folder), "")) for trained, error in seen], stated, total
        assert largest is not None and (largest.epsilon, largest.records) == (2.0, 2)
        assert sum(reveal(load_label_party(agreed.data).labels)) == COMMON + known, "one of five"
    assert found[True] == found[False]
    assert found[True][2].epsilon == 2.0


@pytest.mark.parametrize("known", [True, False])
def test_a_label_that_was_changed_is_kept_and_not_refused_in_a_secret_alignment(tables: Path, known: bool) -> None:
    """Whether that record is in the alignment would otherwise show."""
    agreed = job(tables, "label-only")
    align(agreed, digest="e" * 64)
    train(agreed, tables / "other", vault=choice(tables, 9.0))
    align(agreed)
    train(agreed, tables / "first", vault=choice(tables, 9.0))
    bank, side = pq.read_table(tables / "bank.parquet"), load_label_party(agreed.data)
    trained = set(Alignment.load(tables / "aligned-bank").rows[side.records.train].tolist())
    row = next(row for row in range(BANK) if (row in trained) == known)
    labels = bank["label"].to_numpy().copy()
    labels[row] = 1 - labels[row]
    pq.write_table(bank.set_column(1, "label", pa.array(labels)), tables / "bank.parquet")
    told: list[str] = []
    train(agreed, tables / "again", vault=choice(tables, 9.0), watching=Watching(notice=told.append))
    assert sum("1 of the training records have another label" in sentence for sentence in told) == known
    first, again = weights(tables / "first"), weights(tables / "again")
    assert all(np.array_equal(first[name], again[name]) for name in first), "the release stays"


def test_membership_that_was_released_is_recognised_as_a_label(tables: Path) -> None:
    """A list of buyers in a secret alignment, and then a table of all customers that says who bought."""
    everybody = unaligned(tables)
    people = pq.read_table(tables / "people.parquet")
    bought = people.filter(people["label"].to_numpy() == 1)
    pq.write_table(bought.select(["id"]), tables / "bank.parquet")
    secret = job(tables, "label-only", label=None)
    align(secret)
    train(secret, tables / "first", vault=choice(tables, 9.0))
    with pytest.raises(VaultError, match=r"under another label of the vault that is the same.*local\.compose=true"):
        train(everybody, tables / "second", vault=choice(tables, 9.0))
    at = people.column_names.index("label")
    pq.write_table(people.set_column(at, "label", pa.array(np.arange(len(people)) % 2)), tables / "people.parquet")
    assert train(everybody, tables / "third", vault=choice(tables, 9.0)).total_epsilon == 1.0, "another label of them"
