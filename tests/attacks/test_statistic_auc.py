"""What the strongest attacker on a statistic reaches: formulas against all pairs of outcomes and against draws."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from tpsl.attacks.auc_prediction import predicted_statistic_auc
from tpsl.mechanisms import (
    DEFAULT_BOUND,
    DiscreteGaussian,
    DiscreteLaplace,
    NoNoise,
    StatisticNoise,
    fit_noise,
    seeded_words,
)
from tpsl.metrics import auc_with_variance

DELTA = 1e-6
SMALL = [DiscreteGaussian(1, DELTA), DiscreteGaussian(7, DELTA), DiscreteLaplace(1), DiscreteLaplace(4)]


def by_definition(noise: StatisticNoise, bound: int, classes: int, releases: int = 1) -> tuple[float, float]:
    """The two AUCs from the probabilities of all outcomes: `½ (1 + total variation)`, and the likelihood ratio's."""
    reach = 20 if isinstance(noise, DiscreteGaussian) else 100
    y = np.arange(-reach, reach + 1, dtype=np.float64)

    def mass(shift: int) -> np.ndarray:
        z = y - shift
        weights = np.exp(-(z**2) / (2 * noise.variance) if isinstance(noise, DiscreteGaussian) else -np.abs(z) / scale)
        return weights / weights.sum()

    scale = noise.scale if isinstance(noise, DiscreteLaplace) else 1
    own, other = mass(bound), mass(0)
    if classes > 2:
        own, other = np.outer(own, other).ravel(), np.outer(other, own).ravel()
    if releases == 2:
        own, other = np.outer(own, own).ravel(), np.outer(other, other).ravel()
    ratio = np.round(np.log(own) - np.log(other), 6)
    best = sum(
        own[ratio == value].sum() * (other[ratio < value].sum() + other[ratio == value].sum() / 2)
        for value in np.unique(ratio)
    )
    return 0.5 + np.maximum(own - other, 0).sum() / 2, float(best)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("bound", [1, 2, 5])
@pytest.mark.parametrize("noise", SMALL, ids=str)
def test_the_formulas_are_what_all_outcomes_say(noise: StatisticNoise, bound: int, classes: int) -> None:
    predicted = predicted_statistic_auc(noise, bound, classes)
    assert (predicted.likelier_class, predicted.best_score) == pytest.approx(
        by_definition(noise, bound, classes), abs=1e-6
    )


@pytest.mark.parametrize("noise", SMALL, ids=str)
def test_two_releases_tell_what_all_pairs_of_outcomes_say(noise: StatisticNoise) -> None:
    predicted = predicted_statistic_auc(noise, 2, 2, releases=2)
    assert (predicted.likelier_class, predicted.best_score) == pytest.approx(by_definition(noise, 2, 2, 2), abs=1e-6)
    once = predicted_statistic_auc(noise, 2, 2)
    assert once.likelier_class < predicted.likelier_class and once.best_score < predicted.best_score
    assert predicted.best_score < predicted.ceiling


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_draws_reach_what_is_predicted(kind: str, epsilon: float) -> None:
    noise, n = fit_noise(kind, epsilon, DELTA, DEFAULT_BOUND, 2), 50_000
    drawn = noise.sample(2 * n, seeded_words(1))
    drawn[n:] += DEFAULT_BOUND
    score = np.clip(drawn, 0, DEFAULT_BOUND) if kind == "laplace" else drawn
    area, variance = auc_with_variance(score.astype(np.float64), np.arange(2 * n) >= n)
    assert area == pytest.approx(predicted_statistic_auc(noise, DEFAULT_BOUND, 2).best_score, abs=5 * variance**0.5)


@pytest.mark.parametrize(("kind", "classes", "epsilon"), list(product(["gaussian", "laplace"], [2, 10], [0.01, 1, 8])))
def test_no_attack_passes_the_ceiling_and_a_guess_not_the_best_score(kind: str, classes: int, epsilon: float) -> None:
    predicted = predicted_statistic_auc(fit_noise(kind, epsilon, DELTA, DEFAULT_BOUND, classes), DEFAULT_BOUND, classes)
    assert 0.5 < predicted.likelier_class <= predicted.best_score <= predicted.ceiling < 1
    if kind == "laplace":
        assert predicted.ceiling == pytest.approx(1 / (1 + math.exp(-epsilon)), rel=1e-4)


def test_wide_gaussian_noise_has_the_auc_of_the_normal_distribution() -> None:
    noise = fit_noise("gaussian", 1.0, DELTA, DEFAULT_BOUND, 2)
    distance = DEFAULT_BOUND / noise.deviation
    predicted = predicted_statistic_auc(noise, DEFAULT_BOUND, 2)
    assert predicted.best_score == pytest.approx(stats.norm.cdf(distance / math.sqrt(2)), abs=1e-9)
    assert predicted.likelier_class == pytest.approx(stats.norm.cdf(distance / 2), abs=1e-9)
    many = predicted_statistic_auc(noise, DEFAULT_BOUND, 10)
    assert many.best_score == pytest.approx(stats.norm.cdf(distance), abs=1e-9)


def test_small_and_large_variances_meet() -> None:
    for bound, classes in product((1, 6, 7, 40), (2, 3)):
        below, at = (predicted_statistic_auc(DiscreteGaussian(v, DELTA), bound, classes) for v in (63, 64))
        assert 0 < below.best_score - at.best_score < 0.003
        assert 0 < below.likelier_class - at.likelier_class < 0.003


def test_without_noise_nothing_is_hidden() -> None:
    assert predicted_statistic_auc(NoNoise(), 3, 2).best_score == 1.0
    assert predicted_statistic_auc(NoNoise(), 3, 2).ceiling == 1.0
