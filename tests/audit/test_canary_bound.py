"""The audit passes what keeps its promise and catches what does not: half the noise, noise redrawn each epoch."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

from tpsl.audit import AuditError, audit, clopper_pearson_lower
from tpsl.audit.canaries import OWN_FEATURES, plant_canaries
from tpsl.audit.canary_bound import attack_canaries
from tpsl.data.dataset import Dataset, load
from tpsl.data.true_labels import reveal
from tpsl.files import for_json
from tpsl.mechanisms import RandomizedResponse, randomized_response, secure_words, seeded_words
from tpsl.mechanisms.additive_noise import AdditiveMechanism
from tpsl.run.build import LabelPartyBuilder, build_label_party
from tpsl.run.job import Job
from tpsl.run.one_process import ALL_STEPS
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.split.label_party import LabelParty

CERTAIN = 1 - 1e-6


def test_randomised_response_at_1_with_20000_canaries(job: Callable[..., Job], tmp_path: Path) -> None:
    agreed = job(
        {"mechanism": "discrete", "epsilon": 1.0},
        data={"source": "synthetic", "rows": 26_000, "numeric_fields": 3, "categorical_fields": 4},
        epochs=1,
    )
    result = audit(agreed, tmp_path / "audit", seed=1)
    assert (result.canaries, result.confidence) == (20_000, 0.95)
    assert 0.9 <= result.lower_bound <= 1.0
    assert result.passed
    assert result.claimed == pytest.approx(1.0)
    assert result.p_value > 0.05
    content = json.loads(json.dumps(for_json(asdict(result))))
    assert {"claimed", "lower_bound", "confidence", "passed"} <= content.keys()


HEALTHY = [
    {"mechanism": "discrete", "epsilon": 0.5, "estimator": "linear"},
    {"mechanism": "discrete", "epsilon": 1.0, "estimator": "posterior"},
    {"mechanism": "discrete", "epsilon": 1.0, "estimator": "unbiased", "draws": 2},
    {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"},
    {"mechanism": "laplace", "epsilon": 4.0, "estimator": "posterior"},
    {"mechanism": "gaussian", "sigma": 0.5, "delta": 1e-5, "estimator": "linear"},
]


@pytest.mark.parametrize("privacy", HEALTHY, ids=lambda p: f"{p['mechanism']}-{p['estimator']}")
def test_no_false_alarm_and_no_idle_audit(job: Callable[..., Job], tmp_path: Path, privacy: dict[str, Any]) -> None:
    result = audit(job(privacy), tmp_path / "audit", confidence=CERTAIN, seed=2)
    assert result.passed
    assert result.noise_changed == 0.0
    assert result.canaries == 4000
    mechanism = job(privacy).privacy.build(2)
    if mechanism.delta == 0:  # one draw's ε is nearly reached: the attack is the strongest there is
        middle = audit(job(privacy), tmp_path / "middle", confidence=0.5, seed=2).lower_bound
        assert middle > 0.8 * mechanism.epsilon
    else:
        assert result.lower_bound > 0.5


@pytest.mark.parametrize("mechanism", ["discrete", "laplace"])
@pytest.mark.parametrize("estimator", ["linear", "posterior"])
def test_k_classes(job: Callable[..., Job], tmp_path: Path, mechanism: str, estimator: str) -> None:
    data = {"source": "synthetic", "rows": 5000, "numeric_fields": 3, "categorical_fields": 4, "classes": 4}
    agreed = job({"mechanism": mechanism, "epsilon": 2.0, "estimator": estimator}, data=data)
    result = audit(agreed, tmp_path / "audit", confidence=CERTAIN, seed=3)
    assert result.passed
    assert result.lower_bound > 0.8
    assert np.isnan(result.noise_changed) if (mechanism, estimator) == ("laplace", "linear") else True


def test_own_features_of_the_label_party(job: Callable[..., Job], tmp_path: Path) -> None:
    agreed = job(
        {"mechanism": "discrete", "epsilon": 1.0}, data={"source": "flights", "layout": "natural", "rows": 5000}
    )
    result = audit(agreed, tmp_path / "audit", confidence=CERTAIN, seed=4)
    assert result.passed
    assert result.lower_bound > 0.6
    assert (tmp_path / "audit" / "run" / OWN_FEATURES / "transcript").is_dir()


def test_no_noise_claims_nothing_and_is_seen_through(job: Callable[..., Job], tmp_path: Path) -> None:
    result = audit(job({"mechanism": "none", "noise_seed": None}), tmp_path / "audit", confidence=CERTAIN)
    assert result.accuracy > 0.999
    assert result.lower_bound > 4.0
    assert result.passed
    assert for_json(asdict(result))["claimed"] is None


def half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables still claim ε; the sampler draws noise for 2ε."""
    exact = AdditiveMechanism._draw

    def keeps_too_often(self: RandomizedResponse, labels: Any, words: Any) -> Any:
        return labels ^ (words >= np.uint64(randomized_response(2 * self.parameters["epsilon"]).keep))

    def halves_the_noise(self: AdditiveMechanism, labels: Any, words: Any) -> Any:
        true = np.searchsorted(self.values, labels)
        return true + (exact(self, labels, words) - true) // 2

    monkeypatch.setattr(RandomizedResponse, "_draw", keeps_too_often)
    monkeypatch.setattr(AdditiveMechanism, "_draw", halves_the_noise)


