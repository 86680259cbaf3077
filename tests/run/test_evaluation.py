"""Metrics from noisy labels: those of true labels on average, with standard errors that are right; the ensemble."""

from __future__ import annotations

import itertools
import math
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from tests.peak_memory import peak_bytes

from tpsl import metrics, spill
from tpsl.data import out_of_core
from tpsl.mechanisms import (
    Mechanism,
    gaussian,
    identity,
    laplace,
    optimized_unary,
    randomized_response,
)
from tpsl.mechanisms import subset_selection as subset
from tpsl.run.evaluation import (
    corrected_auc,
    ensemble_weights,
    noisy_validation,
    record_log_likelihoods,
)

DRAWS = 80


def predictions(records: int, seed: int, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that are a little too sure of themselves, and the labels of the records."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(records, classes))
    z[:, 0] += 0.8
    own = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    labels = (rng.random((records, 1)) > own.cumsum(axis=1)).sum(axis=1)
    stated = np.exp(1.5 * z) / np.exp(1.5 * z).sum(axis=1, keepdims=True)
    return (stated[:, 1] if classes == 2 else stated).astype(np.float32), labels


def released(mechanism: Mechanism, labels: np.ndarray, seed: int) -> np.ndarray:
    """The debiased noisy label of class 1."""
    values: np.ndarray = mechanism.unbiased_values[mechanism.release(labels, seed).outcomes]
    return values


@pytest.mark.parametrize("mechanism", [randomized_response(1.0, 2), laplace(1.0, 2)], ids=str)
def test_the_mean_over_many_draws_is_the_auc_of_true_labels(mechanism: Mechanism) -> None:
    p, labels = predictions(2000, 1)
    found = np.array([corrected_auc(p, released(mechanism, labels, seed))[0] for seed in range(DRAWS)])
    error = found.std(ddof=1) / math.sqrt(DRAWS)
    assert abs(found.mean() - metrics.auc(p, labels == 1).value) < 5 * error  # α = 6e-7


def test_true_labels_give_the_auc_and_the_error_of_true_labels() -> None:
    p, labels = predictions(2000, 2)
    area = metrics.auc(p, labels == 1)
    value, error = corrected_auc(p, labels.astype(np.float64))
    assert value == pytest.approx(area.value)
    assert error == pytest.approx((area.high - area.low) / 2 / 1.959964, rel=0.02)  # DeLong


def test_an_auc_that_noise_drowns_is_none() -> None:
    p, labels = predictions(300, 4)
    assert np.isnan(corrected_auc(p, released(randomized_response(0.1, 2), labels, 0))).all()
    assert np.isnan(corrected_auc(np.linspace(0, 1, 50), np.zeros(50))).all()


def test_the_error_is_that_of_leaving_out_each_record() -> None:
    p, labels = predictions(400, 5)
    scores, t = p.astype(np.float64).round(2), released(randomized_response(2.0, 2), labels, 6)  # with ties
    area, error = corrected_auc(scores, t)
    left = np.array([area - corrected_auc(np.delete(scores, i), np.delete(t, i))[0] for i in range(400)])
    assert error == pytest.approx(math.sqrt((left**2).sum()), rel=0.05)
    pairs = [(t[i] * (1 - t[j]), scores[i] - scores[j]) for i, j in itertools.permutations(range(400), 2)]
    expected = sum(weight * (0.5 + 0.5 * np.sign(gap)) for weight, gap in pairs) / sum(weight for weight, _ in pairs)
    assert area == pytest.approx(expected)


EXACT = [randomized_response(1.0, 2), randomized_response(0.7, 4), subset(1.0, 5), identity(2), identity(3)]


def outcome_probabilities(mechanism: Mechanism) -> tuple[np.ndarray, np.ndarray]:
    """Every outcome of a table mechanism and `P(outcome | y)`, exactly from the integers."""
    outcomes = np.arange(mechanism.outcomes, dtype=mechanism.outcome_dtype)
    return outcomes, np.exp(mechanism.log_likelihood(outcomes)).T


def every_outcome(mechanism: Mechanism, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One prediction, every outcome, the prediction once for each of them as a network gives it, and the table."""
    k = mechanism.classes
    p = np.random.default_rng(seed).dirichlet(np.ones(k))
    outcomes, table = outcome_probabilities(mechanism)
    return p, outcomes, np.full(len(outcomes), p[1]) if k == 2 else np.tile(p, (len(outcomes), 1)), table


@pytest.mark.parametrize("mechanism", EXACT, ids=str)
def test_the_expected_loss_is_the_log_loss_against_true_labels(mechanism: Mechanism) -> None:
    p, outcomes, given, table = every_outcome(mechanism, 0)
    single = [noisy_validation(mechanism, [outcomes[[i]]], given[[i]]) for i in range(len(outcomes))]
    for y in range(mechanism.classes):
        expected = sum(prob * found.validation_loss for prob, found in zip(table[y], single, strict=True) if prob)
        assert expected == pytest.approx(-math.log(p[y]), rel=1e-5)


@pytest.mark.parametrize("mechanism", EXACT, ids=str)
def test_the_likelihood_is_that_of_the_outcomes(mechanism: Mechanism) -> None:
    p, outcomes, given, table = every_outcome(mechanism, 1)
    with np.errstate(divide="ignore"):
        expected = float(np.log(p @ table).sum())
    assert noisy_validation(mechanism, [outcomes], given).validation_log_likelihood == pytest.approx(expected)
    # Two draws are independent given the label.
    twice = noisy_validation(mechanism, [outcomes, outcomes], given).validation_log_likelihood
    assert twice == pytest.approx(float(np.log(p @ table**2).sum()))


def test_the_auc_against_noisy_labels_is_corrected_exactly() -> None:
    """The expectation of pairs seen and of pairs won over all flips of five records, by enumeration."""
    scores = np.array([0.1, 0.4, 0.4, 0.7, 0.9])
    truth = np.array([0, 0, 1, 0, 1])
    mechanism = randomized_response(0.5, 2)
    keep = math.exp(0.5) / (1 + math.exp(0.5))
    won = pairs = 0.0
    for outcomes in itertools.product((0, 1), repeat=5):
        probability = math.prod(keep if o == y else 1 - keep for o, y in zip(outcomes, truth, strict=True))
        t = (np.array(outcomes) - mechanism.mean(0)) / (mechanism.mean(1) - mechanism.mean(0))
        seen = t.sum() * (1 - t).sum() - (t * (1 - t)).sum()
        pairs += probability * seen
        value, _ = corrected_auc(scores, t)
        won += probability * (value * seen if not math.isnan(value) else brute_force(scores, t))
    assert pairs == pytest.approx(2 * 3)
    assert won / pairs == pytest.approx(metrics.auc(scores, truth == 1).value)


def brute_force(scores: np.ndarray, t: np.ndarray) -> float:
    pairs = itertools.permutations(range(len(scores)), 2)
    return sum(t[i] * (1 - t[j]) * (0.5 * (scores[i] == scores[j]) + (scores[i] > scores[j])) for i, j in pairs)


def test_true_labels_give_the_true_auc_and_loss() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 500)
    p = np.clip(0.3 * labels + 0.7 * rng.random(500), 0.01, 0.99).round(2).astype(np.float32)
    found = noisy_validation(identity(2), [labels.astype(np.uint8)], p)
    assert found.validation_auc == pytest.approx(metrics.auc(p, labels == 1).value)
    assert found.validation_loss == pytest.approx(metrics.log_loss(p, labels), rel=1e-6)
    assert found.validation_log_likelihood == pytest.approx(-500 * metrics.log_loss(p, labels), rel=1e-6)


@pytest.mark.parametrize(
    "mechanism", [laplace(1.0, 2), gaussian(1.0, 1e-5, 2), randomized_response(1.0, 2)], ids=["laplace", "gauss", "rr"]
)
def test_noisy_labels_find_the_better_of_two_predictions(mechanism: Mechanism) -> None:
    rng = np.random.default_rng(3)
    z = rng.normal(size=20_000)
    labels = (rng.random(20_000) < 1 / (1 + np.exp(-z))).astype(np.int64)
    outcomes = mechanism.release(labels, rng=4).outcomes
    good, bad = 1 / (1 + np.exp(-z)), 1 / (1 + np.exp(-z - rng.normal(size=20_000)))
    better, worse = (noisy_validation(mechanism, [outcomes], p) for p in (good, bad))
    assert better.validation_log_likelihood > worse.validation_log_likelihood + 20
    true = metrics.log_loss(good, labels)
    assert abs(better.validation_loss - true) < 5 * better.validation_loss_se  # α = 6e-7
    assert better.validation_auc == pytest.approx(metrics.auc(good, labels == 1).value, abs=0.05)


def predicted_and_drawn(records: int, positives: float, signal: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and labels that are drawn from them."""
    rng = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-math.log(positives / (1 - positives)) - signal * rng.normal(size=records)))
    return p, (rng.random(records) < p).astype(np.int64)


