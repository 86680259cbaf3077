"""Subset selection (Ye and Barg): the promise over all subsets, the size, and draws that are exactly uniform."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.mechanisms import TOTAL, RandomizedResponse, RandomWords, SubsetSelection, subset_selection

Bounds = Callable[[float | Fraction], tuple[Fraction, Fraction]]
CheckFrequencies = Callable[[np.ndarray, list[int]], None]
CheckRates = Callable[[np.ndarray, int, np.ndarray], None]

# Sets of 2 of 4, 2 of 5, 3 of 7, 3 of 10 and 4 of 8 classes.
SMALL = [(0.1, 4), (0.5, 5), (0.3, 7), (1.0, 10), (0.001, 8)]


def selection(epsilon: float, classes: int) -> SubsetSelection:
    mechanism = subset_selection(epsilon, classes)
    assert isinstance(mechanism, SubsetSelection)
    return mechanism


def all_sets(mechanism: SubsetSelection) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(mechanism.classes), mechanism.size))


def bits(mechanism: SubsetSelection, sets: Sequence[tuple[int, ...]]) -> np.ndarray:
    return np.array([[j in chosen for j in range(mechanism.classes)] for chosen in sets], dtype=np.uint8)


def probability(mechanism: SubsetSelection, chosen: tuple[int, ...], y: int) -> Fraction:
    """By the definition: the weight of its kind, shared by all sets of this kind, which are counted here."""
    sharing = sum((y in other) == (y in chosen) for other in all_sets(mechanism))
    weight = mechanism.holds if y in chosen else TOTAL - mechanism.holds
    return Fraction(weight, TOTAL) / sharing


@pytest.mark.parametrize(("epsilon", "classes"), SMALL)
def test_over_all_subsets_epsilon_holds_is_tight_and_is_what_was_asked_for(
    epsilon: float, classes: int, exp_bounds: Bounds
) -> None:
    mechanism = selection(epsilon, classes)
    sets = all_sets(mechanism)
    table = [[probability(mechanism, chosen, y) for chosen in sets] for y in (0, classes - 1)]
    assert [sum(row) for row in table] == [1, 1]
    worst = max(max(p / q, q / p) for p, q in zip(*table, strict=True))
    assert 0.999 * epsilon <= mechanism.epsilon <= epsilon
    assert mechanism.delta == 0.0
    assert worst <= exp_bounds(mechanism.epsilon)[0], "the claimed ε does not hold"
    assert worst > exp_bounds(mechanism.epsilon * (1 - 1e-9))[1], "a smaller ε would hold, the claim is not tight"


def exact_ratio(mechanism: SubsetSelection) -> Fraction:
    """`P(S|y) / P(S|y')` for y in S and y' outside, with the binomial coefficients in full."""
    k, d = mechanism.classes, mechanism.size
    return Fraction(mechanism.holds, math.comb(k - 1, d - 1)) / Fraction(TOTAL - mechanism.holds, math.comb(k - 1, d))


