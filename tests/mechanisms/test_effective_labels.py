from __future__ import annotations

import math

import numpy as np
import pytest

from tpsl.mechanisms import Mechanism, best_for, fit_noise, identity, laplace, optimized_unary, randomized_response
from tpsl.mechanisms.effective_labels import effective_labels, effective_labels_of_statistic

FLIGHTS = [180_068, 55_932]  # 236,000 records, 23.7 % positive


@pytest.mark.parametrize(("epsilon", "worth"), [(0.1, 424), (0.5, 10_400), (1.0, 38_600)])
def test_two_classes_have_the_closed_form(epsilon: float, worth: int) -> None:
    found = effective_labels(randomized_response(epsilon), FLIGHTS)
    p = FLIGHTS[1] / sum(FLIGHTS)
    noise = 1 / (math.exp(epsilon / 2) - math.exp(-epsilon / 2)) ** 2
    assert found == pytest.approx(sum(FLIGHTS) * p * (1 - p) / (p * (1 - p) + noise), rel=1e-6)
    assert found == pytest.approx(worth, rel=0.01)


def test_clean_labels_are_worth_themselves_and_constant_ones_nothing() -> None:
    assert effective_labels(identity(2), [30, 70]) == pytest.approx(100)
    assert effective_labels(identity(3), [30, 30, 40]) == pytest.approx(100)
    assert effective_labels(randomized_response(1.0), [0, 100]) == 0
    assert effective_labels(randomized_response(1.0), [0, 0]) == 0


def test_randomised_response_is_worth_more_than_laplace() -> None:
    assert effective_labels(randomized_response(1.0), FLIGHTS) > 1.5 * effective_labels(laplace(1.0), FLIGHTS)


@pytest.mark.parametrize("mechanism", [randomized_response(1.0, 10), optimized_unary(1.0, 10), best_for(4.0, 10)[0]])
def test_k_classes_are_what_the_mean_of_noisy_labels_shows(mechanism: Mechanism) -> None:
    """As many clean labels as would have the same total variance of the estimated shares of the classes."""
    counts = np.array([400, 400, 200, 200, 200, 200, 100, 100, 100, 100])
    labels, rates = np.repeat(np.arange(10), counts), counts / counts.sum()
    rng = np.random.default_rng(0)
    drawn = [rng.permutation(rng.choice(labels, len(labels))) for _ in range(300)]
    releases = [mechanism.release(each, seed) for seed, each in enumerate(drawn)]
    means = [mechanism.unbiased_values[release.outcomes].mean(axis=0) for release in releases]
    total = np.square(np.array(means) - rates).sum(axis=1).mean()
    assert effective_labels(mechanism, counts.tolist()) == pytest.approx((rates * (1 - rates)).sum() / total, rel=0.15)


def test_a_statistic_is_worth_far_more_at_a_small_epsilon_and_no_more_than_its_records() -> None:
    noise = fit_noise("gaussian", 0.1, 1e-6, 1 << 15, 2)
    found = effective_labels_of_statistic(noise, 1 << 15, 32, FLIGHTS)
    assert 40_000 < found < 120_000
    assert effective_labels_of_statistic(noise, 1 << 15, 1024, FLIGHTS) < found
    plenty = fit_noise("gaussian", 20.0, 1e-6, 1 << 15, 2)
    assert 0.99 * sum(FLIGHTS) < effective_labels_of_statistic(plenty, 1 << 15, 8, FLIGHTS) < sum(FLIGHTS)
