"""Randomised response, the paper's Discrete perturbation, and no noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.attacks.auc_prediction import predicted_auc
from tpsl.mechanisms import TOTAL, RandomizedResponse, identity, randomized_response

# The paper's Discrete perturbation (Lemmas 3.2 and 6.2): the promise, the draws, and OpenDP's opinion.

Bounds = Callable[[float | Fraction], tuple[Fraction, Fraction]]
CheckFrequencies = Callable[[np.ndarray, list[int]], None]

EPSILONS = [0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
CLASSES = [2, 3, 10, 100]


def worst_ratio(mechanism: RandomizedResponse) -> Fraction:
    columns = mechanism.weights.T.tolist()
    return max(Fraction(a, b) for column in columns for a, b in itertools.permutations(sorted(set(column)), 2))


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_exact_epsilon_holds_is_tight_and_is_what_was_asked_for(
    epsilon: float, classes: int, exp_bounds: Bounds
) -> None:
    mechanism = randomized_response(epsilon, classes)
    assert 0.999 * epsilon <= mechanism.epsilon <= epsilon
    assert mechanism.delta == 0.0
    assert mechanism.weights.shape == (classes, classes)
    assert all(sum(row) == TOTAL for row in mechanism.weights.tolist())
    worst = worst_ratio(mechanism)
    assert worst <= exp_bounds(mechanism.epsilon)[0], "the claimed ε does not hold"
    assert worst > exp_bounds(mechanism.epsilon * (1 - 1e-5))[1], "a smaller ε would hold, the claim is not tight"


@given(st.floats(0.001, 40.0), st.integers(2, 300))
def test_no_epsilon_is_exceeded(exp_bounds: Bounds, epsilon: float, classes: int) -> None:
    mechanism = randomized_response(epsilon, classes)
    assert 0.98 * epsilon <= mechanism.epsilon <= epsilon
    assert mechanism.keep + (classes - 1) * mechanism.flip == TOTAL
    assert 1 <= mechanism.flip <= mechanism.keep
    assert Fraction(mechanism.keep, mechanism.flip) <= exp_bounds(mechanism.epsilon)[0]


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_moments_are_those_of_the_formula(epsilon: float, classes: int) -> None:
    mechanism = randomized_response(epsilon, classes)
    keep = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    flip = 1 / (math.exp(epsilon) + classes - 1)
    for y in (0, classes - 1):
        probabilities = np.where(np.arange(classes) == y, keep, flip)
        mean = probabilities[1] if classes == 2 else probabilities
        assert mechanism.mean(y) == pytest.approx(mean, rel=1e-9)
        assert mechanism.variance(y) == pytest.approx(mean * (1 - mean), rel=1e-9)
        assert np.exp(mechanism.log_likelihood([y]))[0] == pytest.approx(probabilities, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0])
def test_debiased_variance_has_its_closed_form(epsilon: float) -> None:
    """`(t - μ₀) / (μ₁ - μ₀)` has variance `e^ε / (e^ε - 1)²`: less than half of Laplace's `2/ε²`."""
    mechanism = randomized_response(epsilon)
    debiased = mechanism.variance(1) / (mechanism.mean(1) - mechanism.mean(0)) ** 2
    assert debiased == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) - 1) ** 2, rel=1e-9)


@pytest.mark.parametrize("classes", CLASSES)
def test_words_at_every_boundary_give_the_right_class(
    classes: int, inverse_cdf: Callable[[Sequence[int], Sequence[int]], list[int]]
) -> None:
    """The order of the outcomes of label y is y, y + 1, …, around the circle of classes: `keep`, then `flip` each."""
    mechanism = randomized_response(0.7, classes)
    row = [mechanism.keep, *[mechanism.flip] * (classes - 1)]
    near = {boundary + d for boundary in accumulate(row) for d in (-2, -1, 0, 1)} | {0, 1, TOTAL - 1}
    words = sorted(word for word in near if 0 <= word < TOTAL)
    dtype = np.min_scalar_type(classes - 1)
    for y in range(classes):
        drawn = mechanism._draw(np.full(len(words), y, dtype=dtype), np.array(words, dtype=np.uint64))
        assert drawn.tolist() == [(y + place) % classes for place in inverse_cdf(row, words)]


@pytest.mark.parametrize("y", [0, 1])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_every_outcome_is_as_frequent_as_its_integer_says(
    epsilon: float, y: int, assert_frequencies: CheckFrequencies
) -> None:
    mechanism = randomized_response(epsilon)
    release = mechanism.release(np.full(10_000_000, y, dtype=np.uint8), rng=30 + y)
    assert_frequencies(np.bincount(release.outcomes, minlength=2), mechanism.weights[y].tolist())