@given(st.floats(0.001, 40.0), st.integers(2, 500))
def test_no_epsilon_is_exceeded(exp_bounds: Bounds, epsilon: float, classes: int) -> None:
    mechanism = subset_selection(epsilon, classes)
    assert 0.98 * epsilon <= mechanism.epsilon <= epsilon
    if isinstance(mechanism, SubsetSelection):
        assert 1 < mechanism.size < classes
        ratio = exact_ratio(mechanism)
        assert 1 < ratio <= exp_bounds(mechanism.epsilon)[0]
        assert ratio > exp_bounds(epsilon * (1 - 1e-9))[1]
        assert ratio > exp_bounds(math.nextafter(mechanism.epsilon, 0.0))[1], "a smaller float would hold"


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 10, 31, 100])
@pytest.mark.parametrize("epsilon", [0.001, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
def test_no_other_size_has_a_lower_total_variance(epsilon: float, classes: int) -> None:
    """Every size is tried, with the formula for real numbers."""

    def total(d: int) -> float:
        own = d * math.exp(epsilon) / (d * math.exp(epsilon) + classes - d)
        other = own * (d - 1) / (classes - 1) + (1 - own) * d / (classes - 1)
        return (own * (1 - own) + (classes - 1) * other * (1 - other)) / (own - other) ** 2

    mechanism = subset_selection(epsilon, classes)
    size = mechanism.size if isinstance(mechanism, SubsetSelection) else 1
    assert total(size) <= min(map(total, range(1, classes))) * (1 + 1e-9)


def test_known_sizes() -> None:
    assert (selection(1.0, 100).size, selection(2.0, 100).size, selection(0.5, 5).size) == (27, 12, 2)


@pytest.mark.parametrize(("epsilon", "classes"), [(1.0, 2), (0.001, 2), (1.0, 3), (2.0, 10), (8.0, 100)])
def test_a_set_of_one_class_is_randomised_response(epsilon: float, classes: int) -> None:
    mechanism = subset_selection(epsilon, classes)
    assert isinstance(mechanism, RandomizedResponse)
    assert mechanism.spec() == {"mechanism": "discrete", "epsilon": epsilon, "classes": classes}


@pytest.mark.parametrize(("epsilon", "classes"), SMALL)
def test_moments_are_those_over_all_subsets(epsilon: float, classes: int) -> None:
    mechanism = selection(epsilon, classes)
    sets = all_sets(mechanism)
    values = mechanism.noisy(bits(mechanism, sets))
    for y in (0, classes - 1):
        weights = np.array([float(probability(mechanism, chosen, y)) for chosen in sets])
        mean = weights @ values
        assert mechanism.mean(y) == pytest.approx(mean, rel=1e-12)
        assert mechanism.variance(y) == pytest.approx(weights @ (values - mean) ** 2, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "classes"), SMALL)
def test_likelihoods_are_the_probabilities_of_all_subsets(epsilon: float, classes: int) -> None:
    mechanism = selection(epsilon, classes)
    sets = all_sets(mechanism)
    expected = [[float(probability(mechanism, chosen, y)) for y in range(classes)] for chosen in sets]
    found = np.exp(mechanism.log_likelihood(bits(mechanism, sets)))
    assert found == pytest.approx(np.array(expected), rel=1e-12)


def test_likelihood_ratio_keeps_its_digits_with_many_classes() -> None:
    mechanism = selection(1.0, 3000)
    outcome = mechanism.release([7], rng=1).outcomes
    likelihood = mechanism.log_likelihood(outcome)[0]
    assert likelihood[outcome[0] == 1].max() - likelihood[outcome[0] == 0].min() == pytest.approx(1.0, rel=1e-10)


@pytest.mark.parametrize(("epsilon", "classes"), [(0.1, 4), (0.5, 5), (0.001, 6), (0.001, 7)])
def test_every_order_of_the_words_makes_the_draw_uniform(epsilon: float, classes: int) -> None:
    """All orders of k different words are equally likely: over all of them each set of a kind must come equally often.

    Whether the true class is in the set is up to its own word alone, so the words below `holds` are counted apart.
    """
    mechanism = selection(epsilon, classes)
    for below in range(classes + 1):
        row = [*range(below), *range(mechanism.holds, mechanism.holds + classes - below)]
        words = np.array(list(itertools.permutations(row)), dtype=np.uint64)
        for y in range(classes):
            drawn = mechanism._draw(np.full(len(words), y, dtype=np.uint8), words.ravel())
            counts = Counter(tuple(np.flatnonzero(outcome).tolist()) for outcome in drawn)
            holding = Counter({chosen: n for chosen, n in counts.items() if y in chosen})
            assert set(map(len, counts)) == {mechanism.size}
            assert sum(holding.values()) * classes == below * len(words)
            lacking = counts - holding
            assert len(set(holding.values())) <= 1
            assert len(set(lacking.values())) <= 1
            assert len(holding) == (math.comb(classes - 1, mechanism.size - 1) if below > 0 else 0)
            assert len(lacking) == (math.comb(classes - 1, mechanism.size) if below < classes else 0)


@pytest.mark.parametrize(("epsilon", "classes"), SMALL)
def test_the_word_of_the_true_class_decides_at_its_exact_boundary(epsilon: float, classes: int) -> None:
    mechanism = selection(epsilon, classes)
    others = np.arange(1000, 1000 + classes, dtype=np.uint64)
    for y in (0, 1, classes - 1):
        for word, held in ((0, 1), (mechanism.holds - 1, 1), (mechanism.holds, 0), (TOTAL - 1, 0)):
            words = others.copy()
            words[y] = word
            assert mechanism._draw(np.array([y]), words)[0, y] == held


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_first_and_the_last_word_of_all_are_no_exception(size: int) -> None:
    """Other classes with the words 0 and 2^64 - 1 stand beside the true class at the ends of the order."""
    mechanism = SubsetSelection(5, 1.0, 0.0, {"epsilon": 1.0}, size, TOTAL // 2)
    words = [0, TOTAL - 1, 5, 6]
    for y, own in itertools.product(range(5), (1, TOTAL - 2)):
        for order in itertools.permutations(words):
            row = [*order[:y], own, *order[y:]]
            drawn = mechanism._draw(np.array([y]), np.array(row, dtype=np.uint64))[0]
            ranked = sorted((j for j in range(5) if j != y), key=row.__getitem__)
            expected = {y, *ranked[: size - 1]} if own == 1 else set(ranked[:size])
            assert set(np.flatnonzero(drawn).tolist()) == expected


class Written(RandomWords):
    """A stream that gives the words it was told: two equal words in a row of a real one are not to be waited for."""

    def __init__(self, words: Sequence[int]) -> None:
        super().__init__(bytes(32), secure=False)
        self._left: Iterator[int] = iter(words)

    def words(self, count: int) -> np.ndarray:
        return np.array(list(itertools.islice(self._left, count)), dtype=np.uint64)


GOOD, NEXT, LAST = [1, 2, 3, 4], [9, 8, 7, 6], [5, 1, 4, 2]
TIED = [[1, 2, 3, 1], [5, 5, 0, 9], [3, 0, 7, 7]]


def test_a_row_with_two_equal_words_is_passed_over() -> None:
    mechanism = selection(0.1, 4)
    stream = Written([*GOOD, *TIED[0], *NEXT, *TIED[1], *TIED[2], *LAST, 77])
    assert mechanism._words(stream, 3).tolist() == [*GOOD, *NEXT, *LAST]
    assert stream.words(1).tolist() == [77], "no word more is taken than needed"


def test_passing_over_does_not_depend_on_how_a_release_is_cut_nor_on_the_labels() -> None:
    mechanism = selection(0.1, 4)
    script = [*TIED[0], *GOOD, *TIED[1], *TIED[2], *NEXT, *LAST]
    together = mechanism.release([0, 3, 1], Written(script)).outcomes
    assert np.array_equal(together, mechanism.release([0, 3, 1], Written([*GOOD, *NEXT, *LAST])).outcomes)
    stream = Written(script)
    parts = [mechanism.release(part, stream).outcomes for part in ([0], [3, 1])]
    assert np.array_equal(np.concatenate(parts), together)
    assert np.array_equal(mechanism.release([2, 3, 1], Written(script)).outcomes[1:], together[1:])


@pytest.mark.parametrize("y", [0, 3])
@pytest.mark.parametrize(("epsilon", "classes"), [(0.1, 4), (0.5, 5), (0.3, 7)])
def test_every_subset_is_as_frequent_as_its_probability_says(
    epsilon: float, classes: int, y: int, assert_frequencies: CheckFrequencies
) -> None:
    mechanism = selection(epsilon, classes)
    drawn = mechanism.release(np.full(500_000, y), rng=60 + y).outcomes
    numbers = drawn @ (1 << np.arange(classes))
    sets = all_sets(mechanism)
    counts = np.array([(numbers == sum(1 << j for j in chosen)).sum() for chosen in sets])
    assert counts.sum() == len(drawn), "every outcome is a set of the right size"
    assert_frequencies(counts, [round(probability(mechanism, chosen, y) * TOTAL) for chosen in sets])


def test_with_a_hundred_classes_classes_and_pairs_are_as_frequent_as_they_should_be(assert_rates: CheckRates) -> None:
    mechanism = selection(1.0, 100)
    k, d, y, draws = 100, mechanism.size, 57, 200_000
    drawn = mechanism.release(np.full(draws, y), rng=61).outcomes
    assert (drawn.sum(axis=1) == d).all()
    holds = mechanism.holds / TOTAL
    # Beside the true class d - 1 of 99 are in the set, without it d of 99.
    single = holds * (d - 1) / 99 + (1 - holds) * d / 99
    both = holds * (d - 1) * (d - 2) / (99 * 98) + (1 - holds) * d * (d - 1) / (99 * 98)
    expected = np.full((k, k), both)
    expected[y, :] = expected[:, y] = holds * (d - 1) / 99
    np.fill_diagonal(expected, single)
    expected[y, y] = holds
    floats = drawn.astype(np.float32)
    assert_rates((floats.T @ floats).astype(np.int64), draws, expected)


def test_weights_values_and_noisy_labels() -> None:
    mechanism = selection(1.0, 10)
    assert mechanism.weights.tolist() == [[TOTAL - mechanism.holds, mechanism.holds]]
    assert mechanism.values.tolist() == [0.0, 1.0]
    release = mechanism.release([3, 9, 0], rng=1)
    assert mechanism.outcome_shape == (10,)
    assert release.outcomes.dtype == np.uint8
    assert np.array_equal(release.noisy, release.outcomes)
    assert release.noisy.dtype == np.float64
