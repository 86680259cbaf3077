"""All attacks on recorded runs: what they reach is what the mechanism's table predicts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.attacks import ATTACKS, Attack, AttackedRun, AttackError, KnownLabels, run_attacks
from tpsl.attacks.auc_prediction import auc_ceiling, predicted_auc
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.registry import UnknownName
from tpsl.run.job import make_job
from tpsl.run.one_process import train

from .conftest import NATURAL, SIGMAS, SMALL, deviation

PRIVACY = [
    {"mechanism": "laplace", "epsilon": 0.1, "estimator": "linear"},
    {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"},
    {"mechanism": "laplace", "epsilon": 4.0, "estimator": "posterior"},
    {"mechanism": "discrete", "epsilon": 1.0, "estimator": "linear"},
    {"mechanism": "discrete", "epsilon": 1.0, "estimator": "unbiased"},
    {"mechanism": "discrete", "epsilon": 1.0, "estimator": "posterior"},
    {"mechanism": "gaussian", "sigma": 1.0, "delta": 1e-5, "estimator": "linear"},
]


@pytest.mark.parametrize("privacy", PRIVACY, ids=lambda p: f"{p['mechanism']}-{p.get('epsilon')}-{p['estimator']}")
def test_attacks_reach_their_closed_forms(recorded: Callable[..., Any], privacy: dict[str, Any]) -> None:
    run = recorded(privacy)
    which = ["shortest_distance", "shortest_distance_soft", "likelihood"]
    report = run_attacks(run.path, run.data.labels, which=which)
    assert report.closed_form == predicted_auc(run.job.privacy.build(2)).shortest_distance
    closed = {attack.name for attack in report.attacks if attack.closed_form is not None}
    assert closed == set(which)
    for attack in report.attacks:
        if attack.closed_form is not None:
            assert abs(attack.auc - attack.closed_form) < SIGMAS * deviation(attack), attack
    best = report["likelihood"]
    assert best.auc < best.ceiling + SIGMAS * deviation(best)
    assert best.records == 6000
    assert best.batches == 12


def test_of_labels_that_were_handed_over_their_likelihood_is_all_there_is(recorded: Callable[..., Any]) -> None:
    privacy = {"mechanism": "discrete", "epsilon": 1.0, "estimator": "posterior"}
    run = recorded(privacy, exchange="labels")
    report = run_attacks(run.path, run.data.labels)
    assert {attack.name for attack in report.attacks} == {"likelihood", "noisy_label_with_features", "no_transcript"}
    assert "uses gradients, and none crossed" in report.not_run["norm"]
    found = [run_attacks(one.path, one.data.labels, which=["likelihood"]) for one in (run, recorded(privacy))]
    assert found[0]["likelihood"].auc == found[1]["likelihood"].auc
    with pytest.raises(AttackError, match="the attack 'spectral' uses gradients, and none crossed"):
        run_attacks(run.path, run.data.labels, which=["spectral"])


@pytest.mark.parametrize("mechanism", ["discrete", "laplace"])
def test_k_classes(recorded: Callable[..., Any], mechanism: str) -> None:
    run = recorded({"mechanism": mechanism, "epsilon": 2.0, "estimator": "posterior"}, data={"classes": 4})
    report = run_attacks(run.path, run.data.labels)
    assert {attack.name for attack in report.attacks} == {
        "shortest_distance",
        "shortest_distance_soft",
        "likelihood",
        "noisy_label_with_features",
        "completion",
        "no_transcript",
    }
    assert "tells two classes apart, not 4" in report.not_run["norm"]
    for name in ("shortest_distance", "shortest_distance_soft", "likelihood"):
        found = report[name]
        assert abs(found.auc - found.closed_form) < SIGMAS * deviation(found), name
    predicted = predicted_auc(run.job.privacy.build(4))
    assert report["shortest_distance"].closed_form == predicted.likelier_class < predicted.best_score - 0.02


def test_k_classes_shortest_distance_has_its_closed_form_for_discrete_noise(recorded: Callable[..., Any]) -> None:
    run = recorded({"mechanism": "discrete", "epsilon": 2.0, "estimator": "linear"}, data={"classes": 4, "signal": 0.0})
    found = run_attacks(run.path, run.data.labels, which=["shortest_distance"])["shortest_distance"]
    assert abs(found.auc - found.closed_form) < SIGMAS * deviation(found)


def test_without_privacy_every_gradient_attack_succeeds(recorded: Callable[..., Any]) -> None:
    run = recorded({"mechanism": "none"}, data={"positive_rate": 0.1}, epochs=2, batch_size=100)
    report = run_attacks(run.path, run.data.labels, features=run.data.feature_parties, skip=60)
    assert set(ATTACKS) - {"statistic"} == {attack.name for attack in report.attacks}
    for name in ("shortest_distance", "likelihood"):
        assert report[name].auc > 0.98, name
    assert report["direction"].auc > 0.95
    assert report["norm"].auc_folded > 0.8
    assert report["spectral"].auc_folded > 0.8
    assert report["no_transcript"].auc > 0.6
    assert report["completion"].auc > 0.6
    assert report["norm"].batches == 60
    content = json.loads(json.dumps(report.as_dict()))
    assert content["epsilon"] is None
    assert content["ceiling"] == 1.0
    assert {"auc", "auc_low", "auc_high", "closed_form", "needs"} <= content["attacks"]["norm"].keys()


def test_the_attackers_own_knowledge_is_not_scored(recorded: Callable[..., Any]) -> None:
    run = recorded({"mechanism": "none"})
    rows = run.data.train[:70]
    known = KnownLabels(rows, reveal(run.data.labels)[rows])
    report = run_attacks(run.path, run.data.labels, known=known, which=["norm", "direction"])
    assert report.known_labels == 70
    assert {attack.records for attack in report.attacks} == {6000 - 70}


def test_true_labels_only_score(recorded: Callable[..., Any]) -> None:
    """With all labels exchanged the same guesses are wrong by as much as they were right."""
    run = recorded({"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"})
    which = [name for name in ATTACKS if "labels" not in ATTACKS.get(name).needs]
    right = run_attacks(run.path, run.data.labels, which=which)
    wrong = run_attacks(run.path, TrueLabels(1 - reveal(run.data.labels), ("0", "1")), which=which)
    for name in which:
        assert right[name].auc == pytest.approx(1 - wrong[name].auc)


def test_two_draws_are_counted_in_the_ceiling(recorded: Callable[..., Any]) -> None:
    run = recorded({"mechanism": "discrete", "epsilon": 1.0, "estimator": "linear", "draws": 2})
    report = run_attacks(run.path, run.data.labels, which=["likelihood"])
    assert report.epsilon == pytest.approx(2.0)
    assert report.ceiling == auc_ceiling(report.epsilon)
    assert abs(report["likelihood"].auc - report["likelihood"].closed_form) < SIGMAS * deviation(report["likelihood"])


def test_label_features_leave_no_white_box(recorded: Callable[..., Any]) -> None:
    run = recorded({"mechanism": "discrete", "epsilon": 1.0}, data=NATURAL)
    report = run_attacks(run.path, run.data.labels, features=run.data.feature_parties)
    assert set(report.not_run) == {name for name in ATTACKS if "weights" in ATTACKS.get(name).needs}
    with pytest.raises(AttackError, match="features of its own"):
        run_attacks(run.path, run.data.labels, which=["likelihood"])


def test_members_are_read_as_one_network_is(recorded: Callable[..., Any]) -> None:
    privacy = {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"}
    run = recorded(privacy, data={"rows": 4000}, model={**SMALL, "members": 3}, batch_size=200, averaging=0.9)
    report = run_attacks(run.path, run.data.labels, features=run.data.feature_parties)
    assert not report.not_run
    for name in ("shortest_distance", "likelihood"):
        attack = report[name]
        assert attack.closed_form is not None
        assert abs(attack.auc - attack.closed_form) < SIGMAS * deviation(attack)


def test_attacks_that_need_features_are_left_out_where_there_are_none(tmp_path: Path) -> None:
    """The label party attacks a run of two organisations: it has the transcript, not the features."""
    rows = range(400)
    features, label = tmp_path / "features.csv", tmp_path / "label.csv"
    features.write_text("id,x\n" + "".join(f"{row},{row % 7}\n" for row in rows))
    label.write_text("id,label\n" + "".join(f"{row},{row % 2}\n" for row in rows))
    content = {
        "data": {
            "source": "table",
            "features": [{"path": str(features), "numeric": ["x"]}],
            "label": {"path": str(label)},
        },
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"bottom": [8], "top": []},
    }
    train(make_job(content, {}, "test"), tmp_path / "run", record_steps=10**9)
    features.unlink()
    labels = TrueLabels(np.arange(400) % 2, ("0", "1"))
    report = run_attacks(tmp_path / "run", labels)
    assert set(report.not_run) == {"noisy_label_with_features", "completion", "no_transcript"}
    assert all("features.csv" in reason for reason in report.not_run.values())
    with pytest.raises(AttackError, match="needs the feature parties' features, which are not here"):
        run_attacks(tmp_path / "run", labels, which=["completion"])


def test_requests_that_cannot_be_met(recorded: Callable[..., Any], tmp_path: Path) -> None:
    run = recorded({"mechanism": "none"})
    with pytest.raises(UnknownName, match="unknown attack 'nrom'; known are norm, "):
        run_attacks(run.path, run.data.labels, which=["nrom"])
    with pytest.raises(AttackError, match="12 recorded steps, so none is left after skipping 12"):
        run_attacks(run.path, run.data.labels, which=["norm"], skip=12)
    with pytest.raises(AttackError, match="there are 100 labels"):
        run_attacks(run.path, TrueLabels(reveal(run.data.labels)[:100], ("0", "1")), which=["norm"])
    train(run.job, tmp_path / "silent", data=run.data)
    with pytest.raises(ValueError, match="holds no transcript"):
        run_attacks(tmp_path / "silent", run.data.labels, which=["norm"])


def test_an_attack_that_is_registered_is_one_of_the_suite(recorded: Callable[..., Any]) -> None:
    """It gets what it asks the run for, is scored like the others, and what it knows is not scored."""
    run = recorded({"mechanism": "none"})

    def prepare(seen_run: AttackedRun) -> Callable[[Any], Any]:
        assert not hasattr(seen_run, "true_labels")
        positive = {int(row) for row, label in zip(seen_run.known.rows, seen_run.known.labels, strict=True) if label}
        assert len(positive) == 20
        logits = seen_run.reader.evidence
        return lambda seen: -logits(seen)

    ATTACKS.register("contrary", Attack("transcript+weights+known labels", prepare))
    report = run_attacks(run.path, run.data.labels, which=["likelihood", "contrary"])
    assert report["contrary"].auc == pytest.approx(1 - report["likelihood"].auc)
    assert (report.known_labels, report["contrary"].records) == (40, 6000 - 40)
    assert report["contrary"].needs == "transcript+weights+known labels"


def test_an_attack_above_an_estimated_bound_raises_it_for_its_kind(recorded: Callable[..., Any]) -> None:
    run = recorded({"mechanism": "discrete", "epsilon": 1.0})
    truth = reveal(run.data.labels).astype(float)
    ATTACKS.register("oracle", Attack("transcript", lambda run: lambda seen: truth[seen.rows]))
    report = run_attacks(run.path, run.data.labels, which=["norm", "oracle", "likelihood", "no_transcript"])
    assert report["oracle"].auc == report["oracle"].ceiling == report["norm"].ceiling == 1.0
    assert not report["oracle"].above_ceiling
    assert report["likelihood"].ceiling == auc_ceiling(1.0)  # proved: no attack raises it
    assert report["no_transcript"].ceiling < 1.0  # another kind of attacker
