"""Rehearsals run the real commands in processes of their own, over mutual TLS, and their bytes are counted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tpsl.planning.phases import Phases, TimeModel, step_work
from tpsl.planning.rehearsal import Deployment, RehearsalFailed, rehearse
from tpsl.planning.traffic import exchanges, total
from tpsl.registry import use
from tpsl.training.job import Job, make_job
from tpsl.training.local import Local

SMALL: dict[str, Any] = {
    "data": {"source": "synthetic", "rows": 3000, "numeric_fields": 3, "categorical_fields": 2},
    "model": {"embedding_dim": 4, "bottom": [32], "top": [8]},
    "training": {"batch_size": 100, "epochs": 2, "validation": 0.1, "patience": 0},
}


@pytest.fixture(autouse=True)
def quick_commands(quick_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(quick_programs / "python"))


def job(**training: object) -> Job:
    return make_job(SMALL, {"training": training}, "a test")


@pytest.mark.parametrize(
    "training",
    [{}, {"wire": "int8", "micro_batches": 3, "staleness": 1, "head": "local"}, {"exchange": "labels"}],
    ids=["split", "parts", "handed over"],
)
def test_what_crosses_is_what_was_computed(training: dict[str, object], tmp_path: Path) -> None:
    planned = job(**training)
    found = rehearse(planned, Deployment(), tmp_path / "rehearsal", counted=True)
    assert found.carried is not None and found.counts.rows == 3000
    crossing = exchanges(planned, found.counts)
    for to_label, carried in zip((True, False), found.carried, strict=True):
        computed = total(crossing, to_label=to_label, connections=1)
        # Heartbeats depend on time; where little crosses they show.
        assert computed == pytest.approx(carried, rel=0.02, abs=1500)
    phases = Phases.of(found)
    assert found.seconds > phases.programs > 0 and phases.set_up > 0
    assert 0 < phases.step < phases.step * found.counts.steps < found.seconds
    assert step_work(found).keys() == ({"feature"} if planned.hands_over else {"label", "feature"})
    assert all(seconds > 0 for seconds in step_work(found).values())
    steps = [stamp for stamp in found.stamps[found.trainer] if stamp.event == "step"]
    assert len(steps) == found.counts.steps == 2 * 22


@pytest.mark.parametrize("exchange", ["gradients", "labels"])
def test_the_time_of_the_wide_part_is_seen(exchange: str, tmp_path: Path) -> None:
    planned = make_job(SMALL, {"model": {"wide": True}, "training": {"epochs": 1, "exchange": exchange}}, "a test")
    found = rehearse(planned, Deployment(), tmp_path / "rehearsal")
    assert 0 < Phases.of(found).wide < found.seconds
    # Of so many records as were rehearsed, what is predicted is what they took.
    predicted = TimeModel.of([found]).seconds(found.counts)
    assert predicted["wide part"] == pytest.approx(Phases.of(found).wide)
    assert all(found.own_bytes[party] > 0 for party in ("label", "feature"))


def test_labels_are_handed_over_through_one_connection_however_many_workers_there_are() -> None:
    workers = Deployment(label_workers=2, feature_workers=3)
    assert workers.connections(job()) == 6
    assert workers.connections(job(exchange="labels")) == 1


def test_a_command_that_fails_says_why_and_ends_the_others(tmp_path: Path) -> None:
    without_half = {"feature": Local.model_validate({"bottom": {"factory": "nowhere:half"}})}
    with pytest.raises(RehearsalFailed, match=r"the rehearsal of feature failed: the bottom half .*nowhere"):
        rehearse(job(), Deployment(without_half), tmp_path / "rehearsal")
    assert not (tmp_path / "rehearsal" / "run-label" / "result.json").exists()


OWN_PART = """
from torch.optim import SGD
from tpsl.models.optimizer import OPTIMIZERS

OPTIMIZERS.register("planned_sgd", SGD)
"""


def test_own_modules_are_used_and_nothing_is_left_in_the_users_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPSL_HOME", str(tmp_path / "home of the user"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planned_parts.py").write_text(OWN_PART)
    monkeypatch.setattr("tpsl.registry._used", {})
    use(["planned_parts"])
    own = job(epochs=1, feature_optimizer={"name": "planned_sgd"})
    rehearse(own, Deployment({"label": Local(vault=tmp_path / "mine", max_epsilon=0.1)}), tmp_path / "here")
    assert {path.name for path in tmp_path.iterdir()} == {"here", "planned_parts.py"}
