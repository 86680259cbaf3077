"""`validation`, `patience` and `gradients: none`: decided by noisy labels alone, resumed to the bit."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tpsl.audit import replay
from tpsl.data.dataset import load
from tpsl.run.checkpoint import save_checkpoint
from tpsl.run.evaluation import noisy_validation
from tpsl.run.job import Job, JobError, make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.schedule import held_out
from tpsl.run.vaults import VaultChoice
from tpsl.vault import NO_LIMITS, Vault

SMALL = {"embedding_dim": 4, "bottom": [16, 8], "top": [8]}


def job(privacy: dict[str, Any] | None = None, **training: Any) -> Job:
    """Learns too fast on little data: the hold-out gets worse after an epoch or two."""
    content = {
        "data": {"source": "synthetic", "rows": 1200, "numeric_fields": 3, "categorical_fields": 3, "signal": 3.0},
        "privacy": privacy or {"mechanism": "discrete", "epsilon": 1.0, "noise_seed": 3},
        "model": SMALL,
        "training": {
            "batch_size": 64,
            "epochs": 12,
            "checkpoint_every": 5,
            "feature_optimizer": {"name": "adam", "learning_rate": 0.03},
            "label_optimizer": {"name": "adam", "learning_rate": 0.03},
            "validation": 0.2,
            "patience": 2,
            **training,
        },
    }
    return make_job(content, {}, "test")


def weights(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.glob("*/*.safetensors"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train(job(), folder / "run", vault=VaultChoice(folder / "vault", policy=NO_LIMITS))
    return folder


def test_held_out_records_are_chosen_by_the_seed_and_never_trained_on(tmp_path: Path) -> None:
    chosen = held_out(960, 0.2, 0)
    assert len(chosen) == 192 and len(np.unique(chosen)) == 192
    assert not np.array_equal(chosen, held_out(960, 0.2, 1))
    agreed = job(epochs=2, patience=0)
    train(agreed, tmp_path / "run", record_steps=1000)
    data = load(agreed.data)
    rows = np.fromfile(tmp_path / "run" / "feature" / "transcript" / "rows.i64", dtype="<i8")
    assert sorted(rows) == sorted(np.tile(np.setdiff1d(data.train, data.train[chosen]), 2))


def test_training_stops_where_noisy_labels_say_and_keeps_the_best_epoch(whole: Path, tmp_path: Path) -> None:
    run = RunFolder(whole / "run")
    result = run.result()
    assert result is not None
    likelihoods = [entry["validation_log_likelihood"] for entry in run.metrics()]
    best = int(np.argmax(likelihoods)) + 1
    assert (result.kept_epoch, result.epochs) == (best, best + 2)
    assert result.epochs == len(likelihoods) < 12
    assert result.test_auc == run.metrics()[best - 1]["test_auc"]
    for name in ("validation_loss", "validation_auc", "validation_auc_low", "validation_auc_high"):
        np.testing.assert_equal(getattr(result, name), run.metrics()[best - 1][name])
    # The kept weights are those of a run that ended there.
    train(job(epochs=best, patience=0), tmp_path / "short", vault=VaultChoice(whole / "vault", policy=NO_LIMITS))
    assert weights(whole / "run") == weights(tmp_path / "short")
    party = run.party_result("feature")
    assert party is not None and (party.epochs, party.steps) == (result.epochs, result.steps)


def test_what_is_judged_are_the_predictions_that_are_kept(tmp_path: Path) -> None:
    agreed = job(epochs=2, patience=0)
    train(agreed, tmp_path / "run")
    run, data = RunFolder(tmp_path / "run"), load(agreed.data)
    mechanism = agreed.privacy.build(2)
    with Vault.open(run.label / "vault") as vault:
        noisy = vault.noisy_labels(mechanism, data.ids.take(data.train), draws=1, seed=3)
    for entry in run.metrics():
        kept = run.predictions(entry["epoch"])
        found = noisy_validation(mechanism, [noisy.draws[0][held_out(len(data.train), 0.2, 0)]], kept["validation"])
        assert found.validation_log_likelihood == entry["validation_log_likelihood"]
        assert len(kept["test"]) == len(data.test)


@pytest.mark.parametrize("after", [4, 7, 11])
def test_an_interrupted_run_stops_at_the_same_epoch_with_the_same_weights(
    after: int, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies while it writes its n-th state: checkpoints and best states of both parties."""
    written = 0

    class Killed(BaseException):
        pass

    def dying(*arguments: Any) -> None:
        nonlocal written
        written += 1
        if written == after:
            raise Killed
        save_checkpoint(*arguments)

    for module in ("checkpoint", "role"):
        monkeypatch.setattr(f"tpsl.run.{module}.save_checkpoint", dying)
    with pytest.raises(Killed):
        train(job(), tmp_path / "broken", vault=VaultChoice(whole / "vault", policy=NO_LIMITS))
    monkeypatch.undo()
    train(job(), tmp_path / "broken", vault=VaultChoice(whole / "vault", policy=NO_LIMITS))
    assert weights(tmp_path / "broken") == weights(whole / "run")
    results = [json.loads((run / "result.json").read_text()) for run in (tmp_path / "broken", whole / "run")]
    for name in ("kept_epoch", "epochs", "steps", "test_auc", "validation_auc"):
        assert results[0][name] == results[1][name]


