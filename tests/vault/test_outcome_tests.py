"""The tests of outcomes: their tails are exact, and what a mechanism draws is what they expect of it."""

import numpy as np
import pytest
from scipy.stats import binom

from tpsl.mechanisms import (
    Mechanism,
    TableMechanism,
    gaussian,
    identity,
    integer_weights,
    laplace,
    optimized_unary,
    randomized_response,
    seeded_words,
    subset_selection,
    table_mechanism,
)
from tpsl.vault.outcome_tests import Agreement, Expected, Neighbours, Rates, at_least, surprise

MECHANISMS = [
    randomized_response(1.0),
    laplace(1.0),
    gaussian(1.0, 1e-5),
    optimized_unary(1.0, 2),
    identity(),
    randomized_response(2.0, 5),
    laplace(2.0, 5),
    gaussian(1.0, 1e-5, 5),
    optimized_unary(1.0, 5),
    subset_selection(0.5, 10),
    identity(5),
    table_mechanism("uneven", integer_weights([[0.5, 0.3, 0.2], [0.25, 0.35, 0.4]], 1.0)),
    table_mechanism("uneven", integer_weights([[0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.2, 0.2, 0.6]], 1.0)),
]


@pytest.mark.parametrize(("count", "trials"), [(0, 0), (0, 10), (3, 10), (10, 10), (11, 10), (700, 1000), (-2, 5)])
@pytest.mark.parametrize("p", [0.0, 1e-9, 0.3, 0.731, 1.0])
def test_tails_are_those_of_the_binomial_distribution(count: int, trials: int, p: float) -> None:
    assert float(at_least(count, trials, p)) == pytest.approx(float(binom.sf(count - 1, trials, p)), rel=1e-9, abs=0)
    both = 2 * min(binom.sf(count - 1, trials, p), binom.cdf(count, trials, p))
    assert float(surprise(count, trials, p)) == pytest.approx(min(1.0, both), rel=1e-9, abs=1e-300)


def test_an_allowance_covers_whatever_was_exchanged() -> None:
    rng = np.random.default_rng(0)
    kept = rng.random(2000) < 0.7
    # The worst choice: 120 records that were not kept leave the row, and 120 that were come in.
    worst = np.concatenate([kept[kept], kept[~kept][120:], np.ones(120, np.bool_)])
    assert float(surprise(worst.sum(), len(worst), 0.7)) < 1e-6
    assert float(surprise(worst.sum(), len(worst), 0.7, allowance=120)) > 0.05


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: f"{m.name}-{m.classes}")
def test_what_a_mechanism_draws_is_expected(mechanism: Mechanism) -> None:
    labels = np.random.default_rng(1).integers(0, mechanism.classes, 6000)
    expected = Expected(mechanism)
    assert expected.probabilities.sum(axis=1) == pytest.approx(1.0)
    rates, neighbours, agreement = Rates(expected), Neighbours(expected), Agreement(expected, expected)
    bits = []
    for draw in range(4):
        outcomes = mechanism.release(labels, seeded_words(3, draw)).outcomes
        by_label = mechanism.classes == 2 or isinstance(mechanism, TableMechanism)
        assert expected.counts(labels, outcomes).sum() == len(labels) * (1 if by_label else mechanism.classes)
        rates.take(labels, outcomes)
        bits.append(expected.bits(labels, outcomes))
        neighbours.take(bits[-1], labels)
        assert float(surprise(bits[-1].sum(), len(labels), expected.bit)) > 1e-6
    agreement.take(np.concatenate(bits[:2]), np.concatenate(bits[2:]), np.tile(labels, 2))
    for tested in (rates.tested("here"), neighbours.tested("here"), agreement.tested("here")):
        assert tested.p_value * tested.tests > 1e-6
        assert tested.sentence.startswith("here: ")


@pytest.mark.parametrize("mechanism", MECHANISMS[5:10], ids=lambda m: m.name)
def test_counts_of_many_classes_are_those_of_a_loop(mechanism: Mechanism) -> None:
    k = mechanism.classes
    labels = np.random.default_rng(2).integers(0, k, 300)
    outcomes = mechanism.release(labels, seeded_words(4)).outcomes
    expected = Expected(mechanism)
    bits = outcomes if mechanism.outcome_shape else np.eye(k, dtype=np.int64)[outcomes]
    found = np.zeros(expected.probabilities.shape, np.int64)
    for label, row in zip(labels, bits, strict=True):
        for column in range(k):
            found[column if column == label else k + column, expected._bin[row[column]]] += 1
    assert (expected.counts(labels, outcomes) == found).all()


def test_each_lag_counts_every_record_in_at_most_one_pair() -> None:
    neighbours = Neighbours(Expected(randomized_response(1.0)))
    neighbours.take(np.zeros(100, np.bool_), np.arange(100) % 3)
    for lag, pairs in enumerate(neighbours._pairs, 1):
        assert pairs.sum() == 100 - lag
        assert pairs.max() <= 50
    assert (neighbours._agreed == neighbours._pairs).all()


@pytest.mark.parametrize("mechanism", MECHANISMS[-2:], ids=lambda m: f"{m.name}-{m.classes}")
def test_faults_in_the_noise_of_a_table_of_a_users_own_are_found(mechanism: Mechanism) -> None:
    labels = np.random.default_rng(6).integers(0, mechanism.classes, 20_000)
    expected = Expected(mechanism)
    words = seeded_words(7).words(len(labels))
    sound, shared = (mechanism._draw(labels, drawn) for drawn in (words, words[: len(words) // 2].repeat(2)))
    rates, neighbours, agreement = Rates(expected), Neighbours(expected), Agreement(expected, expected)
    rates.take(labels, np.where(np.arange(len(labels)) % 20 == 0, 0, sound))  # one in twenty is always outcome 0
    neighbours.take(expected.bits(labels, shared), labels)
    agreement.take(expected.bits(labels, sound), expected.bits(labels, sound), labels)
    for tested in (rates.tested("here"), neighbours.tested("here"), agreement.tested("here")):
        assert tested.p_value * tested.tests < 1e-6, tested.sentence


@pytest.mark.parametrize("mechanism", MECHANISMS[-2:], ids=lambda m: f"{m.name}-{m.classes}")
def test_the_same_outcomes_are_always_judged_alike(mechanism: Mechanism) -> None:
    labels = np.random.default_rng(6).integers(0, mechanism.classes, 2000)
    outcomes = mechanism.release(labels, seeded_words(7)).outcomes
    first, again, other = (Expected(mechanism, stream).bits(labels, outcomes) for stream in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()
