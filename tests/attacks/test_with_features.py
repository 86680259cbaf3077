"""The attacker with features, and the ceiling that is its own."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.attacks import AttackResult, run_attacks
from tpsl.attacks.as_features import embeddings_as_features
from tpsl.attacks.auc_prediction import auc_ceiling
from tpsl.attacks.transcript_walk import PreparedAttack, evaluate_attacks
from tpsl.attacks.with_features import (
    RowScores,
    _unbiased,
    drawn_evidence,
    most_likely_weights,
    out_of_fold,
    with_bins,
)
from tpsl.data.config import SyntheticData
from tpsl.data.dataset import load_label_party
from tpsl.data.features import Features, joined_features
from tpsl.data.synthetic import World
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import integer_weights, laplace, randomized_response, table_mechanism
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.run.transcript import TranscriptStep

from .conftest import NATURAL, SIGMAS, deviation

TELLING = {"numeric_fields": 6, "categorical_fields": 1, "signal": 3.0, "positive_rate": 0.1}
"""Synthetic records whose features tell much; trained on them, a network scales its gradients by what they tell."""


def ceiling_deviation(result: AttackResult) -> float:
    return (result.ceiling_high - result.ceiling_low) / (2 * 1.96)


@pytest.fixture(scope="module")
def telling(recorded: Callable[..., Any]) -> Any:
    privacy = {"mechanism": "discrete", "epsilon": 1.0}
    return recorded(privacy, data=TELLING, model={"bottom": [32], "top": []}, epochs=4, batch_size=100)


def assert_strongest_and_below_its_ceiling(attacks: dict[str, AttackResult]) -> None:
    strongest = attacks["noisy_label_with_features"]
    for attack in attacks.values():
        assert strongest.auc > attack.auc - 0.005, attack
        assert not attack.above_ceiling, attack
        assert attack.auc < attack.ceiling + SIGMAS * math.hypot(deviation(attack), ceiling_deviation(attack)), attack


def test_attacks_that_profit_from_features_stand_beside_a_ceiling_that_knows_them(telling: Any) -> None:
    report = run_attacks(telling.path, telling.data.labels, features=telling.data.feature_parties)
    attacks = {attack.name: attack for attack in report.attacks}
    alone = auc_ceiling(1.0)
    assert report.ceiling == pytest.approx(alone)
    assert report.predicted_from == ("an additive model of the features", "the network's logits")
    for name in ("norm", "spectral"):  # more than ε allows the transcript alone, and no breach
        assert attacks[name].auc_low > alone
        assert attacks[name].scored_by == "noisy label and features"
        assert attacks[name].ceiling_is_estimated
    for name in ("shortest_distance", "shortest_distance_soft", "likelihood"):
        assert (attacks[name].scored_by, attacks[name].ceiling) == ("noisy label", pytest.approx(alone))
        assert not attacks[name].ceiling_is_estimated
    reference = attacks["no_transcript"]
    assert reference.scored_by == "features"
    assert reference.ceiling < attacks["norm"].ceiling
    assert_strongest_and_below_its_ceiling(attacks)
    assert attacks["noisy_label_with_features"].auc > attacks["likelihood"].auc + 0.1


def test_on_flights_too(recorded: Callable[..., Any]) -> None:
    privacy, model = {"mechanism": "discrete", "epsilon": 1.0}, {"embedding_dim": 4, "bottom": [32], "top": [32]}
    run = recorded(privacy, data={"source": "flights", "rows": 12_000}, model=model)
    report = run_attacks(run.path, run.data.labels, features=run.data.feature_parties)
    assert_strongest_and_below_its_ceiling({attack.name: attack for attack in report.attacks})
    assert report["noisy_label_with_features"].auc > report["likelihood"].auc + 0.05


def test_k_classes(recorded: Callable[..., Any]) -> None:
    run = recorded({"mechanism": "discrete", "epsilon": 2.0, "estimator": "posterior"}, data={"classes": 4})
    report = run_attacks(run.path, run.data.labels, features=run.data.feature_parties)
    assert_strongest_and_below_its_ceiling({attack.name: attack for attack in report.attacks})


def test_the_estimated_ceiling_is_near_the_true_one(telling: Any) -> None:
    """Of synthetic records the true p(x) is known: no score is better than its log-odds and the noisy label's."""
    job, data = telling.job, telling.data
    assert isinstance(job.data, SyntheticData)
    probabilities = np.concatenate([chunk.probabilities for chunk in World(job.data).chunks()])
    mechanism = job.privacy.build(2)
    rows = np.unique(np.concatenate([seen.rows for seen in telling.transcript]))
    best = np.log(probabilities[rows]) + drawn_evidence(mechanism, reveal(data.labels)[rows])
    (true,) = evaluate_attacks(
        telling.transcript, [PreparedAttack("best", "", RowScores(rows, best))], reveal(data.labels)
    )
    found = run_attacks(telling.path, data.labels, which=["norm"], features=data.feature_parties)["norm"]
    chance = SIGMAS * math.hypot(deviation(true), ceiling_deviation(found))
    assert true.auc - 0.02 - chance < found.ceiling < true.auc + chance