@pytest.mark.parametrize(
    ("mechanism", "records", "positives", "signal"),
    [
        (randomized_response(1.0), 2000, 0.3, 1.0),
        (randomized_response(1.0), 2000, 0.3, 4.0),  # an AUC of 0.95: some estimates lie above 1
        (randomized_response(4.0), 1000, 0.05, 2.0),
    ],
    ids=str,
)
def test_the_interval_of_the_auc_covers_it(mechanism: Mechanism, records: int, positives: float, signal: float) -> None:
    """Of 400 intervals of 95 %, fewer than 92 % cover with a probability of 0.005 if all is well; the seed is fixed."""
    p, labels = predicted_and_drawn(400_000, positives, signal, 0)
    truth, covered, highest = metrics.auc(p, labels == 1).value, 0, 0.0
    for seed in range(400):
        p, labels = predicted_and_drawn(records, positives, signal, seed + 1)
        found = noisy_validation(mechanism, [mechanism.release(labels, rng=seed).outcomes], p)
        covered += found.validation_auc_low <= truth <= found.validation_auc_high
        highest = max(highest, found.validation_auc)
    assert 0.92 <= covered / 400 <= 0.985
    if signal == 4.0:
        assert highest > 1  # it is not clipped


def test_an_auc_that_says_nothing_is_not_told() -> None:
    """126 of 20,000 records are positive, and 1,600 are held out: 1.00 was shown where the test said 0.51."""
    for seed in range(40):
        p, labels = predicted_and_drawn(1600, 0.0063, 1.0, seed)
        mechanism = randomized_response(1.0)
        found = noisy_validation(mechanism, [mechanism.release(labels, rng=seed).outcomes], p)
        assert math.isnan(found.validation_auc) and math.isnan(found.validation_auc_low)
        assert math.isfinite(found.validation_loss)
    p, labels = predicted_and_drawn(400, 0.5, 1.0, 0)  # the classes are seen, but the interval is 0.3 wide
    found = noisy_validation(mechanism, [mechanism.release(labels, rng=0).outcomes], p)
    assert math.isnan(found.validation_auc)
    p, labels = predicted_and_drawn(2000, 0.5, 1.0, 0)
    found = noisy_validation(mechanism, [mechanism.release(labels, rng=0).outcomes], p)
    assert 0 < found.validation_auc_high - found.validation_auc_low <= 0.2


