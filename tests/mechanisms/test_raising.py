"""A raise: the pair of outcomes is that of the larger ε drawn first, and costs no more than it."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from tpsl.mechanisms import TOTAL, Mechanism, gaussian, laplace, randomized_response, seeded_words, subset_selection
from tpsl.mechanisms.exact import exp_lower, exp_upper
from tpsl.mechanisms.raising import Raise, raised

GRID = [(0.1, 0.5, 2), (0.5, 1.0, 2), (1.0, 4.0, 2), (0.5, 1.0, 3), (0.1, 2.0, 4), (1.0, 1.5, 5), (0.5, 3.0, 7)]


def joint(chain: Raise) -> dict[tuple[int, ...], list[Fraction]]:
    """Return the probability of every history of outcomes under every label, by plain enumeration."""
    if isinstance(chain.first, Raise):
        before = joint(chain.first)
    else:
        columns = enumerate(chain.first.weights.T.tolist())
        before = {(o,): [Fraction(weight, TOTAL) for weight in column] for o, column in columns}
    return {
        (*history, new): [p * Fraction(int(chain.weights[y, history[-1], new]), TOTAL) for y, p in enumerate(under)]
        for history, under in before.items()
        for new in range(chain.mechanism.classes)
    }


def largest_ratio(histories: dict[tuple[int, ...], list[Fraction]]) -> Fraction:
    return max(a / b for under in histories.values() for a, b in permutations(under, 2))


@pytest.mark.parametrize(("first", "epsilon", "classes"), GRID)
def test_the_pair_costs_the_larger_epsilon_by_brute_force(first: float, epsilon: float, classes: int) -> None:
    draw = raised(randomized_response(first, classes), epsilon)
    assert draw.largest_ratio == largest_ratio(joint(draw))
    assert draw.largest_ratio <= exp_lower(epsilon)
    assert draw.largest_ratio > exp_upper(epsilon * (1 - 1e-9))
    assert epsilon * (1 - 1e-9) < draw.epsilon <= epsilon


@pytest.mark.parametrize(("first", "epsilon", "classes"), GRID)
def test_a_second_raise_costs_its_own_epsilon(first: float, epsilon: float, classes: int) -> None:
    chain = raised(raised(randomized_response(first, classes), epsilon), epsilon + 1.25)
    assert chain.largest_ratio == largest_ratio(joint(chain)) <= exp_lower(epsilon + 1.25)


@pytest.mark.parametrize(("first", "epsilon", "classes"), GRID)
def test_the_pair_is_the_larger_epsilon_garbled(first: float, epsilon: float, classes: int) -> None:
    """o₂ alone is randomised response at ε₂, and given o₂, o₁ says nothing more of the label."""
    draw = raised(randomized_response(first, classes), epsilon)
    histories = joint(draw)
    for new in range(classes):
        for y in range(classes):
            marginal = sum(histories[old, new][y] for old in range(classes))
            assert abs(marginal - Fraction(int(draw.mechanism.weights[y, new]), TOTAL)) < Fraction(1, 2**56)
        for old in range(classes):
            garbled = {
                float(histories[old, new][y] / Fraction(int(draw.mechanism.weights[y, new]), TOTAL))
                for y in range(classes)
            }
            assert max(garbled) - min(garbled) < 1e-9


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_a_laplace_release_of_two_classes_is_raised(epsilon: float) -> None:
    draw = raised(laplace(epsilon), 2 * epsilon)
    assert draw.largest_ratio == largest_ratio(joint(draw)) <= exp_lower(2 * epsilon)


@pytest.mark.parametrize(
    ("first", "classes"), [(laplace(0.5), 2), (randomized_response(0.5), 2), (randomized_response(0.5, 5), 5)]
)
def test_ten_million_draws_outcome_by_outcome(first: Mechanism, classes: int) -> None:
    draw, count, at_once = raised(first, 1.5), 10_000_000, 1_000_000
    words = seeded_words(7)
    labels = np.arange(at_once, dtype=np.uint8) % classes
    # Laplace has thousands of outcomes: those of two labels are compared by what is drawn from each.
    seen = np.zeros((classes, draw.weights.shape[1], classes), np.int64)
    for _ in range(count // at_once):
        old = first.release(labels, words).outcomes
        new = draw.release(old, labels, words).outcomes
        np.add.at(seen, (labels, old, new), 1)
    chances = draw.weights.astype(float) / TOTAL
    times = seen.sum(axis=2)
    tested = 0
    for y, old in product(range(classes), range(times.shape[1])):
        if (times[y, old] * chances[y, old]).min() > 20:
            p = stats.chisquare(seen[y, old], times[y, old] * chances[y, old]).pvalue
            assert p > 1e-6 / times.size
            tested += times[y, old]
    assert tested > 0.95 * count
    for y in range(classes):
        alone = seen[y].sum(axis=0)
        assert stats.chisquare(alone, alone.sum() * draw.mechanism.weights[y].astype(float) / TOTAL).pvalue > 1e-7


def test_a_raise_of_many_classes_draws_what_its_table_says() -> None:
    draw = raised(randomized_response(0.5, 128), 4.0)
    assert (draw.weights.astype(object).sum(axis=2) == TOTAL).all()
    labels = np.zeros(400_000, np.uint8)
    new = draw.release(np.full(400_000, 5, np.uint8), labels, 3).outcomes
    expected = draw.weights[0, 5].astype(float) / TOTAL * len(labels)
    assert stats.chisquare(np.bincount(new, minlength=128), expected).pvalue > 1e-6


@pytest.mark.parametrize(
    ("first", "epsilon"),
    [
        (randomized_response(1.0), 1.0),
        (randomized_response(1.0), 0.5),
        (gaussian(1.0, 1e-5), 8.0),
        (laplace(1.0, 3), 2.0),
        (subset_selection(0.5, 10), 1.0),
        (randomized_response(0.5, 200), 1.0),
    ],
)
def test_what_cannot_be_raised_is_refused(first: Mechanism, epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"raise"):
        raised(first, epsilon)


def test_earlier_outcomes_of_other_labels_are_refused() -> None:
    draw = raised(randomized_response(0.5), 1.0)
    with pytest.raises(ValueError, match="earlier outcomes"):
        draw.release(np.zeros(3, np.uint8), np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="earlier outcomes"):
        draw.release(np.full(3, 2, np.uint8), np.zeros(3, np.uint8))
