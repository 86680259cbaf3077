"""AUCs of attacks on a noisy label or a noisy statistic: closed forms, brute force, and what draws show."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from tpsl.attacks.auc_prediction import auc_ceiling, auc_of_scores, predicted_auc, predicted_statistic_auc
from tpsl.mechanisms import (
    DEFAULT_BOUND,
    DiscreteGaussian,
    DiscreteLaplace,
    Mechanism,
    NoNoise,
    StatisticNoise,
    fit_noise,
    gaussian,
    identity,
    laplace,
    optimized_unary,
    randomized_response,
    seeded_words,
    subset_selection,
)
from tpsl.metrics import auc, auc_with_variance

# Predicted attack AUCs: closed forms, the numbers the paper printed, and attacks on real releases.

EPSILONS = [0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
# A closed form speaks of continuous noise; on a grid of 64 steps for each scale the AUC is this close to it.
GRID = 2e-5


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_laplace_has_its_closed_forms(epsilon: float) -> None:
    predicted = predicted_auc(laplace(epsilon))
    assert predicted.shortest_distance == pytest.approx(1 - math.exp(-epsilon / 2) / 2, abs=GRID)
    assert predicted.best_score == pytest.approx(1 - math.exp(-epsilon) * (2 + epsilon) / 4, abs=GRID)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_randomized_response_reaches_the_ceiling(epsilon: float) -> None:
    predicted = predicted_auc(randomized_response(epsilon))
    closed_form = math.exp(epsilon) / (1 + math.exp(epsilon))
    for value in (predicted.shortest_distance, predicted.best_score, predicted.ceiling):
        assert value == pytest.approx(closed_form, rel=1e-9)


@pytest.mark.parametrize("sigma", [0.2, 0.5, 1.0, 2.0, 10.0, 100.0])
def test_gaussian_has_its_closed_forms(sigma: float) -> None:
    predicted = predicted_auc(gaussian(sigma, 1e-5))
    assert predicted.shortest_distance == pytest.approx(stats.norm.cdf(1 / (2 * sigma)), abs=GRID)
    assert predicted.best_score == pytest.approx(stats.norm.cdf(1 / (math.sqrt(2) * sigma)), abs=GRID)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 10.0, 100.0])
def test_gaussian_with_more_classes_has_its_closed_forms(sigma: float) -> None:
    """Two unit vectors lie √2 apart: the best score is theirs; the hard guess compares two coordinates."""
    predicted = predicted_auc(gaussian(sigma, 1e-5, 3))
    assert predicted.shortest_distance == pytest.approx(stats.norm.cdf(1 / (math.sqrt(2) * sigma)), abs=GRID)
    assert predicted.best_score == pytest.approx(stats.norm.cdf(1 / sigma), abs=GRID)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("classes", [3, 10, 100])
def test_randomized_response_with_more_classes_has_its_closed_forms(epsilon: float, classes: int) -> None:
    """The ROC curve of the score "a, neither, b" has corners at (flip, keep) and (1 - keep, 1 - flip)."""
    keep = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    flip = 1 / (math.exp(epsilon) + classes - 1)
    predicted = predicted_auc(randomized_response(epsilon, classes))
    assert predicted.shortest_distance == pytest.approx((1 + keep - flip) / 2, rel=1e-9)
    area = np.trapezoid([0, keep, 1 - flip, 1], [0, flip, 1 - keep, 1])
    assert predicted.best_score == pytest.approx(area, rel=1e-9)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("classes", [3, 10])
def test_optimised_unary_has_its_closed_forms(epsilon: float, classes: int) -> None:
    """Bits (1, 0) of the two classes vote for the first, (0, 1) for the second, equal bits for neither."""
    q = 1 / (math.exp(epsilon) + 1)
    own, other = (1 - q) / 2, q / 2
    predicted = predicted_auc(optimized_unary(epsilon, classes))
    assert predicted.shortest_distance == pytest.approx((1 + own - other) / 2, rel=1e-9)
    area = np.trapezoid([0, own, 1 - other, 1], [0, other, 1 - own, 1])
    assert predicted.best_score == pytest.approx(area, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "classes"), [(0.1, 5), (1.0, 10), (1.0, 100), (3.0, 100)])
def test_subset_selection_has_its_closed_forms(epsilon: float, classes: int) -> None:
    """The set votes for one of the two classes if it holds that one and not the other."""
    mechanism = subset_selection(epsilon, classes)
    size = round(float(np.sum(mechanism.mean(0))))
    assert size > 1
    odds = math.exp(epsilon) * size / (classes - size)
    own = odds / (1 + odds) * math.comb(classes - 2, size - 1) / math.comb(classes - 1, size - 1)
    other = 1 / (1 + odds) * math.comb(classes - 2, size - 1) / math.comb(classes - 1, size)
    assert own / other == pytest.approx(math.exp(epsilon))
    predicted = predicted_auc(mechanism)
    assert predicted.shortest_distance == pytest.approx((1 + own - other) / 2, rel=1e-9)
    area = np.trapezoid([0, own, 1 - other, 1], [0, other, 1 - own, 1])
    assert predicted.best_score == pytest.approx(area, rel=1e-9)


@pytest.mark.parametrize(
    ("mechanism", "exact", "printed"),
    [
        (laplace(0.1), 0.5244, [0.5237, 0.5236]),
        (laplace(1.0), 0.6967, [0.6961, 0.6964]),
        (laplace(10.0), 0.9966, [0.9966, 0.9965]),
        (randomized_response(0.1), 0.5250, [0.5258]),
        (randomized_response(1.0), 0.7311, [0.7310]),
        (randomized_response(10.0), 0.99995, [0.9999]),
    ],
    ids=str,
)
def test_shortest_distance_attack_reaches_what_the_paper_measured(
    mechanism: Mechanism, exact: float, printed: list[float]
) -> None:
    """Tables of the paper, Avazu and Criteo; it measured on data, so its digits wobble by a few 1e-4."""
    predicted = predicted_auc(mechanism).shortest_distance
    assert predicted == pytest.approx(exact, abs=6e-5)
    assert predicted == pytest.approx(np.array(printed), abs=1e-3)


@pytest.mark.parametrize(
    "mechanism", [laplace(0.1), laplace(1.0), laplace(4.0), randomized_response(1.0), gaussian(1.0, 1e-5)], ids=str
)
def test_attacks_on_a_release_reach_the_prediction(mechanism: Mechanism) -> None:
    labels = np.random.default_rng(1).random(400_000) < 0.25
    release = mechanism.release(labels, rng=2)
    confidence = 1 - 1e-6
    hard = auc(release.noisy > 0.5, labels, confidence)
    log_likelihood = mechanism.log_likelihood(release.outcomes)
    best = auc(np.round(log_likelihood[:, 1] - log_likelihood[:, 0], 6), labels, confidence)
    raw = auc(release.noisy, labels, confidence)
    assert hard.low <= predicted_auc(mechanism).shortest_distance <= hard.high
    assert best.low <= predicted_auc(mechanism).best_score <= best.high
    assert raw.low <= predicted_auc(mechanism).best_score <= raw.high


@pytest.mark.parametrize(
    "mechanism",
    [
        laplace(1.0, 3),
        laplace(4.0, 10),
        randomized_response(1.0, 3),
        gaussian(1.0, 1e-5, 3),
        subset_selection(1.0, 10),
        subset_selection(0.2, 5),
        optimized_unary(1.0, 3),
        optimized_unary(4.0, 10),
    ],
    ids=str,
)
def test_attacks_on_two_of_many_classes_reach_the_prediction(mechanism: Mechanism) -> None:
    """Class 2 against class 0: the guess is the larger coordinate, a coin where they are equal."""
    generator = np.random.default_rng(3)
    labels = np.where(generator.random(300_000) < 0.5, 2, 0)
    release = mechanism.release(labels, rng=4)
    confidence = 1 - 1e-6
    difference = release.noisy[:, 2] - release.noisy[:, 0]
    guess = np.where(difference == 0, generator.random(len(labels)) < 0.5, difference > 0)
    hard = auc(guess, labels == 2, confidence)
    log_likelihood = mechanism.log_likelihood(release.outcomes)
    best = auc(np.round(log_likelihood[:, 2] - log_likelihood[:, 0], 6), labels == 2, confidence)
    assert hard.low <= predicted_auc(mechanism).shortest_distance <= hard.high
    assert best.low <= predicted_auc(mechanism).best_score <= best.high


Build = Callable[[float, int], Mechanism]


BUILDERS = [laplace, randomized_response, subset_selection, optimized_unary]


@pytest.mark.parametrize("build", BUILDERS, ids=["laplace", "discrete", "subset_selection", "optimized_unary"])
@pytest.mark.parametrize("classes", [2, 3, 100])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0, 40.0])
def test_the_three_are_in_order(build: Build, epsilon: float, classes: int) -> None:
    predicted = predicted_auc(build(epsilon, classes))
    rounding = 1e-12
    assert 0.5 <= predicted.shortest_distance <= predicted.best_score + rounding
    assert predicted.best_score <= predicted.ceiling + rounding
    assert predicted.ceiling <= 1.0


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.0, 100.0])
@pytest.mark.parametrize("delta", [1e-8, 0.1])
def test_the_three_are_in_order_for_gaussian_noise(sigma: float, delta: float, classes: int) -> None:
    predicted = predicted_auc(gaussian(sigma, delta, classes))
    assert 0.5 <= predicted.shortest_distance <= predicted.best_score + 1e-12
    assert predicted.best_score <= predicted.ceiling + 1e-12


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 10.0])
def test_ceiling_is_the_area_below_the_region_of_possible_attacks(epsilon: float, delta: float) -> None:
    def highest(f: float) -> float:
        return min(1.0, delta + math.exp(epsilon) * f, 1 - math.exp(-epsilon) * (1 - delta - f))

    corners = [(1 - delta) / (1 + math.exp(epsilon)), 1 - delta]
    area, _ = integrate.quad(highest, 0.0, 1.0, points=corners, limit=200)
    assert auc_ceiling(epsilon, delta) == pytest.approx(area, abs=1e-9)


@pytest.mark.parametrize("epsilon", [50.0, 800.0, 1e6, math.inf])
def test_ceiling_of_a_huge_epsilon_is_one(epsilon: float) -> None:
    assert auc_ceiling(epsilon) == 1.0


def test_ceiling_of_identity() -> None:
    assert predicted_auc(identity(5)).ceiling == auc_ceiling(math.inf, 0.0) == 1.0


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(-3, 3)), min_size=1, max_size=12),
)
@settings(max_examples=50)
def test_auc_of_scores_is_the_double_sum(outcomes: list[tuple[int, int, int]]) -> None:
    positive, negative, scores = (np.array(column, dtype=np.float64) for column in zip(*outcomes, strict=True))
    positive, negative = positive / positive.sum(), negative / negative.sum()
    wins = np.greater.outer(scores, scores) + np.equal.outer(scores, scores) / 2
    assert auc_of_scores(positive, negative, scores) == pytest.approx(positive @ wins @ negative, abs=1e-12)


# What the strongest attacker on a statistic reaches: formulas against all pairs of outcomes and against draws.

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