def test_many_classes_have_no_auc_but_a_loss() -> None:
    mechanism = optimized_unary(2.0, 3)
    labels = np.arange(300) % 3
    outcomes = mechanism.release(labels, rng=1).outcomes
    p = np.full((300, 3), 0.1, dtype=np.float32)
    p[np.arange(300), labels] = 0.8
    found = noisy_validation(mechanism, [outcomes], p)
    assert math.isnan(found.validation_auc)
    assert abs(found.validation_loss + math.log(0.8)) < 5 * found.validation_loss_se


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Blocks of a few thousand records, and every column in a file."""
    monkeypatch.setattr(metrics, "_AT_ONCE", 1 << 12)
    monkeypatch.setattr(spill, "ROWS_AT_ONCE", 1 << 14)
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path))


def some(records: int, mechanism: Mechanism) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    p = generator.dirichlet(np.ones(mechanism.classes), records).astype(np.float32)
    outcomes = mechanism.release(generator.integers(0, mechanism.classes, records), 4).outcomes
    return (p[:, 1] if mechanism.classes == 2 else p), outcomes


@pytest.mark.parametrize("mechanism", [randomized_response(1.0), laplace(1.0), laplace(1.0, 3)], ids=str)
def test_blocks_and_rows_say_what_all_records_say(mechanism: Mechanism, request: pytest.FixtureRequest) -> None:
    p, outcomes = some(50_000, mechanism)
    rows = np.random.default_rng(5).permutation(len(p))
    shuffled = np.empty_like(outcomes)
    shuffled[rows] = outcomes
    whole = noisy_validation(mechanism, [outcomes, outcomes], p)
    request.getfixturevalue("small_blocks")
    by_blocks = noisy_validation(mechanism, [shuffled, shuffled], p, rows)
    assert astuple(by_blocks) == pytest.approx(astuple(whole), rel=1e-9, nan_ok=True)


def test_a_validation_takes_no_memory_for_each_record(small_blocks: None) -> None:
    def peak(records: int) -> int:
        p, outcomes = some(records, randomized_response(1.0))
        return peak_bytes(lambda: noisy_validation(randomized_response(1.0), [outcomes], p))

    assert peak(400_000) - peak(100_000) < 2 * 300_000


def test_a_record_speaks_by_the_probability_of_its_noisy_label() -> None:
    mechanism = randomized_response(1.0)
    keep = math.e / (1 + math.e)
    found = record_log_likelihoods(mechanism, [np.array([0, 1])], np.array([0.2, 0.2], dtype=np.float32))
    said_0, said_1 = 0.8 * keep + 0.2 * (1 - keep), 0.2 * keep + 0.8 * (1 - keep)
    assert np.exp(found) == pytest.approx([said_0, said_1], rel=1e-6)
    many = laplace(1.0, 3)
    outcomes = many.release([0, 1, 2], 5).outcomes
    p = np.array([[0.2, 0.3, 0.5]] * 3)
    by_class = np.exp(many.log_likelihood(outcomes))
    assert record_log_likelihoods(many, [outcomes], p) == pytest.approx(np.log((p * by_class).sum(axis=1)))
    assert record_log_likelihoods(many, [outcomes] * 2, p) == pytest.approx(np.log((p * by_class**2).sum(axis=1)))


def some_likelihoods(candidates: int, records: int, spread: float, seed: int = 0) -> list[np.ndarray]:
    return list(spread * np.random.default_rng(seed).normal(size=(candidates, records)) - 1.0)


@pytest.mark.parametrize(("records", "spread"), [(1, 0.5), (50, 0.01), (2000, 0.3), (5000, 3.0)])
def test_the_weights_are_where_nothing_is_gained_by_shifting_weight(records: int, spread: float) -> None:
    rows = some_likelihoods(7, records, spread)
    rows[2] = rows[2] - 0.5 * spread
    weights = ensemble_weights(rows)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights > 0).all()
    likelihood = np.exp(np.array(rows)).T
    gain = (likelihood / (likelihood @ weights)[:, None]).sum(axis=0) + 1 / weights
    assert gain == pytest.approx(np.full(7, gain.mean()), rel=1e-3)


def test_two_candidates_by_hand() -> None:
    # One record, twice as likely under the first: maximise ln(2w + (1-w)) + ln w + ln(1-w), so 3w² = 1.
    rows = [np.array([math.log(2)]), np.array([0.0])]
    assert ensemble_weights(rows)[0] == pytest.approx(1 / math.sqrt(3), abs=1e-5)


def test_labels_that_say_nothing_give_the_plain_mean() -> None:
    assert ensemble_weights([np.full(1000, -0.7)] * 4) == pytest.approx([0.25] * 4)


def test_labels_that_say_much_leave_the_best() -> None:
    rows = [np.full(10_000, -0.5), np.full(10_000, -0.6)]
    assert ensemble_weights(rows)[0] > 0.99


def test_candidates_that_complement_each_other_share() -> None:
    odd = np.where(np.arange(2000) % 2, 0.0, -2.0)
    always_second = np.full(2000, -1.2)  # better on the whole than neither, worse than their mixture
    weights = ensemble_weights([odd, -2.0 - odd, always_second])
    assert weights[0] == pytest.approx(weights[1], rel=1e-3)
    assert weights[2] < 0.02


def test_likelihoods_that_are_not_finite_count_nothing_and_tiny_ones_do_not_hurt() -> None:
    rows = [np.full(10, -1e4), np.full(10, -1e4), np.array([math.nan] * 10), np.array([0.0] * 9 + [-math.inf])]
    assert ensemble_weights(rows) == pytest.approx([0.5, 0.5, 0.0, 0.0])
    with pytest.raises(ValueError, match="all of them diverged"):
        ensemble_weights(rows[2:])