def test_where_features_say_nothing_the_ceiling_is_that_of_the_noisy_label(recorded: Callable[..., Any]) -> None:
    run = recorded({"mechanism": "discrete", "epsilon": 1.0}, data={"signal": 0.0})
    report = run_attacks(run.path, run.data.labels, features=run.data.feature_parties)
    norm = report["norm"]
    assert abs(norm.ceiling - report.ceiling) < SIGMAS * ceiling_deviation(norm)
    strongest, likelihood = report["noisy_label_with_features"], report["likelihood"]
    assert abs(strongest.auc - likelihood.auc) < 0.015
    assert report["no_transcript"].ceiling == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("own", [False, True], ids=["labels alone", "labels and features"])
def test_without_features_the_embeddings_predict(own: bool, tmp_path: Path) -> None:
    """The label party of two organisations has the transcript and its own side, not the features."""
    rows = range(2000)
    features, label = tmp_path / "features.csv", tmp_path / "label.csv"
    features.write_text("id,x\n" + "".join(f"{row},{row % 7}\n" for row in rows))
    label.write_text("id,label,w\n" + "".join(f"{row},{int(row % 7 > 3)},{row % 5}\n" for row in rows))
    content = {
        "data": {
            "source": "table",
            "features": [{"path": str(features), "numeric": ["x"]}],
            "label": {"path": str(label), "numeric": ["w"] if own else []},
        },
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"bottom": [8], "top": []},
        "training": {"batch_size": 20, "epochs": 3, "patience": 0},
    }
    job = make_job(content, {}, "test")
    train(job, tmp_path / "run", record_steps=10**9)
    features.unlink()
    labels = load_label_party(job.data).labels
    report = run_attacks(tmp_path / "run", labels, which=["norm", "spectral"])
    assert report.predicted_from == ("an additive model of the embeddings", "the network's logits")[: 1 if own else 2]
    assert report["norm"].ceiling > report.ceiling + 0.05


def test_features_of_the_label_party_count(recorded: Callable[..., Any]) -> None:
    """Gradients depend on them too. Noisy labels cannot be read then, so they are drawn for the evaluation."""
    run = recorded({"mechanism": "discrete", "epsilon": 1.0}, data=NATURAL)
    report = run_attacks(run.path, run.data.labels, features=run.data.feature_parties)
    assert report.predicted_from == ("an additive model of the features",)
    assert "features of its own" in report.not_run["noisy_label_with_features"]
    assert report["norm"].ceiling > report["no_transcript"].ceiling
    assert math.isnan(run_attacks(run.path, run.data.labels, which=["norm"], ceilings=False)["norm"].ceiling)


def features(n: int) -> Features:
    rng = np.random.default_rng(2)
    numbers = rng.normal(size=(n, 2)).astype(np.float32)
    return Features(rng.integers(0, 3, (n, 1)).astype(np.int32), numbers, 3, ("c",), ("a", "b"))


