"""`model.wide`: worth its while at small ε, resumed to the bit, and a function of the noisy labels alone."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tpsl.audit import replay
from tpsl.data.dataset import load
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import randomized_response
from tpsl.model.predictors import PredictionError
from tpsl.model.trained import TrainedModel
from tpsl.run.build import load_pretrained, pretrained_weights
from tpsl.run.job import Job, JobError, make_job
from tpsl.run.observer import Watching
from tpsl.run.one_process import train
from tpsl.run.releases import noisy_labels_for
from tpsl.run.run_folder import NOT_PRIVATE, RunFolder
from tpsl.run.schedule import Schedule
from tpsl.run.stages.prepare import WIDE, features_in_training, fit_own_wide_part, label_estimates
from tpsl.run.vaults import VaultChoice
from tpsl.vault import NO_LIMITS

PRETRAIN = {"method": "masked", "epochs": 1}


NATURAL = {"source": "flights", "layout": "natural", "rows": 1500}
"""Here the label party has features of its own."""


def job(
    data: dict[str, Any] | None = None, privacy: dict[str, Any] | None = None, wide: bool = True, **training: Any
) -> Job:
    table = {"source": "synthetic", "rows": 1500, "numeric_fields": 3, "categorical_fields": 3, "signal": 3.0}
    if data is not None and "source" in data:
        table = {}
    content = {
        "data": {**table, **(data or {})},
        "privacy": {"epsilon": 1.0, "noise_seed": 1, **(privacy or {})},
        "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8], "wide": wide, "members": 2},
        "training": {"batch_size": 128, "epochs": 1, "checkpoint_every": 4, "patience": 0, **training},
    }
    return make_job(content, {}, "test")


def files(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.glob("**/*.safetensors"))}


def test_it_starts_where_a_network_without_it_does_not_get_at_a_small_epsilon(tmp_path: Path) -> None:
    data = {"rows": 6000, "signal": 4.0}
    found = {wide: train(job(data, {"epsilon": 0.5}, wide), tmp_path / str(wide)).test_auc for wide in (False, True)}
    assert found[True] > found[False] + 0.05


@pytest.mark.parametrize(
    ("data", "privacy"),
    [(NATURAL, {}), ({}, {"draws": 2, "mechanism": "laplace", "epsilon": 2.0})],
    ids=["label party's own features", "two draws"],
)
def test_the_replay_audit_passes(tmp_path: Path, data: dict[str, Any], privacy: dict[str, Any]) -> None:
    agreed = job(data, privacy, head="local", pretrain=PRETRAIN, validation=0.2, averaging=0.5)
    result = replay(agreed, tmp_path / "replay", seed=1)
    assert result.passed
    compared = {path.name for path in (tmp_path / "replay" / "before").glob("*/transcript/*")}
    assert "estimates.f32" in compared
    wide = {path.parent.name for path in (tmp_path / "replay" / "before").glob(f"*/{WIDE}")}
    assert len(wide) == 1 + bool(data)


def test_what_is_sent_are_unbiased_estimates_of_the_trained_records(tmp_path: Path) -> None:
    agreed = job(validation=0.2)
    train(agreed, tmp_path / "run", record_steps=1)
    data = load(agreed.data)
    schedule = Schedule(agreed, data.train, data.test)
    noisy, _ = noisy_labels_for(
        agreed, data.label_side, tmp_path / "run" / "label" / "vault", lambda text: None, NO_LIMITS
    )
    sent = np.fromfile(tmp_path / "run" / "feature" / "transcript" / "estimates.f32", dtype=np.float32)
    keep = 1 / (1 + np.exp(-randomized_response(1.0).epsilon))
    expected = (noisy.draws[0].astype(float) - (1 - keep)) / (2 * keep - 1)
    np.testing.assert_allclose(sent, expected[schedule.trained], rtol=1e-6)
    assert len(sent) == len(data.train) - len(schedule.held_out)


INTERRUPTED = job(NATURAL, validation=0.1, patience=1, epochs=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an undisturbed run and its vault."""
    folder = tmp_path_factory.mktemp("whole")
    train(INTERRUPTED, folder / "run", vault=VaultChoice(folder / "vault", policy=NO_LIMITS), record_steps=100)
    return folder


@pytest.mark.parametrize(("during", "at"), [("fitting", 20), ("epoch", 2), ("epoch", 6)])
def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path, whole: Path, during: str, at: int) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int, note: str) -> None:
        if note.startswith(during) and done == at:
            raise Interrupted

    broken, vault = tmp_path / "broken", VaultChoice(whole / "vault", policy=NO_LIMITS)
    with pytest.raises(Interrupted):
        train(INTERRUPTED, broken, vault=vault, watching=Watching(progress=interrupt), record_steps=100)
    train(INTERRUPTED, broken, vault=vault, record_steps=100)
    assert files(whole / "run") == files(broken)


