"""The whole audit: every part that a job has something for, and how rarely sound code is accused."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from scipy.stats import binom
from tests.vault_labels import true_labels

from tpsl.audit import PARTS, AuditError, Part, examine, replay
from tpsl.data.dataset import load
from tpsl.data.true_labels import reveal
from tpsl.run.job import Job, make_job
from tpsl.run.observer import Watching
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunError, RunFolder
from tpsl.vault import Vault
from tpsl.vault.noise_tests import LEVEL

EVERYTHING = {
    "head": "local",
    "averaging": 0.9,
    "epochs": 3,
    "patience": 1,
    "validation": 0.2,
    "micro_batches": 2,
    "staleness": 1,
    "wire": "bfloat16",
    "pretrain": {"method": "masked", "epochs": 1},
}


@pytest.fixture(autouse=True)
def _few_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpsl.audit.repeated_releases._FEWEST", 6)
    monkeypatch.setattr("tpsl.audit.repeated_releases._RECORDS", 500)


def test_all_levels_together_are_far_below_one_in_a_thousand() -> None:
    assert (len(PARTS) - 1) * LEVEL <= 4e-6  # replay compares bytes


def test_a_run_is_examined_with_the_vault_it_has_released_from(job: Callable[..., Job], tmp_path: Path) -> None:
    agreed = job({"mechanism": "discrete", "epsilon": 1.0, "noise_seed": None}, epochs=1)
    train(agreed, tmp_path / "run")
    found = examine(agreed, tmp_path / "audit", run=tmp_path / "run")
    assert list(found.parts) == ["canaries", "releases", "replay", "vault"]
    assert found.passed and found.accusations == []
    assert found.vault is not None and found.vault.path == str(tmp_path / "run" / "label" / "vault" / "synthetic")
    assert "one in a hundred" in found.vault.cannot_see[0]
    assert json.loads(json.dumps(found.as_dict()))["vault"]["passed"] is True


def test_the_vault_that_a_run_names_is_the_one(job: Callable[..., Job], tmp_path: Path) -> None:
    agreed = job({"mechanism": "discrete", "epsilon": 1.0, "noise_seed": None}, epochs=1)
    run = tmp_path / "run"
    train(agreed, run, vault=tmp_path / "elsewhere")
    assert not (run / "label" / "vault").exists()
    assert RunFolder(run).vault().resolve() == tmp_path / "elsewhere" / "synthetic"
    (tmp_path / "elsewhere" / "vault.sqlite").chmod(0o644)
    found = examine(agreed, tmp_path / "audit", run=run, only=["vault"])
    assert not found.passed
    assert found.accusations[0].startswith("vault: ") and "can be read by others" in found.accusations[0]
    (run / "label" / "ledger.json").write_text("[]")
    with pytest.raises(RunError, match=r"ledger\.json: is damaged"):
        examine(agreed, tmp_path / "again", run=run)


def test_the_job_is_replayed_as_it_will_run(tmp_path: Path) -> None:
    """The label party's own features, the wide part, pre-training, averaging, hold-out, early stopping, local head."""
    content = {
        "data": {"source": "flights", "layout": "natural", "rows": 1500},
        "privacy": {"epsilon": 1.0},
        "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8], "wide": True, "members": 2},
        "training": {"batch_size": 128, **EVERYTHING},
    }
    found = replay(make_job(content, {}, "test"), tmp_path / "replay")
    assert found.passed, found.accusations
    kinds = {line.split("\t")[2] for line in (tmp_path / "replay" / "after-frames.tsv").read_text().splitlines()}
    assert kinds == {"handshake", "Agree", "Estimates", "Step", "Evaluate", "Head", "Finish"}
    assert found.frames == len((tmp_path / "replay" / "before-frames.tsv").read_text().splitlines())


def test_what_a_job_has_nothing_for_is_left_out_and_told(job: Callable[..., Job], tmp_path: Path) -> None:
    told: list[str] = []
    nothing = job(
        {"gradients": "none", "noise_seed": None}, head="local", pretrain={"method": "masked", "epochs": 1}, epochs=1
    )
    assert list(examine(nothing, tmp_path / "nothing", watching=Watching(notice=told.append)).parts) == ["replay"]
    assert "canaries: left out, the job releases no labels (gradients: none)" in told
    bare = job({"mechanism": "none", "noise_seed": None}, epochs=1)
    assert list(examine(bare, tmp_path / "bare", watching=Watching(notice=told.append)).parts) == ["canaries", "replay"]
    assert "releases: left out, the job releases labels without noise, and claims nothing" in told
    with pytest.raises(AuditError, match="releases cannot be audited"):
        examine(nothing, tmp_path / "only", only=["releases"])
    assert not (tmp_path / "only").exists()


def test_a_job_with_a_statistic_is_audited_for_it(job: Callable[..., Job], tmp_path: Path) -> None:
    told: list[str] = []
    content = job({"mechanism": "discrete", "epsilon": 1.0}, epochs=1, validation=0.1).model_dump(exclude={"method"})
    agreed = make_job({**content, "statistic": {}}, {}, "test")
    train(agreed, tmp_path / "run")
    parts: list[Part] = ["canaries", "releases", "statistic", "vault"]
    watching = Watching(notice=told.append)
    found = examine(agreed, tmp_path / "audit", run=tmp_path / "run", only=parts, canaries=2000, watching=watching)
    assert found.passed, found.accusations
    assert list(found.parts) == parts[1:]
    assert "canaries: left out, no gradients cross (method: statistic)" in told
    assert found.statistic is not None
    assert (found.statistic.canaries, found.statistic.delta) == (2000, 1e-6)


def test_flipped_labels_do_not_reach_the_users_vault(job: Callable[..., Job], tmp_path: Path) -> None:
    agreed = job({"mechanism": "discrete", "epsilon": 1.0, "noise_seed": None}, epochs=1)
    train(agreed, tmp_path / "run", vault=tmp_path / "vault")
    with Vault.open(tmp_path / "vault") as vault:
        head = vault.ledger().head
    examine(agreed, tmp_path / "audit", run=tmp_path / "run", only=["replay"])
    data = load(agreed.data)
    with Vault.open(tmp_path / "vault") as vault:
        assert vault.ledger().head == head
        ids = data.ids.take(pa.array(data.train))
        assert (true_labels(vault, ids) == reveal(data.labels)[data.train]).all()


def test_p_values_of_sound_draws_are_no_smaller_than_they_should_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A short form of `benchmarks/audit_false_alarms.py`: at most 1 % of simulated audits lie below 1 %."""
    import os
    import random
    import runpy

    monkeypatch.setattr(os, "urandom", random.Random(11).randbytes)
    program = Path(__file__).parents[2] / "benchmarks" / "audit_false_alarms.py"
    found = runpy.run_path(str(program))["simulate"](240)
    most = int(binom.isf(1e-6, 240, 0.01))
    for part in ("canaries", "releases", "statistic"):
        assert found[f"{part}: p below 0.01"] <= most
        assert found[f"{part}: accused"] == 0
