"""The recommended mechanism: the variance it is chosen by, and that no other has a lower one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import (
    Mechanism,
    RandomizedResponse,
    SubsetSelection,
    best_for,
    gaussian,
    identity,
    laplace,
    optimized_unary,
    randomized_response,
    subset_selection,
    variance_of_unbiased,
)


@pytest.mark.parametrize(
    ("mechanism", "variance"),
    [(randomized_response(1.0, 100), 3468), (laplace(1.0, 100), 800), (subset_selection(1.0, 100), 360)],
    ids=str,
)
def test_known_figures_for_a_hundred_classes(mechanism: Mechanism, variance: float) -> None:
    assert round(variance_of_unbiased(mechanism)) == variance


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_closed_forms(epsilon: float) -> None:
    e = math.exp(epsilon)
    for k in (3, 10, 100):
        unary = (k - 1) * 4 * e / (e - 1) ** 2 + ((e + 1) / (e - 1)) ** 2
        response = ((e * (k - 1)) + (k - 1) * (e + k - 2)) / (e - 1) ** 2
        assert variance_of_unbiased(optimized_unary(epsilon, k)) == pytest.approx(unary, rel=1e-9)
        assert variance_of_unbiased(randomized_response(epsilon, k)) == pytest.approx(response, rel=1e-9)
        assert variance_of_unbiased(laplace(epsilon, k)) == pytest.approx(8 * k / epsilon**2, rel=1e-3)
    assert variance_of_unbiased(randomized_response(epsilon)) == pytest.approx(2 * e / (e - 1) ** 2, rel=1e-9)
    assert variance_of_unbiased(laplace(epsilon)) == pytest.approx(2 * 2 / epsilon**2, rel=1e-3)


def test_noise_free_and_gaussian() -> None:
    assert variance_of_unbiased(identity()) == variance_of_unbiased(identity(7)) == 0.0
    assert variance_of_unbiased(gaussian(2.0, 1e-5, 7)) == pytest.approx(7 * 4.0, rel=1e-3)


@pytest.mark.parametrize(
    "mechanism",
    [
        laplace(1.0),
        randomized_response(1.0),
        optimized_unary(1.0, 2),
        laplace(2.0, 6),
        randomized_response(2.0, 6),
        subset_selection(0.5, 6),
        optimized_unary(1.0, 6),
    ],
    ids=str,
)
def test_a_release_has_this_variance_about_the_unit_vector(mechanism: Mechanism) -> None:
    k, draws = mechanism.classes, 200_000
    for y in (0, k - 1):
        noisy = mechanism.release(np.full(draws, y), rng=80 + y).noisy
        if k == 2:
            own, other = mechanism.mean(1), mechanism.mean(0)
            noisy = np.stack([own + other - noisy, noisy], axis=1)
        else:
            own, other = mechanism.mean(y)[y], mechanism.mean(y)[y - 1]
        unbiased = (noisy - other) / (own - other)
        squares = ((unbiased - np.eye(k)[y]) ** 2).sum(axis=1)
        assert abs(squares.mean() - variance_of_unbiased(mechanism)) < 5 * squares.std() / math.sqrt(draws) + 1e-9


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0, 40.0])
def test_two_classes_get_randomised_response(epsilon: float) -> None:
    mechanism, why = best_for(epsilon, 2)
    assert isinstance(mechanism, RandomizedResponse)
    assert mechanism.spec() == {"mechanism": "discrete", "epsilon": epsilon, "classes": 2}
    assert why == "randomised response: for two classes every mechanism of the same ε is a post-processing of it"
    for other in (laplace(epsilon), optimized_unary(epsilon, 2)):
        assert variance_of_unbiased(mechanism) <= variance_of_unbiased(other)


@pytest.mark.parametrize("classes", [3, 5, 10, 100, 1000])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 2.0, 4.0, 10.0])
def test_more_classes_get_the_lowest_variance(epsilon: float, classes: int) -> None:
    mechanism, why = best_for(epsilon, classes)
    builders = (randomized_response, subset_selection, optimized_unary, laplace)
    variances = [variance_of_unbiased(build(epsilon, classes)) for build in builders]
    assert variance_of_unbiased(mechanism) == min(variances)
    assert (mechanism.classes, mechanism.epsilon <= epsilon) == (classes, True)
    assert "randomised response" in why


def test_the_sentence_names_what_was_picked_and_every_figure() -> None:
    mechanism, why = best_for(1.0, 100)
    assert isinstance(mechanism, SubsetSelection)
    assert why == (
        "subset selection of 27 of 100 classes: total variance 360 of an unbiased label,"
        " against optimised unary encoding 369, Laplace 800, randomised response 3468"
    )
    mechanism, why = best_for(2.0, 5)
    assert isinstance(mechanism, RandomizedResponse)
    assert why == (
        "randomised response: total variance 1.74 of an unbiased label,"
        " against optimised unary encoding 4.62, Laplace 10"
    )


@pytest.mark.parametrize(
    ("epsilon", "classes", "complaint"),
    [
        (0.0, 3, "epsilon must be a positive number, got 0.0"),
        (math.nan, 3, "epsilon must be a positive number, got nan"),
        (1.0, 1, "number of classes must be an integer of at least 2, got 1"),
        (1.0, 2.0, "number of classes must be an integer of at least 2, got 2.0"),
        (True, 2, "epsilon must be a number, got True"),
    ],
)
def test_bad_parameters_are_named_also_after_good_ones_that_are_equal(
    epsilon: Any, classes: Any, complaint: str
) -> None:
    best_for(1.0, 2)
    best_for(1, 2)
    with pytest.raises(ValueError, match=complaint):
        best_for(epsilon, classes)