def test_a_finished_run_predicts_what_it_predicted_and_records_it_never_saw(tmp_path: Path) -> None:
    agreed, told = job(NATURAL, validation=0.1), list[tuple[int, int, str]]()
    train(agreed, tmp_path / "run", watching=Watching(progress=lambda *now: told.append(now)))
    assert told.count((78, 78, "fitting the wide part")) == 2, "both parties say how far they are"
    fitting = told.index((0, 0, "fitting the wide part"))
    assert told[fitting - 1] == (0, 0, "preparing the wide part"), "nothing else is shown after the release"
    data = load(agreed.data)
    found = TrainedModel.open(tmp_path / "run").predict_rows(data, data.test)
    np.testing.assert_array_equal(found, RunFolder(tmp_path / "run").predictions(1)["test"])
    halves = TrainedModel.open(tmp_path / "run").halves()
    alone = {name: features.take(data.test[5:6]) for name, features in data.feature_parties.items()}
    assert data.label_features is not None
    again = halves.probabilities({**alone, "label": data.label_features.take(data.test[5:6])})
    np.testing.assert_allclose(again, found[5:6], rtol=1e-5)
    broken = tmp_path / "run" / "feature" / WIDE
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(PredictionError, match=r"wide\.safetensors: is damaged"):
        TrainedModel.open(tmp_path / "run").predict_rows(data)
    broken.unlink()
    with pytest.raises(PredictionError, match=r"wide\.safetensors: cannot be read"):
        TrainedModel.open(tmp_path / "run").predict_rows(data)


def test_held_out_records_have_no_part_in_it(tmp_path: Path) -> None:
    """They judge: a wide part that was fitted on them would be praised by its own noise."""
    agreed = job(NATURAL, validation=0.2)
    data = load(agreed.data)
    side = data.label_side.records
    noisy, _ = noisy_labels_for(agreed, data.label_side, tmp_path / "vault", lambda text: None, NO_LIMITS)
    held_out = Schedule(agreed, side.train, side.test).held_out
    fit_own_wide_part(agreed, side, noisy, tmp_path / "one")
    flipped = noisy.draws[0].copy()
    flipped[held_out] ^= 1
    fit_own_wide_part(agreed, side, dataclasses.replace(noisy, draws=(flipped,)), tmp_path / "other")
    assert (tmp_path / "one" / WIDE).read_bytes() == (tmp_path / "other" / WIDE).read_bytes()
    assert side.features is not None
    scored = features_in_training(agreed, side.features, tmp_path / "one")
    assert scored.numeric.shape[1] == side.features.numeric.shape[1] + 1


def test_pre_trained_weights_are_those_of_the_network_without_it(tmp_path: Path) -> None:
    with_it, without = job(pretrain=PRETRAIN), job(wide=False, pretrain=PRETRAIN)
    side = load(with_it.data).feature_sides["feature"]
    weights = pretrained_weights(with_it, side)
    for name, weight in pretrained_weights(without, side).items():
        np.testing.assert_array_equal(weights[name], weight)
    from tpsl.data.features import Features
    from tpsl.heads.wide_part import with_scores
    from tpsl.run.build import build_feature_party

    scored: Features = with_scores(side.features, np.zeros(len(side.features), np.float32))
    bottom = build_feature_party(with_it, "feature", scored).bottom
    fresh = {name: value.clone() for name, value in bottom.state_dict().items()}
    load_pretrained(bottom, weights)
    for name, value in bottom.state_dict().items():
        narrow = weights[name]
        loaded = value[:, : narrow.shape[1]] if value.shape != narrow.shape else value
        np.testing.assert_array_equal(loaded, narrow)
        if value.shape != narrow.shape:
            np.testing.assert_array_equal(value[:, -1], fresh[name][:, -1])


def test_the_local_head_trusts_what_held_out_records_tell_it_to(tmp_path: Path) -> None:
    agreed = job(head="local", pretrain=PRETRAIN, validation=0.2)
    train(agreed, tmp_path / "run")
    head = load_file(tmp_path / "run" / "label" / NOT_PRIVATE / "local_head.safetensors")
    # Frozen embeddings of two members with 8 numbers each, then for each member its 8 trained numbers and the score.
    assert head["parts.0.columns"].tolist() == [*range(16), 24, 33], "of the linear part"
    assert head["parts.1.columns"].tolist() == [*range(16), 24, 33]
    assert head["parts.2.columns"].tolist() == list(range(35))
    assert head["private"].tolist() == [34]
    assert len(head["weights"]) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": {"gradients": "none"}, "training": {"head": "local"}},
        {"method": "statistic"},
    ],
)
def test_a_job_without_labels_at_the_start_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(JobError) as error:
        make_job({"model": {"wide": True}}, changes, "test")
    assert error.value.code == "wide-without-labels"


def test_more_than_two_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two classes, not for 3"):
        train(job({"classes": 3}), tmp_path / "run")


def test_one_estimate_for_each_noisy_label(tmp_path: Path) -> None:
    agreed = job(privacy={"draws": 2})
    noisy, _ = noisy_labels_for(agreed, load(agreed.data).label_side, tmp_path / "vault", lambda text: None, NO_LIMITS)
    assert not np.array_equal(label_estimates(noisy), label_estimates(noisy, draw=1))
    assert abs(float(label_estimates(noisy).mean()) - reveal(load(agreed.data).labels).mean()) < 0.1


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    agreed = job()
    train(agreed, tmp_path / "run")
    save_file({"scores": load_file(tmp_path / "run" / "feature" / WIDE)["scores"]}, tmp_path / "run" / "feature" / WIDE)
    with pytest.raises(PredictionError, match="is damaged"):
        TrainedModel.open(tmp_path / "run").predict_rows(load(agreed.data))
