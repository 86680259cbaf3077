"""Labels that arrive late: whatever the order and the moment, the run is that of labels that were there before.

Another process fills the vault in earnest. Here the pause between two looks at the vault fills it, so that what is
there at which look is known; one test has two parties, a filling process and kills.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.ports import free_port

from tpsl.data.dataset import Dataset, load
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import laplace
from tpsl.net.failures import JobStopped
from tpsl.run.after_training import evaluate_run
from tpsl.run.evaluation import evaluate
from tpsl.run.job import Job, make_job
from tpsl.run.local import Local
from tpsl.run.observer import UNWATCHED, Observer, Watching
from tpsl.run.one_process import ALL_STEPS, train
from tpsl.run.over_network import join, serve
from tpsl.run.run_folder import RunFolder
from tpsl.run.vaults import LabelsMissing, VaultChoice
from tpsl.vault import Vault, VaultBusy, VaultError

RECORDS, BATCH = 48, 12
STEPS = RECORDS // BATCH
ARRIVALS = "tpsl.run.vaults"


def job(labels: str = "arriving", draws: int = 1, **training: Any) -> Job:
    content = {
        "data": {
            "source": "synthetic",
            "rows": 60,
            "numeric_fields": 2,
            "categorical_fields": 2,
            "largest_vocabulary": 9,
        },
        "privacy": {"mechanism": "laplace", "epsilon": 1.0, "draws": draws},
        "model": {"embedding_dim": 3, "bottom": [6], "top": [5]},
        "training": {
            "batch_size": BATCH,
            "epochs": 1,
            "order": "arrival",
            "labels": labels,
            "checkpoint_every": 3,
            **training,
        },
    }
    return make_job(content, {}, "test")


@cache
def data() -> Dataset:
    return load(job().data)


def add(vault: Path, positions: Any) -> None:
    """Add the labels of training records; a position beyond them is a record of nobody."""
    rows = data().train
    ids = [data().ids[int(rows[at])].as_py() if at < RECORDS else f"other {at}" for at in positions]
    labels = [int(reveal(data().labels)[rows[at]]) if at < RECORDS else 1 for at in positions]
    with Vault.open(vault) as opened:
        opened.add([(ids, labels, None)])


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    Vault.create(tmp_path / "vault").close()
    return tmp_path / "vault"


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterator[Any]], None]:
    """Let something happen in each pause between two looks; when nothing is left there are no more pauses."""

    def during(happenings: Iterator[Any]) -> None:
        monkeypatch.setattr(f"{ARRIVALS}.sleep", lambda seconds: next(happenings))

    return during


def outcome(*runs: Path) -> dict[str, bytes]:
    """All that the parties made and all that crossed, in one run folder or in one for each party."""
    kinds = ("*.safetensors", "metrics.jsonl", "*.i64", "*.f32")
    found = {
        str(path.relative_to(run)): path.read_bytes() for run in runs for kind in kinds for path in run.rglob(kind)
    }
    assert {"feature/bottom.safetensors", "label/top.safetensors", "feature/transcript/gradients.f32"} <= set(found)
    return found


def check(vault: Path, *runs: Path, draws: int = 1) -> None:
    """Each record is released once, and the run is that of a job whose labels were there before."""
    with Vault.open(vault) as opened:
        assert opened.verify() == []
        ledger = opened.ledger()
    assert [(spent.records, spent.epsilon) for spent in ledger.spent] == [(RECORDS, draws * 1.0)]
    released = [entry.details["records"] for entry in ledger.entries if entry.kind == "released"]
    assert sum(released) == RECORDS
    stored = vault.parent / "stored"
    train(job("stored", draws), stored, vault=vault, record_steps=ALL_STEPS, data=data())
    with Vault.open(vault) as opened:
        assert opened.ledger().head == ledger.head
    assert outcome(*runs) == outcome(stored)


def in_parts(positions: Any, size: int) -> list[np.ndarray]:
    return [np.asarray(positions)[at : at + size] for at in range(0, len(positions), size)]


SHUFFLED = np.random.default_rng(5).permutation(RECORDS)
ORDERS = {
    "all before": [],
    "all at once": [range(RECORDS)],
    "one by one": in_parts(range(RECORDS), 1),
    "batch by batch": in_parts(range(RECORDS), BATCH),
    "in parts that fit no batch": in_parts(range(RECORDS), 7),
    "backwards": in_parts(range(RECORDS)[::-1], 9),
    "shuffled": in_parts(SHUFFLED, 10),
    "among others": in_parts(np.ravel(np.stack([SHUFFLED, SHUFFLED + RECORDS], axis=1)), 20),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_is_that_of_stored_labels_however_they_arrive(
    order: str, tmp_path: Path, vault: Path, meanwhile: Callable[[Iterator[Any]], None]
) -> None:
    draws = 2 if order == "shuffled" else 1
    if order == "all before":
        add(vault, range(RECORDS))
    meanwhile(add(vault, part) for part in ORDERS[order])
    unlabelled = reveal(data().labels).copy()
    unlabelled[data().train] = -1  # labels of training records come out of the vault alone
    known = data().with_labels(unlabelled)
    result = train(job(draws=draws), tmp_path / "run", vault=vault, record_steps=ALL_STEPS, data=known)
    assert result.total_epsilon == result.epsilon == draws
    assert result.samples_per_second > 0
    check(vault, tmp_path / "run", draws=draws)


class Killed(BaseException):
    """Ends a run at once, like a signal: nothing catches it."""


def test_runs_that_end_at_any_look_lead_to_the_same_weights(
    tmp_path: Path, vault: Path, meanwhile: Callable[[Iterator[Any]], None]
) -> None:
    """Labels come also between the runs, before and after what the next run needs."""
    parts = in_parts(SHUFFLED, 4)

    def alternately() -> Iterator[None]:
        while parts:
            yield add(vault, parts.pop())
            if len(parts) % 2:
                raise Killed

    runs = 0
    while not (tmp_path / "run" / "result.json").exists():
        runs += 1
        meanwhile(alternately())
        try:
            train(job(), tmp_path / "run", vault=vault, record_steps=ALL_STEPS, data=data())
        except Killed:
            add(vault, parts.pop())
    assert runs > STEPS
    check(vault, tmp_path / "run")


def test_labels_of_test_records_may_come_late_too(tmp_path: Path, vault: Path) -> None:
    """They come out of the vault for the evaluation, unreleased; nobody waits for those that are missing."""
    add(vault, range(RECORDS))
    nothing = data().with_labels(np.full(len(data()), -1))
    test, found, notices = data().test, {}, list[str]()
    for number, known in enumerate(([], test[:7], test)):
        with Vault.open(vault) as opened:
            opened.add([([data().ids[int(row)].as_py() for row in known], reveal(data().labels)[known], None)])
        found[len(known)] = train(
            job(),
            tmp_path / str(number),
            vault=vault,
            record_steps=ALL_STEPS,
            watching=Watching(notice=notices.append),
            data=nothing,
        )
    sentence = "of the 12 test records have no label yet: the test metrics are those of the others"
    assert notices == [f"12 {sentence}", f"5 {sentence}"]
    assert math.isnan(found[0].test_auc)
    assert math.isnan(found[0].test_log_loss)
    predicted = RunFolder(tmp_path / "2").predictions(1)["test"]
    for known in (7, 12):
        expected = evaluate(predicted[:known], reveal(data().labels)[test[:known]])
        assert {name: getattr(found[known], name) for name in vars(expected)} == vars(expected)
    check(vault, tmp_path / "2")


def test_labels_that_are_early_take_few_releases(tmp_path: Path, vault: Path) -> None:
    add(vault, range(RECORDS))
    train(job(batch_size=1), tmp_path / "run", vault=vault, data=data())
    with Vault.open(vault) as opened:
        released = [entry.details["records"] for entry in opened.ledger().entries if entry.kind == "released"]
    assert released == [1, 2, 4, 8, 16, 17]


class Waits(Observer):
    """Keeps what is waited for."""

    def __init__(self) -> None:
        self.said: list[str | None] = []

    def waiting_for(self, peer: str | None) -> None:
        if peer != "feature":
            self.said.append(peer)


def test_who_waits_says_how_many_labels_are_missing(
    tmp_path: Path, vault: Path, meanwhile: Callable[[Iterator[Any]], None]
) -> None:
    notes: list[str] = []
    notices: list[str] = []
    meanwhile(add(vault, part) for part in (range(7), range(7, 30), range(30, RECORDS)))
    watching = Watching(progress=lambda done, total, note: notes.append(note), notice=notices.append)
    train(job(), tmp_path / "run", vault=vault, data=data(), watching=watching)
    assert [note for note in notes if "wait" in note] == [
        "waiting for labels: 12 of 12 of step 1 are missing",
        "waiting for labels: 5 of 12 of step 1 are missing",
        "waiting for labels: 6 of 12 of step 3 are missing",
    ]
    assert notices == ["waiting for labels: 12 of 12 of step 1 are missing"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that goes on in pauses alone; `during` is called with the time after each."""
    made = SimpleNamespace(now=0.0, during=lambda now: None)

    def pause(seconds: float) -> None:
        made.now += seconds
        made.during(made.now)

    monkeypatch.setattr(f"{ARRIVALS}.time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(f"{ARRIVALS}.sleep", pause)
    return made


def test_the_limit_counts_from_the_last_label_that_came(tmp_path: Path, vault: Path, clock: SimpleNamespace) -> None:
    arriving = [(9.0 * number, part) for number, part in enumerate(in_parts(range(30), 3), 1)]

    def during(now: float) -> None:
        while arriving and arriving[0][0] <= now:
            add(vault, arriving.pop(0)[1])

    clock.during = during
    with pytest.raises(LabelsMissing) as stopped:
        train(job(), tmp_path / "run", vault=VaultChoice(vault, wait=10.0), record_steps=ALL_STEPS, data=data())
    assert str(stopped.value) == (
        f"6 of the 12 labels of step 3 are not in the vault {vault / 'label'}, and none came within 10 s; "
        "the same command goes on when they are there"
    )
    assert clock.now == 100.0
    add(vault, range(30, RECORDS))
    train(job(), tmp_path / "run", vault=VaultChoice(vault, wait=10.0), record_steps=ALL_STEPS, data=data())
    check(vault, tmp_path / "run")


def test_a_vault_that_others_write_to_is_asked_again(
    tmp_path: Path, vault: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpsl.vault.storage._WAIT_SECONDS", 0.0)
    add(vault, range(20))
    writer = sqlite3.connect(vault / "vault.sqlite", isolation_level=None)

    def during(now: float) -> None:
        """Busy between two steps, until the last labels come."""
        if now == 1.0:
            writer.execute("BEGIN EXCLUSIVE")
        elif now == 3.0:
            writer.execute("COMMIT")
            add(vault, range(20, RECORDS))

    clock.during = during
    train(job(), tmp_path / "run", vault=VaultChoice(vault, wait=3.0), record_steps=ALL_STEPS, data=data())
    assert clock.now == 3.0
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(VaultBusy, match="another process is writing to it"):
        train(job(), tmp_path / "other", vault=VaultChoice(vault, wait=3.0), data=data())
    writer.close()
    check(vault, tmp_path / "run")


def test_a_vault_that_does_not_exist_is_made_and_one_must_be_named(
    tmp_path: Path, meanwhile: Callable[[Iterator[Any]], None]
) -> None:
    with pytest.raises(ValueError, match="name it, with --vault FOLDER or `vault` in the local file"):
        train(job(), tmp_path / "nowhere", data=data())
    vault, notices = tmp_path / "vault", list[str]()
    meanwhile(add(vault, part) for part in [range(RECORDS)])
    train(
        job(),
        tmp_path / "run",
        vault=vault,
        record_steps=ALL_STEPS,
        watching=Watching(notice=notices.append),
        data=data(),
    )
    assert notices[0] == f"made the empty vault {vault}; `tpsl vault add` fills it"
    check(vault, tmp_path / "run")


def test_a_vault_that_does_not_fit_is_refused(tmp_path: Path, vault: Path) -> None:
    Vault.create(vault / "five", classes=5).close()
    with pytest.raises(VaultError, match="has labels of 5 classes"):
        train(job(), tmp_path / "run", vault=vault / "five", data=data())
    vault = vault / "label"
    add(vault, range(RECORDS))
    with Vault.open(vault) as opened:
        opened.release(laplace(2.0))
    with pytest.raises(VaultError, match="48 records were released before under something else"):
        train(job(), tmp_path / "run", vault=vault, data=data())


def test_feature_parties_are_told_when_labels_do_not_come(tmp_path: Path, vault: Path) -> None:
    add(vault, range(BATCH))
    address = f"127.0.0.1:{free_port()}"
    label_waits, errors = Waits(), []

    def feature() -> None:
        try:
            local = Local(connect=address, wait=30.0)
            join(job(), "feature", local, tmp_path / "feature", watching=UNWATCHED, insecure_loopback=True)
        except JobStopped as error:
            errors.append(str(error))

    other = Thread(target=feature)
    other.start()
    with pytest.raises(LabelsMissing, match=r"^12 of the 12 labels of step 2 are not in the vault"):
        local = Local(listen=address, vault=vault, wait=1.5)
        serve(job(), local, tmp_path / "label", watching=Watching(label_waits), insecure_loopback=True)
    other.join(60)
    assert errors == ["the label party stopped the job: labels did not arrive in time"]
    assert "labels: 12 of 12 of step 2 are missing" in label_waits.said


# What a party's command runs; the looks at the vault come fast, and `looked` counts waits of the label party.
PARTY = """
import os

os.environ["TPSL_HOME"] = home
from tpsl.run import vaults
from tpsl.run.one_process import ALL_STEPS, train
from tpsl.run.observer import UNWATCHED, Observer, Watching
from tpsl.run.over_network import join, serve

vaults._LOOK_EVERY = 0.01

class Waits(Observer):
    def waiting_for(self, peer):
        if peer is not None and peer.startswith("labels"):
            waiting.value += 1

if party == "label":
    serve(job, local, run, watching=Watching(Waits()), record_steps=ALL_STEPS, insecure_loopback=True)
else:
    join(job, party, local, run, watching=UNWATCHED, record_steps=ALL_STEPS, insecure_loopback=True)
"""


def test_two_parties_are_killed_while_they_wait(tmp_path: Path, vault: Path, forks: ForkServerContext) -> None:
    address, waiting = f"127.0.0.1:{free_port()}", forks.Value("q", 0, lock=False)
    locals_of = {
        "label": Local(listen=address, vault=vault, silence=0.5),
        "feature": Local(connect=address, silence=0.5),
    }

    def started(party: str) -> Any:
        scope = {"job": job(), "party": party, "local": locals_of[party], "run": tmp_path / party, "waiting": waiting}
        scope |= {"home": os.environ["TPSL_HOME"]}
        process = forks.Process(target=exec, args=(PARTY, scope), daemon=True)
        process.start()
        return process

    parties = {party: started(party) for party in locals_of}
    parts = in_parts(range(RECORDS), 16)  # none of them ends with a batch but the last
    for number, victim in enumerate(("feature", "label", None), 1):
        until = time.monotonic() + 60
        while waiting.value < number:
            assert time.monotonic() < until
            assert all(party.is_alive() for party in parties.values())
            time.sleep(0.01)
        time.sleep(0.7)
        assert all(party.is_alive() for party in parties.values())
        if victim is not None:
            parties[victim].kill()
            parties[victim].join(60)
        add(vault, parts[number - 1])
        if victim is not None:
            parties[victim] = started(victim)
    for party in parties.values():
        party.join(60)
        assert party.exitcode == 0
    elsewhere = Local(vault=tmp_path / "nowhere")
    with pytest.raises(VaultError, match=r"there is no vault at .*nowhere"):
        evaluate_run(RunFolder(tmp_path / "label"), elsewhere)
    assert not (tmp_path / "nowhere").exists()
    evaluate_run(RunFolder(tmp_path / "label"), Local())
    check(vault, tmp_path / "label", tmp_path / "feature")