def test_replay_passes_with_everything_switched_on(tmp_path: Path) -> None:
    """Local head, pre-training, members, averaging, hold-out and early stopping: no byte depends on true labels."""
    agreed = job(head="local", averaging=0.9, epochs=3, patience=1, pretrain={"method": "masked", "epochs": 1})
    found = replay(agreed, tmp_path / "replay", seed=1)
    assert found.passed, found.differences
    assert found.flipped > 400
    assert (tmp_path / "replay" / "after" / "label" / "predictions").is_dir()


def test_gradients_none_releases_nothing_and_sends_nothing_back(tmp_path: Path) -> None:
    agreed = job({"gradients": "none"}, head="local", pretrain={"method": "masked", "epochs": 3})
    result = train(agreed, tmp_path / "run", record_steps=1000)
    assert (result.epsilon, result.total_epsilon, result.private, result.steps) == (0.0, 0.0, True, 0)
    assert math.isnan(result.test_auc)
    assert not (tmp_path / "run" / "label" / "vault").exists()
    run = RunFolder(tmp_path / "run")
    local = run.local_head()
    assert local is not None and local["test_auc"] > 0.6
    before, after = (
        load_file(tmp_path / "run" / "feature" / f"{name}.safetensors") for name in ("pretrained", "bottom")
    )
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert (tmp_path / "run" / "feature" / "transcript" / "gradients.f32").stat().st_size == 0
    assert train(agreed, tmp_path / "run").run == result.run  # a finished run is only read


def test_gradients_none_uses_the_label_partys_own_features(tmp_path: Path) -> None:
    agreed = make_job(
        {
            "data": {"source": "flights", "rows": 400, "layout": "natural"},
            "privacy": {"gradients": "none"},
            "model": SMALL,
            "training": {"head": "local"},
        },
        {},
        "test",
    )
    train(agreed, tmp_path / "run")
    head = load_file(tmp_path / "run" / "label" / "NOT-PRIVATE" / "local_head.safetensors")
    assert head["parts.0.mean"].shape == (16,)  # eight numbers from each party


@pytest.mark.parametrize(
    ("privacy", "training", "code"),
    [
        ({"gradients": "none"}, {"head": "private"}, "nobody-learns"),
        ({"gradients": "none", "epsilon": 1.0}, {"head": "local"}, "nothing-is-released"),
        ({"gradients": "none", "noise_seed": 0}, {"head": "local"}, "nothing-is-released"),
        ({"gradients": "none", "mechanism": "none"}, {"head": "local"}, "nothing-is-released"),
        ({"epsilon": 1.0}, {"validation": 0.0, "patience": 1}, "patience-without-hold-out"),
        ({"epsilon": 1.0}, {"validation": 1.0}, "job"),
    ],
)
def test_settings_that_make_no_sense_are_refused(privacy: dict[str, Any], training: dict[str, Any], code: str) -> None:
    with pytest.raises(JobError) as error:
        job(privacy, **training)
    assert error.value.code == code
