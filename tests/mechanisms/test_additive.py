"""What Laplace and Gaussian noise share: the noisy label, its likelihood, a coordinate for each of k classes."""

from __future__ import annotations

import numpy as np
import pytest

from tpsl.mechanisms import TOTAL, Mechanism, gaussian, laplace
from tpsl.mechanisms.additive_noise import grid_values, mirrored

BINARY = [laplace(0.5), gaussian(1.5, 1e-5)]
MANY = [laplace(2.0, 4), gaussian(0.7, 1e-5, 4)]


def name(mechanism: Mechanism) -> str:
    return str(mechanism)


@pytest.mark.parametrize("mechanism", BINARY, ids=name)
def test_binary_noisy_labels_are_grid_values(mechanism: Mechanism) -> None:
    release = mechanism.release([0, 1, 1, 0], rng=1)
    assert release.outcomes.shape == release.noisy.shape == (4,)
    assert release.noisy.tolist() == [mechanism.values[o] for o in release.outcomes]


@pytest.mark.parametrize("mechanism", MANY, ids=name)
def test_with_more_classes_a_noisy_label_is_a_vector(mechanism: Mechanism) -> None:
    release = mechanism.release([3, 0, 1], rng=1)
    assert release.outcomes.shape == release.noisy.shape == (3, 4)
    assert np.array_equal(release.noisy, mechanism.values[release.outcomes])
    assert mechanism.outcome_shape == (4,)


@pytest.mark.parametrize("mechanism", BINARY, ids=name)
def test_binary_likelihoods_are_those_of_the_table(mechanism: Mechanism) -> None:
    outcomes = np.arange(mechanism.outcomes)
    expected = np.array([[w / TOTAL for w in row] for row in mechanism.weights.tolist()]).T
    assert np.exp(mechanism.log_likelihood(outcomes)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mechanism", MANY, ids=name)
def test_likelihood_of_a_vector_is_the_product_over_its_coordinates(mechanism: Mechanism) -> None:
    outcomes = mechanism.release([0, 1, 2, 3, 3], rng=2).outcomes
    other, own = mechanism.weights.tolist()
    for record, logs in zip(outcomes.tolist(), mechanism.log_likelihood(outcomes), strict=True):
        for y in range(4):
            product = 1.0
            for coordinate, o in enumerate(record):
                product *= (own if coordinate == y else other)[o] / TOTAL
            assert np.exp(logs[y]) == pytest.approx(product, rel=1e-9)


@pytest.mark.parametrize("mechanism", MANY, ids=name)
def test_a_vector_is_drawn_from_own_and_other_rows(mechanism: Mechanism) -> None:
    """Word by word: coordinate j of a record takes the next word, from the row that says whether j is its class."""
    labels = np.array([2, 0, 3])
    words = np.random.default_rng(0).integers(0, TOTAL, 12, dtype=np.uint64)
    drawn = mechanism._draw(labels, words)
    for i, j in np.ndindex(3, 4):
        row = np.cumsum(mechanism.weights[int(labels[i] == j)][:-1])
        assert drawn[i, j] == np.searchsorted(row, words[4 * i + j], side="right")


@pytest.mark.parametrize("mechanism", BINARY, ids=name)
def test_moments_of_a_release_are_those_of_the_table(mechanism: Mechanism) -> None:
    n = 1_000_000
    for y in (0, 1):
        noisy = mechanism.release(np.full(n, y), rng=7 + y).noisy
        deviation = np.sqrt(mechanism.variance(y) / n)
        assert abs(noisy.mean() - mechanism.mean(y)) < 5 * deviation
        # The variance of (t - mean)² is at most 5 variances² for Laplace noise, 2 for Gaussian.
        assert abs(noisy.var() / mechanism.variance(y) - 1) < 5 * np.sqrt(5 / n)


def test_grid_contains_both_labels_and_is_symmetric_about_one_half() -> None:
    grid = grid_values(4, 6)
    assert grid.tolist() == [j / 4 for j in range(-6, 11)]


def test_mirrored_rows() -> None:
    table = mirrored([TOTAL - 3, 2, 1], np.array([0.0, 0.5, 1.0]))
    assert table.weights.tolist() == [[TOTAL - 3, 2, 1], [1, 2, TOTAL - 3]]
