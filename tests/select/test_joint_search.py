"""A search of two parties over mutual TLS: the ensemble of one process, to the last bit, whoever is interrupted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from tpsl.data.dataset import load
from tpsl.model.trained import TrainedModel
from tpsl.net.failures import Refused
from tpsl.run.evaluation import TEST_METRICS
from tpsl.run.job import Job, make_job
from tpsl.run.local import Local, LocalError
from tpsl.run.observer import UNWATCHED, Observer, Watching
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import VaultChoice
from tpsl.select import search
from tpsl.select.after_search import evaluate_search
from tpsl.select.candidates import Trial
from tpsl.select.joint_search import JointSearch, tune_as_feature, tune_as_label
from tpsl.select.space import configuration
from tpsl.vault import Vault

SPACE: list[dict[str, Any]] = [
    {"model": {"wide": True, "members": 2}},
    {**configuration(1e-2, pretrain={"method": "masked", "epochs": 1}), "model": {"wide": True}},
]


def make(**privacy: Any) -> Job:
    content: dict[str, Any] = {
        "data": {"source": "flights", "layout": "natural", "rows": 600},
        "privacy": {"epsilon": 2.0, **privacy},
        "model": {"embedding_dim": 2, "bottom": [8], "top": [8]},
        "training": {"batch_size": 64, "epochs": 2, "validation": 0.2, "checkpoint_every": 3},
    }
    return make_job(content, {}, "test")


@contextmanager
def unwatched(trial: Trial | RunFolder) -> Iterator[Watching]:
    yield UNWATCHED


class Killed(Exception):
    """Stands for a kill: nothing is written any more."""


class Watcher(Observer):
    """Notes the events of a party, and ends it when it has written the checkpoint of a step."""

    def __init__(self, killed_at: int | None, events: list[str]) -> None:
        self._killed_at, self._events = killed_at, events

    def event(self, name: str, **facts: Any) -> None:
        self._events.append(name)
        if name == "checkpoint" and facts["step"] == self._killed_at:
            raise Killed


class Office:
    """Two parties, each with a folder, a certificate and a thread of its own."""

    def __init__(self, folder: Path, certificates: Path) -> None:
        self.folder, self.certificates = folder, certificates
        self.pool = ThreadPoolExecutor(2)
        self.address = f"127.0.0.1:{free_port()}"

    def search(self, party: str, job: Job, space: Any = SPACE) -> JointSearch:
        place = {"listen": self.address} if party == "label" else {"connect": self.address}
        vaults = {"vault": self.folder / "vault", "max_epsilon": 100.0, "not_private": True}
        local = Local(certificates=self.certificates / party, silence=5.0, wait=20.0, **place, **vaults)
        return JointSearch.of(job, party, local, self.folder / party, space)

    def label(self, job: Job, space: Any = SPACE, watched: Any = unwatched) -> Future[Any]:
        return self.pool.submit(tune_as_label, self.search("label", job, space), watched)

    def feature(self, job: Job, space: Any = SPACE, watched: Any = unwatched) -> Future[Any]:
        return self.pool.submit(tune_as_feature, self.search("feature", job, space), watched)


def without_places(out: Path) -> Any:
    content = json.loads((out / "tune.json").read_text())
    return {name: value for name, value in content.items() if name not in ("out", "vault")}


def test_two_parties_make_the_ensemble_of_one_process(certificates: Path, tmp_path: Path) -> None:
    """Both are interrupted in the second configuration, and go on."""
    office, job = Office(tmp_path, certificates), make()

    events: list[str] = []

    @contextmanager
    def until_killed(trial: Trial) -> Iterator[Watching]:
        observer = Watcher(6 if trial.job.training.pretrain else None, events)
        yield replace(UNWATCHED, observer=observer, notice=events.append)

    first = office.label(job, watched=until_killed), office.feature(job, watched=until_killed)
    for party in first:
        with pytest.raises((Killed, ValueError)):
            party.result(60)
    assert sum("fitting a linear model" in said for said in events) == 1, (
        "that of the first configuration is that of the second"
    )
    assert not (tmp_path / "label" / "tune.json").exists()
    label, feature = office.label(job), office.feature(job)
    members, trained = feature.result(60), label.result(60)
    assert not trained.diverged
    runs = [RunFolder(path) for path in (tmp_path / "label" / "runs").iterdir()]
    assert [set(entry) & set(TEST_METRICS) for run in runs for entry in run.metrics()] == [set()] * 4, (
        "the peer sees when the process ends, and could measure how long an evaluation takes"
    )
    assert math.isnan(trained.ensemble.test_auc) and math.isnan(trained.best.test_auc)
    result = evaluate_search(tmp_path / "label", office.search("label", job).local, unwatched)
    with Vault.open(Path(result.vault)) as vault:
        assert [entry.kind for entry in vault.ledger().entries].count("released") == 1

    one = search.tune(RunSetup(job, RunFolder(tmp_path / "one")), SPACE, vault=VaultChoice(Path(result.vault)))
    assert without_places(tmp_path / "label") == without_places(tmp_path / "one")
    assert (tmp_path / "label" / "best.yaml").read_text() == (tmp_path / "one" / "best.yaml").read_text()
    named = ("number", "configuration", "epoch", "run")
    assert members == [{name: getattr(row, name) for name in named} for row in one.candidates]
    # Each has its own halves and no other's, and they belong together.
    whole, halves = (TrainedModel.open(tmp_path / name) for name in ("one", "feature"))
    assert (
        halves.version("feature")
        == whole.version("feature")
        == TrainedModel.open(tmp_path / "label").versions()["feature"]
    )
    for trial in (tmp_path / "feature" / "runs").iterdir():
        assert not (trial / "label").exists()
        assert not (tmp_path / "label" / "runs" / trial.name / "feature").exists()
    inputs = load(job.data).feature_parties["feature"]
    assert halves.embedder("feature").embed(inputs).equal(whole.embedder("feature").embed(inputs))
    # Both again: nothing to do, and nobody has to be there.
    assert office.feature(job).result(60) == members
    evaluated = (tmp_path / "label" / "tune.json").read_text()
    assert office.label(job).result(60).as_dict() == trained.as_dict()
    assert (tmp_path / "label" / "tune.json").read_text() == evaluated, "what was evaluated stays"


def test_a_configuration_that_diverges_is_none_of_the_ensemble_at_either_side(
    certificates: Path, tmp_path: Path
) -> None:
    office, job = Office(tmp_path, certificates), make(mechanism="laplace", epsilon=0.01, estimator="linear")
    optimizer = {"name": "sgd", "learning_rate": 50.0}
    hot = {"training": {"feature_optimizer": optimizer, "label_optimizer": optimizer}}
    space = [hot, configuration(1e-3)]
    label, feature = office.label(job, space), office.feature(job, space)
    members, result = feature.result(60), label.result(60)
    assert [name.split(",")[0] for name in result.diverged] == ["name sgd"]
    assert {row["number"] for row in members} == {row.number for row in result.candidates} == {1}


def test_other_spaces_are_refused(certificates: Path, tmp_path: Path) -> None:
    office, job = Office(tmp_path, certificates), make()
    label, feature = office.label(job, SPACE[:1]), office.feature(job, SPACE[1:])
    with pytest.raises(
        Refused, match=r"space of the search differs: .*; give all sides the same job and the same --tune"
    ):
        feature.result(60)
    again = office.feature(job, SPACE[:1])
    again.result(60), label.result(60)  # who has the same space is not kept from it


def test_what_cannot_be_searched_together_is_one_sentence(certificates: Path, tmp_path: Path) -> None:
    office, job = Office(tmp_path, certificates), make()
    office.address = "127.0.0.1:0"
    with pytest.raises(LocalError, match="a search opens its port once for each configuration: name one, not port 0"):
        tune_as_label(office.search("label", job), unwatched)
    with pytest.raises(ValueError, match=r"tuning takes no local\.start_from"):
        JointSearch.of(job, "label", Local(start_from=tmp_path), tmp_path)
    with pytest.raises(ValueError, match="no configuration"):
        JointSearch.of(job, "label", Local(), tmp_path, [])
    assert not list(tmp_path.iterdir())
