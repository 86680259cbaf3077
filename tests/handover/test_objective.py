"""The objective for boosting: derivatives of the likelihood, information, and agreement with LightGBM without noise."""

import lightgbm
import numpy as np
import pytest
import xgboost

from tpsl.handover.objective import NoisyLabelObjective, NoisyTargets
from tpsl.mechanisms import (
    Mechanism,
    identity,
    laplace,
    optimized_unary,
    randomized_response,
    subset_selection,
)
from tpsl.metrics import auc

MECHANISMS = [
    randomized_response(0.1),
    randomized_response(2.0),
    laplace(1.0),
    identity(),
    randomized_response(1.0, 10),
    laplace(2.0, 3),
    subset_selection(1.0, 10),
    optimized_unary(1.0, 100),
]


def objective_of(mechanism: Mechanism, records: int, draws: int = 1) -> NoisyLabelObjective:
    labels = np.random.default_rng(1).integers(0, mechanism.classes, records)
    released = tuple(mechanism.release(labels, rng=seed).outcomes for seed in range(draws))
    return NoisyLabelObjective(NoisyTargets(mechanism, released))


def scores_of(classes: int, records: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=records if classes == 2 else (records, classes))


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_the_gradient_is_the_derivative_of_the_loss(mechanism: Mechanism, draws: int) -> None:
    objective, z, step = objective_of(mechanism, 40, draws), scores_of(mechanism.classes, 40), 1e-5
    gradient, hessian = objective.gradient_and_hessian(z)
    assert gradient.shape == hessian.shape == z.shape
    for one in [...] if z.ndim == 1 else [(..., j) for j in range(3)]:
        moved = np.zeros_like(z)
        moved[one] = step
        numeric = (objective.log_likelihoods(z - moved) - objective.log_likelihoods(z + moved)) / (2 * step)
        np.testing.assert_allclose(gradient[one], numeric, atol=1e-8)


@pytest.mark.parametrize("mechanism", [m for m in MECHANISMS if not m.outcome_shape and m.outcomes < 100], ids=str)
def test_the_hessian_is_the_information_that_outcomes_have_on_average(mechanism: Mechanism) -> None:
    """The mean of the squared gradient over all outcomes, each as probable as the model says."""
    z, k = scores_of(mechanism.classes, 20), mechanism.classes
    p = np.exp(z) / (1 + np.exp(z)) if z.ndim == 1 else np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    by_class = np.stack([1 - p, p], axis=1) if z.ndim == 1 else p
    expected = np.zeros_like(z)
    for outcome in range(mechanism.outcomes):
        one = NoisyTargets(mechanism, (np.full(20, outcome),))
        likelihood = (by_class * np.exp(one.log_likelihood())).sum(axis=1)
        gradient, hessian = NoisyLabelObjective(one).gradient_and_hessian(z)
        expected += np.square(gradient) * (likelihood if z.ndim == 1 else likelihood[:, None])
    np.testing.assert_allclose(hessian, expected * (1 if k == 2 else k / (k - 1)), rtol=1e-6)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_the_hessian_is_positive_and_at_most_that_of_clean_labels(mechanism: Mechanism) -> None:
    k = mechanism.classes
    z = scores_of(k, 3000) * 3
    _, noisy = objective_of(mechanism, 3000).gradient_and_hessian(z)
    _, clean = objective_of(identity(k), 3000).gradient_and_hessian(z)
    assert (noisy > 0).all()
    assert (noisy <= np.maximum(clean, 1e-12) * (1 + 1e-9)).all()


@pytest.mark.parametrize("mechanism", [laplace(1.0), subset_selection(1.0, 10)], ids=str)
def test_the_estimated_information_is_that_of_the_records(mechanism: Mechanism) -> None:
    """Of tables too large to sum over: labels from the model itself, so that squared gradients have its information."""
    rng, k, n = np.random.default_rng(3), mechanism.classes, 50_000
    z = np.zeros(n) if k == 2 else np.zeros((n, k))
    outcomes = mechanism.release(rng.integers(0, k, n), rng=4).outcomes
    gradient, hessian = NoisyLabelObjective(NoisyTargets(mechanism, (outcomes,))).gradient_and_hessian(z)
    factor = 1 if k == 2 else k / (k - 1)
    assert hessian.mean() == pytest.approx(np.square(gradient).mean() * factor, rel=1e-6)