def test_joined_features_hold_all_fields_and_bins_of_numbers() -> None:
    joined = with_bins(joined_features([features(200), features(200)]))
    assert joined.categorical_fields == ("c", "c", "a in bins", "b in bins", "a in bins", "b in bins")
    assert joined.numeric_fields == ("a", "b", "a", "b")
    assert all(np.bincount(joined.categorical[:, 2] - joined.categorical[:, 2].min()) <= 7)  # of 200 in 32 bins
    assert len(np.unique(joined.categorical[:, 0])) == len(np.unique(joined.categorical[:, 1])) == 3


def test_embeddings_stand_in_for_features() -> None:
    """Two directions vary; all that lies along others is rounding."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(600, 2)) * [5.0, 1.0]
    sent = (hidden @ rng.normal(size=(2, 20)) + 3.0).astype(np.float32)
    empty = np.zeros((200, 0), dtype=np.float32)
    steps = [TranscriptStep(i, rows, sent[rows], empty) for i, rows in enumerate(np.arange(600).reshape(3, 200))]
    found = embeddings_as_features(lambda: steps, 700)
    assert found.numeric.shape == (700, 8)
    assert (found.numeric[600:] == 0).all()
    explained = np.linalg.lstsq(found.numeric[:600, -2:], hidden - hidden.mean(axis=0), rcond=None)[0]
    np.testing.assert_allclose(found.numeric[:600, -2:] @ explained, hidden - hidden.mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(found.numeric[:600, -2:].std(axis=0), 1.0, atol=1e-3)


def test_no_record_is_scored_by_its_own_label() -> None:
    held, rows = with_bins(features(500)), np.arange(500)
    labels = (held.numeric[:, 0] > 0).astype(np.float64)
    estimates = np.stack([1 - labels, labels], axis=1)
    usable = np.ones(500, dtype=bool)
    before = out_of_fold(held, rows, estimates, usable)
    estimates[77] = estimates[77, ::-1]
    after = out_of_fold(held, rows, estimates, usable)
    assert (before[77] == after[77]).all()
    assert (before != after).any()
    usable[77] = False
    estimates[77] = 1e9  # a record that cannot be read has no part in any model
    assert np.abs(out_of_fold(held, rows, estimates, usable)).max() < 100


@pytest.mark.parametrize("classes", [2, 4])
def test_weights_are_found_through_noisy_labels(classes: int) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(60_000, classes)) for _ in range(2)]
    logits = 1.5 * parts[0] + 0.5 * parts[1]
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    evidence = drawn_evidence(randomized_response(2.0, classes), labels)
    weights, _ = most_likely_weights(parts, evidence)
    np.testing.assert_allclose(weights, [1.5, 0.5], atol=0.1)
    weights, _ = most_likely_weights([-parts[0]], evidence)
    assert weights[0] < 1e-3  # never below 0


def test_a_draw_for_the_evaluation_is_not_that_of_a_seeded_run() -> None:
    mechanism, labels = laplace(1.0), np.zeros(1000, dtype=np.int64)
    likelihood = mechanism.log_likelihood(mechanism.release(labels, 0).outcomes)
    ours = drawn_evidence(mechanism, labels)
    assert abs(np.corrcoef(ours[:, 1] - ours[:, 0], likelihood[:, 1] - likelihood[:, 0])[0, 1]) < 4.9 / math.sqrt(1000)
    assert not np.array_equal(ours, drawn_evidence(mechanism, labels, 1))


def test_estimates_from_a_table_of_a_users_own_are_unbiased_for_every_class() -> None:
    rows = [[0.5, 0.3, 0.1, 0.1], [0.2, 0.5, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]
    mechanism = table_mechanism("uneven", integer_weights(rows, 2.0))
    labels = np.repeat(np.arange(3), 40_000)
    estimates = _unbiased(drawn_evidence(mechanism, labels), mechanism)
    for label in range(3):
        of_class = estimates[labels == label]
        deviation = of_class.std(axis=0) / math.sqrt(len(of_class))
        assert np.all(np.abs(of_class.mean(axis=0) - np.eye(3)[label]) < 5.5 * deviation)