@pytest.mark.parametrize("mechanism", ["discrete", "laplace"])
def test_half_the_noise_is_caught(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    half_the_noise(monkeypatch)
    agreed = job({"mechanism": mechanism, "epsilon": 1.0, "estimator": "linear"})
    result = audit(agreed, tmp_path / "audit", confidence=CERTAIN, seed=5)
    assert not result.passed
    assert result.lower_bound > 1.2
    assert result.claimed == pytest.approx(1.0)
    assert result.p_value < 1e-6


def redrawing(labels: np.ndarray) -> LabelPartyBuilder:
    """A label party that keeps the true labels and draws new noise at the beginning of each epoch."""

    class Redrawing(LabelParty):
        used, epoch = 0, 0

        def backward(self, batch: Any, rows: Any, received: Any, records: int) -> Any:
            if self.used == len(labels):
                self.used, self.epoch = 0, self.epoch + 1
                fresh = self.logit_gradient.mechanism.release(labels, seeded_words(self.epoch))
                self._evidence = [self.logit_gradient.evidence(fresh.outcomes)]
            self.used += len(batch)
            return super().backward(batch, rows, received, records)

    def build(*arguments: Any) -> LabelParty:
        party = build_label_party(*arguments)
        party.__class__ = Redrawing
        return party

    return build


@pytest.mark.parametrize(
    "privacy",
    [
        {"mechanism": "discrete", "epsilon": 1.0, "estimator": "posterior"},
        {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"},
    ],
    ids=lambda p: p["mechanism"],
)
def test_noise_redrawn_each_epoch_is_caught(job: Callable[..., Job], tmp_path: Path, privacy: dict[str, Any]) -> None:
    agreed = job(privacy, epochs=3)
    data = load(agreed.data)
    assert audit(agreed, tmp_path / "sound", confidence=CERTAIN, seed=6, data=data).passed
    words = seeded_words(6, "canaries")
    planted = plant_canaries(data, 20_000, words)
    broken = redrawing(reveal(planted.data.labels)[planted.data.train])
    (tmp_path / "broken").mkdir()
    setup = RunSetup(agreed, RunFolder(tmp_path / "broken" / "run"), record_steps=ALL_STEPS)
    result = attack_canaries(setup, planted, CERTAIN, words, broken)
    assert not result.passed
    assert result.noise_changed > 0.4
    assert result.lower_bound > 1.5


def test_canaries_are_fair_coins_on_unchanged_features(job: Callable[..., Job]) -> None:
    data = load(job({"mechanism": "discrete", "epsilon": 1.0}).data)
    planted = plant_canaries(data, 3000, secure_words())
    assert len(np.unique(planted.rows)) == 3000
    assert np.isin(planted.rows, data.train).all()
    assert (reveal(planted.data.labels)[planted.rows] == planted.coins).all()
    others = np.setdiff1d(np.arange(len(data)), planted.rows)
    assert (reveal(planted.data.labels)[others] == reveal(data.labels)[others]).all()
    assert planted.data.feature_parties == data.feature_parties
    # |mean - ½| and the correlation with the true label, each within 4.9 standard deviations.
    assert abs(planted.coins.mean() - 0.5) < 4.9 * 0.5 / np.sqrt(3000)
    assert abs(np.corrcoef(planted.coins, reveal(data.labels)[planted.rows])[0, 1]) < 4.9 / np.sqrt(3000)
    again = plant_canaries(data, 3000, seeded_words(1, "canaries"))
    assert (again.coins == plant_canaries(data, 3000, seeded_words(1, "canaries")).coins).all()


def test_requests_that_cannot_be_met(job: Callable[..., Job], tmp_path: Path) -> None:
    agreed = job({"mechanism": "discrete", "epsilon": 1.0})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(AuditError, match="full: exists already"):
        audit(agreed, tmp_path / "full")
    with pytest.raises(ValueError, match="at least one canary, not 0"):
        audit(agreed, tmp_path / "a", canaries=0)
    with pytest.raises(ValueError, match=r"between 0 and 1, not at 95"):
        audit(agreed, tmp_path / "a", confidence=95)
    assert not (tmp_path / "a").exists()


def test_the_folder_is_its_owners(job: Callable[..., Job], tmp_path: Path) -> None:
    agreed = job({"mechanism": "discrete", "epsilon": 1.0}, epochs=1)
    data = load(agreed.data)
    short, side = data.train[:600], data.label_side
    parties = {party: replace(held, train=short) for party, held in data.feature_sides.items()}
    small = Dataset(parties, replace(side, records=replace(side.records, train=short)))
    assert audit(agreed, tmp_path / "audit", data=small, canaries=100).canaries == 100
    assert (tmp_path / "audit").stat().st_mode & 0o077 == 0


GUESSES = [(0, 1), (1, 1), (1, 10), (9, 10), (10, 10), (731, 1000), (14_621, 20_000), (20_000, 20_000), (1, 20_000)]


@pytest.mark.parametrize(("right", "trials"), GUESSES)
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999999])
def test_the_bound_is_that_of_scipy(right: int, trials: int, confidence: float) -> None:
    expected = beta.ppf(1 - confidence, right, trials - right + 1) if right else 0.0
    assert clopper_pearson_lower(right, trials, confidence) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("right", "trials", "confidence"), [(2, 1, 0.95), (-1, 1, 0.95), (0, 0, 0.95), (1, 2, 1.0)])
def test_what_cannot_be(right: int, trials: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"cannot be right|confidence"):
        clopper_pearson_lower(right, trials, confidence)