def test_ends_of_the_scale_are_harmless() -> None:
    objective = objective_of(randomized_response(1.0), 4)
    gradient, hessian = objective.gradient_and_hessian(np.array([-800.0, -40.0, 40.0, 800.0]))
    assert np.isfinite(gradient).all() and (hessian > 0).all()
    assert np.isfinite(objective.log_likelihoods(np.array([-800.0, -40.0, 40.0, 800.0]))).all()


PARAMETERS = {"num_leaves": 7, "learning_rate": 0.2, "verbose": -1, "num_threads": 1, "deterministic": True, "seed": 0}


@pytest.mark.parametrize("classes", [2, 4])
def test_without_noise_it_grows_the_trees_of_lightgbm(classes: int) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(1500, 4))
    y = np.digitize(x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=1500), np.linspace(-0.5, 0.5, classes - 1))
    ours = NoisyLabelObjective(NoisyTargets(identity(classes), (y,)))
    many = {} if classes == 2 else {"num_class": classes}
    name = "binary" if classes == 2 else "multiclass"

    def grown(objective: object) -> lightgbm.Booster:
        data = lightgbm.Dataset(x, y, params={"verbose": -1})
        return lightgbm.train(
            {**PARAMETERS, **many, "objective": objective, "boost_from_average": False}, data, num_boost_round=20
        )

    theirs, found = grown(name), grown(ours)
    np.testing.assert_allclose(
        found.predict(x, raw_score=True), theirs.predict(x, raw_score=True), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_boosting_on_noisy_labels_finds_the_classes(library: str, classes: int) -> None:
    """Each record's features name its class: after a few trees the likeliest class is the true one for most."""
    rng, n = np.random.default_rng(6), 4000
    y = rng.integers(0, classes, n)
    x = np.eye(classes)[y] if classes < 100 else np.stack([y // 10, y % 10], axis=1).astype(float)
    mechanism = randomized_response(3.0 if classes == 2 else 6.0, classes)
    objective = NoisyLabelObjective(NoisyTargets(mechanism, (mechanism.release(y, rng=7).outcomes,)))
    many = {} if classes == 2 else {"num_class": classes}
    if library == "lightgbm":
        data = lightgbm.Dataset(x, params={"verbose": -1})
        data.set_label(np.zeros(n))
        model = lightgbm.train({**PARAMETERS, **many, "objective": objective}, data, num_boost_round=8)
        scores = model.predict(x, raw_score=True)
    else:
        settings = {"max_depth": 4, "nthread": 1, "base_score": 0.5, **many}
        matrix = xgboost.DMatrix(x, np.zeros(n))
        scores = xgboost.train(settings, matrix, num_boost_round=8, obj=objective).predict(matrix, output_margin=True)
    guessed = (scores > 0).astype(int) if classes == 2 else scores.argmax(axis=1)
    assert (guessed == y).mean() > 0.9
    z = np.zeros(n) if classes == 2 else np.zeros((n, classes))
    assert objective.log_likelihoods(scores).sum() > objective.log_likelihoods(z).sum()


def test_it_ranks_better_than_trees_that_take_noisy_labels_for_true_ones() -> None:
    """Same settings, same noisy labels: there a leaf needs many labels, here what many clean labels would tell."""
    rng, n = np.random.default_rng(8), 16_000
    x = rng.normal(size=(n, 6))
    y = (rng.random(n) < 1 / (1 + np.exp(1.5 - 2 * x[:, 0] * x[:, 1]))).astype(int)
    mechanism, trained = randomized_response(1.0), slice(0, 8000)
    outcomes = mechanism.release(y[trained], rng=9).outcomes
    settings = {**PARAMETERS, "num_leaves": 15, "min_sum_hessian_in_leaf": 10, "lambda_l2": 10}
    found = []
    for objective in (NoisyLabelObjective(NoisyTargets(mechanism, (outcomes,))), "binary"):
        data = lightgbm.Dataset(x[trained], outcomes, params={"verbose": -1})
        trees = lightgbm.train({**settings, "objective": objective}, data, num_boost_round=60)
        found.append(auc(trees.predict(x[8000:], raw_score=True), y[8000:]).value)
    assert found[0] > found[1] + 0.01