@pytest.mark.parametrize(("classes", "y"), [(3, 2), (10, 0), (100, 57)])
def test_every_class_is_as_frequent_as_its_integer_says(
    classes: int, y: int, assert_frequencies: CheckFrequencies
) -> None:
    """Ten classes at a nominal ε of 1 have measured 1.15 elsewhere."""
    mechanism = randomized_response(1.0, classes)
    release = mechanism.release(np.full(3_000_000, y), rng=40 + y)
    assert_frequencies(np.bincount(release.outcomes, minlength=classes), mechanism.weights[y].tolist())


def test_noisy_labels_are_classes_or_unit_vectors() -> None:
    binary = randomized_response(1.0).release([0, 1, 1, 0], rng=2)
    assert binary.noisy.tolist() == [float(o) for o in binary.outcomes]
    many = randomized_response(1.0, 5).release([0, 4, 2], rng=2)
    assert np.array_equal(many.noisy, np.eye(5)[many.outcomes])


def test_records_are_flipped_independently() -> None:
    flipped = randomized_response(1.0).release(np.zeros(100_000, np.uint8), rng=3).noisy
    for lag in (1, 2, 7):
        assert abs(np.corrcoef(flipped[:-lag], flipped[lag:])[0, 1]) < 5 / math.sqrt(100_000)


def test_too_many_classes_for_the_integers_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit into 64-bit integers"):
        randomized_response(0.001, 2**62 + 1)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_opendp_puts_the_same_price_on_our_probability(epsilon: float, classes: int) -> None:
    dp.enable_features("contrib")
    mechanism = randomized_response(epsilon, classes)
    keep = mechanism.keep / TOTAL
    theirs = (
        dp.m.make_randomized_response_bool(keep)
        if classes == 2
        else dp.m.make_randomized_response(list(range(classes)), keep)
    )
    assert theirs.map(1) == pytest.approx(mechanism.epsilon, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_draws_agree_with_opendp(
    classes: int, assert_same_distribution: Callable[[np.ndarray, np.ndarray], None]
) -> None:
    """OpenDP's own noise cannot be seeded."""
    dp.enable_features("contrib")
    mechanism = randomized_response(1.0, classes)
    keep, y, draws = mechanism.keep / TOTAL, classes - 1, 8_000
    if classes == 2:
        boolean = dp.m.make_randomized_response_bool(keep)
        theirs = [int(boolean(True)) for _ in range(draws)]
    else:
        categorical = dp.m.make_randomized_response(list(range(classes)), keep)
        theirs = [categorical(y) for _ in range(draws)]
    ours = mechanism.release(np.full(100 * draws, y), rng=5).outcomes
    assert_same_distribution(np.bincount(ours, minlength=classes), np.bincount(theirs, minlength=classes))


# No noise: the label itself, and never called private.


@pytest.mark.parametrize("classes", [2, 3, 300])
def test_labels_come_out_as_they_went_in(classes: int) -> None:
    labels = np.random.default_rng(0).integers(0, classes, 200_000)
    release = identity(classes).release(labels)
    assert np.array_equal(release.outcomes, labels)
    head = labels[:50]
    expected = head.astype(float) if classes == 2 else np.eye(classes)[head]
    assert np.array_equal(identity(classes).release(head).noisy, expected)


@pytest.mark.parametrize("rng", [None, 1])
def test_it_is_never_private(rng: int | None) -> None:
    release = identity().release([0, 1], rng)
    assert math.isinf(identity().epsilon)
    assert release.private is False
    assert str(release) == repr(release) == "release of 2 labels by none (ε = inf) — NOT PRIVATE (no noise)"


def test_the_release_does_not_share_memory_with_the_labels() -> None:
    labels = np.array([0, 1, 1], dtype=np.uint8)
    release = identity().release(labels)
    labels[:] = 0
    assert release.outcomes.tolist() == [0, 1, 1]


def test_moments_weights_and_likelihood() -> None:
    mechanism = identity(3)
    assert [sum(row) for row in mechanism.weights.tolist()] == [TOTAL] * 3
    assert mechanism.mean(2).tolist() == [0.0, 0.0, 1.0]
    assert mechanism.variance(2).tolist() == [0.0, 0.0, 0.0]
    assert mechanism.log_likelihood([1]).tolist() == [[-math.inf, 0.0, -math.inf]]
    assert (identity().mean(1), identity().variance(1)) == (1.0, 0.0)


def test_every_attack_succeeds() -> None:
    predicted = predicted_auc(identity())
    assert predicted.shortest_distance == predicted.best_score == predicted.ceiling == 1.0
