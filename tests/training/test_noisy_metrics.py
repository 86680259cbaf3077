"""Metrics from noisy labels: those of true labels on average, with standard errors that are right."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tpsl import metrics
from tpsl.mechanisms import Mechanism, identity, laplace, optimized_unary, randomized_response, subset_selection
from tpsl.training.noisy_metrics import Estimate, NoisyMetrics, auc_with_parts, corrected_auc, noisy_metrics

DRAWS = 200


def predictions(records: int, seed: int, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that are a little too sure of themselves, and the labels of the records."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(records, classes))
    z[:, 0] += 0.8
    own = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    labels = (rng.random((records, 1)) > own.cumsum(axis=1)).sum(axis=1)
    stated = np.exp(1.5 * z) / np.exp(1.5 * z).sum(axis=1, keepdims=True)
    return (stated[:, 1] if classes == 2 else stated).astype(np.float32), labels


def of_true_labels(p: np.ndarray, labels: np.ndarray) -> NoisyMetrics:
    exact = identity(2 if p.ndim == 1 else p.shape[1])
    return noisy_metrics(exact, [exact.release(labels, 0).outcomes], p)


def drawn(mechanism: Mechanism, p: np.ndarray, labels: np.ndarray, seed: int) -> NoisyMetrics:
    return noisy_metrics(mechanism, [mechanism.release(labels, seed).outcomes], p)


def numbers(found: NoisyMetrics) -> list[float]:
    """Every number that noise changes."""
    estimates = (found.auc, found.log_loss, found.accuracy, found.squared_calibration_error)
    return [*(one.value for one in estimates), *(one.observed for one in found.reliability)]


@pytest.mark.parametrize(
    "mechanism",
    [randomized_response(1.0, 2), laplace(1.0, 2), subset_selection(1.0, 6), optimized_unary(2.0, 3)],
    ids=str,
)
def test_the_mean_over_200_draws_is_what_true_labels_give(mechanism: Mechanism) -> None:
    p, labels = predictions(1000 * mechanism.classes, 1, mechanism.classes)
    found = np.array([numbers(drawn(mechanism, p, labels, seed)) for seed in range(DRAWS)])
    error = found.std(axis=0, ddof=1) / math.sqrt(DRAWS)
    away = (found.mean(axis=0) - numbers(of_true_labels(p, labels))) / error
    assert np.abs(away).max() < 5, away  # α = 6e-7 each


@pytest.mark.parametrize("classes", [2, 4])
def test_true_labels_give_the_metrics_of_true_labels(classes: int) -> None:
    p, labels = predictions(2000, 2, classes)
    found = of_true_labels(p, labels)
    area = metrics.auc(p, labels == 1) if classes == 2 else metrics.macro_auc(p, labels)
    assert found.auc.value == pytest.approx(area.value)
    assert found.auc.standard_error == pytest.approx((area.high - area.low) / 2 / 1.959964, rel=0.02)  # DeLong
    assert found.log_loss.value == pytest.approx(metrics.log_loss(p, labels), rel=1e-6)
    assert found.accuracy.value == pytest.approx(metrics.accuracy(p, labels))
    gaps = [one.records * abs(one.predicted - one.observed) for one in found.reliability]
    assert sum(gaps) / 2000 == pytest.approx(metrics.calibration_error(p, labels, bins=10))
    assert sum(one.records for one in found.reliability) == 2000


def test_standard_errors_are_those_of_noise_and_records_together() -> None:
    mechanism = randomized_response(1.0, 2)
    found = [drawn(mechanism, *predictions(1000, 1000 + seed), seed) for seed in range(300)]

    def stated_over_seen(estimates: list[Estimate]) -> float:
        spread = np.std([one.value for one in estimates])
        return float(np.mean([one.standard_error for one in estimates]) / spread)

    # The standard deviation of 300 numbers is known to 4 %.
    assert stated_over_seen([one.auc for one in found]) == pytest.approx(1, abs=0.15)
    assert stated_over_seen([one.log_loss for one in found]) == pytest.approx(1, abs=0.15)
    assert stated_over_seen([one.accuracy for one in found]) == pytest.approx(1, abs=0.15)
    assert 0.85 < stated_over_seen([one.squared_calibration_error for one in found]) < 1.5  # rather too large


def test_two_draws_say_more_than_one() -> None:
    p, labels = predictions(2000, 3)
    mechanism = randomized_response(1.0, 2)
    one, other = (mechanism.release(labels, seed).outcomes for seed in (1, 2))
    single, both = noisy_metrics(mechanism, [one], p), noisy_metrics(mechanism, [one, other], p)
    assert both.auc.standard_error < 0.85 * single.auc.standard_error
    assert both.log_loss.standard_error < 0.85 * single.log_loss.standard_error


def test_an_auc_that_noise_drowns_is_none_with_a_reason() -> None:
    p, labels = predictions(300, 4)
    found = drawn(randomized_response(0.1, 2), p, labels, 0)
    assert math.isnan(found.auc.value)
    assert math.isnan(found.auc.standard_error)
    assert found.auc.reason == "noise hides how many records are of class 1, and how many are not"
    assert found.log_loss.standard_error > 0.3  # which says it all
    rare = of_true_labels(np.linspace(0, 1, 50, dtype=np.float32), np.zeros(50, dtype=np.int64))
    assert rare.auc.reason


def test_few_records_have_no_calibration() -> None:
    p = np.array([0.2, 0.4, 0.9], dtype=np.float32)
    found = of_true_labels(p, np.array([0, 1, 1]))
    assert found.squared_calibration_error.reason == "a bin has a single record, whose gap has no standard error"
    assert math.isnan(found.squared_calibration_error.value)


def test_parts_are_what_leaving_a_record_out_takes_away() -> None:
    p, labels = predictions(400, 5)
    scores = p.astype(np.float64).round(2)  # with ties
    noisy = randomized_response(2.0, 2)
    t = noisy.unbiased_values[noisy.release(labels, 6).outcomes]
    area, parts = auc_with_parts(scores, t)
    assert parts.sum() == pytest.approx(0, abs=1e-9)
    left = np.array([area - corrected_auc(np.delete(scores, i), np.delete(t, i))[0] for i in range(400)])
    assert parts == pytest.approx(left, rel=0.05, abs=1e-5)
    assert corrected_auc(scores, t) == pytest.approx((area, math.sqrt((parts**2).sum())), rel=1e-9)
    few_scores, few = np.array([0.1, 0.4, 0.4, 0.7]), np.array([1.2, -0.2, 1.2, 0.3])
    pairs = [(few[i] * (1 - few[j]), few_scores[i] - few_scores[j]) for i, j in itertools.permutations(range(4), 2)]
    expected = sum(weight * (0.5 + 0.5 * np.sign(gap)) for weight, gap in pairs) / sum(weight for weight, _ in pairs)
    assert corrected_auc(few_scores, few)[0] == pytest.approx(expected)
