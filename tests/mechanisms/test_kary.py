"""Subset selection, optimised unary encoding, and the choice of the best mechanism."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.mechanisms import (
    TOTAL,
    Mechanism,
    OptimizedUnary,
    RandomizedResponse,
    RandomWords,
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

# Subset selection (Ye and Barg): the promise over all subsets, the size, and draws that are exactly uniform.

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


# Optimised unary encoding (Wang et al.): the promise over all vectors of bits, the draws, the two-class form.

EPSILONS = [0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]


def all_vectors(classes: int) -> list[tuple[int, ...]]:
    return list(itertools.product((0, 1), repeat=classes))


def probability_of_vector(mechanism: OptimizedUnary, vector: tuple[int, ...], y: int) -> Fraction:
    other, own = mechanism.weights.tolist()
    factors = (Fraction((own if j == y else other)[bit], TOTAL) for j, bit in enumerate(vector))
    return math.prod(factors, start=Fraction(1))


@pytest.mark.parametrize("classes", [3, 5])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_over_all_vectors_epsilon_holds_is_tight_and_is_what_was_asked_for(
    epsilon: float, classes: int, exp_bounds: Bounds
) -> None:
    mechanism = optimized_unary(epsilon, classes)
    vectors = all_vectors(classes)
    table = [[probability_of_vector(mechanism, vector, y) for vector in vectors] for y in (0, classes - 1)]
    assert [sum(row) for row in table] == [1, 1]
    worst = max(max(p / q, q / p) for p, q in zip(*table, strict=True))
    assert 0.999 * epsilon <= mechanism.epsilon <= epsilon
    assert mechanism.delta == 0.0
    assert worst <= exp_bounds(mechanism.epsilon)[0], "the claimed ε does not hold"
    assert worst > exp_bounds(mechanism.epsilon * (1 - 1e-9))[1], "a smaller ε would hold, the claim is not tight"


@given(st.floats(0.001, 40.0))
def test_no_epsilon_is_exceeded_by_unary_encoding(exp_bounds: Bounds, epsilon: float) -> None:
    many, two = optimized_unary(epsilon, 50), optimized_unary(epsilon, 2)
    other, own = many.weights.tolist()
    assert own == [TOTAL // 2, TOTAL // 2]
    worst = max(Fraction(a, b) for a, b in zip(own, other, strict=True))
    worst *= max(Fraction(b, a) for a, b in zip(own, other, strict=True))
    assert worst <= exp_bounds(many.epsilon)[0]
    assert two.table.largest_ratio <= exp_bounds(two.epsilon)[0]
    for mechanism, ratio in ((many, worst), (two, two.table.largest_ratio)):
        assert ratio > exp_bounds(math.nextafter(mechanism.epsilon, 0.0))[1], "a smaller float would hold"
        assert 0.98 * epsilon <= mechanism.epsilon <= epsilon


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_two_classes_keep_all_that_the_two_bits_say(epsilon: float, exp_bounds: Bounds) -> None:
    """`t = (1 + b_1 - b_0) / 2`, summed over the four pairs of bits with the probabilities of the formula."""
    mechanism = optimized_unary(epsilon, 2)
    q = 1 / (math.exp(epsilon) + 1)
    for y in (0, 1):
        expected = dict.fromkeys((0.0, 0.5, 1.0), 0.0)
        for b_0, b_1 in itertools.product((0, 1), repeat=2):
            ones = [0.5 if j == y else q for j in (0, 1)]
            likely = math.prod(p if bit else 1 - p for p, bit in zip(ones, (b_0, b_1), strict=True))
            expected[(1 + b_1 - b_0) / 2] += likely
        assert mechanism.values.tolist() == list(expected)
        found = [w / TOTAL for w in mechanism.weights[y].tolist()]
        assert found == pytest.approx(list(expected.values()), rel=1e-9)
    assert mechanism.outcome_shape == ()
    assert mechanism.table.largest_ratio > exp_bounds(mechanism.epsilon * (1 - 1e-9))[1]


@pytest.mark.parametrize("classes", [3, 100])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_moments_are_those_of_the_formula(epsilon: float, classes: int) -> None:
    mechanism = optimized_unary(epsilon, classes)
    q = 1 / (math.exp(epsilon) + 1)
    for y in (0, classes - 1):
        expected = np.where(np.arange(classes) == y, 0.5, q)
        assert mechanism.mean(y) == pytest.approx(expected, rel=1e-9)
        assert mechanism.variance(y) == pytest.approx(expected * (1 - expected), rel=1e-9)


def test_likelihoods_are_the_probabilities_of_all_vectors() -> None:
    mechanism = optimized_unary(0.7, 4)
    vectors = all_vectors(4)
    expected = [[float(probability_of_vector(mechanism, vector, y)) for y in range(4)] for vector in vectors]
    found = np.exp(mechanism.log_likelihood(np.array(vectors, dtype=np.uint8)))
    assert found == pytest.approx(np.array(expected), rel=1e-9)


def test_words_at_every_boundary_give_the_right_bit() -> None:
    """Coordinate j of a record takes the next word, from the row that says whether j is its class."""
    mechanism = optimized_unary(0.7, 5)
    boundaries = [mechanism.weights[row, 0].tolist() for row in (0, 1)]
    near = [word for boundary in boundaries for word in (boundary - 1, boundary, boundary + 1)]
    words = np.array([*near, 0, TOTAL - 1, 3, 2**63 + 5], dtype=np.uint64)
    rows = np.stack([np.roll(words, shift)[:5] for shift in range(10)])
    for y in range(5):
        drawn = mechanism._draw(np.full(10, y, dtype=np.uint8), rows.ravel())
        for i, j in np.ndindex(10, 5):
            assert drawn[i, j] == (int(rows[i, j]) >= boundaries[int(j == y)])


@pytest.mark.parametrize("y", [0, 2])
def test_every_vector_is_as_frequent_as_its_integers_say(y: int, assert_frequencies: CheckFrequencies) -> None:
    mechanism = optimized_unary(1.0, 4)
    drawn = mechanism.release(np.full(1_000_000, y), rng=70 + y).outcomes
    vectors = all_vectors(4)
    numbers = drawn @ np.array([8, 4, 2, 1])
    weights = [round(probability_of_vector(mechanism, vector, y) * TOTAL) for vector in vectors]
    assert_frequencies(np.bincount(numbers, minlength=16), weights)


@pytest.mark.parametrize("y", [0, 1])
def test_every_outcome_of_two_classes_is_as_frequent_as_its_integer_says(
    y: int, assert_frequencies: CheckFrequencies
) -> None:
    mechanism = optimized_unary(1.0, 2)
    drawn = mechanism.release(np.full(1_000_000, y), rng=72 + y).outcomes
    assert_frequencies(np.bincount(drawn, minlength=3), mechanism.weights[y].tolist())


def test_with_a_hundred_classes_bits_and_pairs_are_as_frequent_as_they_should_be(assert_rates: CheckRates) -> None:
    mechanism = optimized_unary(1.0, 100)
    y, draws = 57, 200_000
    drawn = mechanism.release(np.full(draws, y), rng=74).outcomes.astype(np.float32)
    single = np.where(np.arange(100) == y, 0.5, mechanism.weights[0, 1] / TOTAL)
    expected = np.multiply.outer(single, single)
    np.fill_diagonal(expected, single)
    assert_rates((drawn.T @ drawn).astype(np.int64), draws, expected)


def test_a_bit_of_another_class_is_kept_as_well_as_by_binary_randomised_response() -> None:
    assert optimized_unary(1.3, 7).weights[0].tolist() == randomized_response(1.3).weights[0].tolist()


# The recommended mechanism: the variance it is chosen by, and that no other has a lower one.


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
