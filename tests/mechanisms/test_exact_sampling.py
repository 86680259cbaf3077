"""Draws of integer noise: outcome by outcome against probabilities computed from the formulas, and without a float."""

from __future__ import annotations

import ast
import decimal
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tpsl.mechanisms import RandomWords, sampling, seeded_words
from tpsl.mechanisms.sampling import (
    MAX_SCALE,
    MAX_VARIANCE,
    bernoulli_exp,
    discrete_gaussian,
    discrete_laplace,
    uniform,
)

CheckFrequencies = Callable[[np.ndarray, list[int]], None]
Sampler = Callable[[int, int, RandomWords], np.ndarray]

TOTAL = 2**64
ALPHA = 1e-6
DRAWS = 200_000


def weights(exponent: Callable[[int], decimal.Decimal], reach: int) -> list[int]:
    """Shares of 2^64 of the integers from -reach to reach, the tails added to the ends; 40 digits."""
    with decimal.localcontext(prec=40):
        mass = {y: exponent(y).exp() for y in range(-8 * reach - 400, 8 * reach + 401)}
        total = sum(mass.values())
        tail = sum(p for y, p in mass.items() if y > reach)
        ends = {reach: tail, -reach: tail}
        return [int((mass[y] + ends.get(y, 0)) / total * TOTAL) for y in range(-reach, reach + 1)]


def gaussian_weights(variance: int, reach: int) -> list[int]:
    return weights(lambda y: decimal.Decimal(-y * y) / (2 * variance), reach)


def laplace_weights(scale: int, reach: int) -> list[int]:
    return weights(lambda y: decimal.Decimal(-abs(y)) / scale, reach)


def counts(drawn: np.ndarray, reach: int) -> np.ndarray:
    return np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=2 * reach + 1)


@pytest.mark.parametrize("variance", [1, 2, 3, 10, 144, 1000])
def test_gaussian_draws_agree_with_the_formula_outcome_by_outcome(
    variance: int, assert_frequencies: CheckFrequencies
) -> None:
    reach = 5 * int(variance**0.5) + 3
    drawn = discrete_gaussian(variance, DRAWS, seeded_words(1, variance))
    assert_frequencies(counts(drawn, reach), gaussian_weights(variance, reach))


@pytest.mark.parametrize("scale", [1, 2, 7, 50])
def test_laplace_draws_agree_with_the_formula_outcome_by_outcome(
    scale: int, assert_frequencies: CheckFrequencies
) -> None:
    reach = 12 * scale
    drawn = discrete_laplace(scale, DRAWS, seeded_words(2, scale))
    assert_frequencies(counts(drawn, reach), laplace_weights(scale, reach))


@pytest.mark.parametrize(("sampler", "parameter"), [(discrete_gaussian, 30), (discrete_laplace, 5)])
def test_the_check_of_the_draws_notices_a_parameter_that_is_off_by_one(
    sampler: Sampler, parameter: int, assert_frequencies: CheckFrequencies
) -> None:
    expected = {discrete_gaussian: gaussian_weights, discrete_laplace: laplace_weights}[sampler](parameter, 20)
    with pytest.raises(AssertionError):
        assert_frequencies(counts(sampler(parameter + 1, DRAWS, seeded_words(3)), 20), expected)


@pytest.mark.parametrize(
    ("sampler", "parameter", "continuous"),
    [
        (discrete_gaussian, 1_672_246_610_533, stats.norm(scale=1_672_246_610_533**0.5)),
        (discrete_gaussian, MAX_VARIANCE - 1, stats.norm(scale=2.0**31)),
        (discrete_gaussian, MAX_VARIANCE, stats.norm(scale=2.0**31)),
        (discrete_laplace, 3 * 10**6, stats.laplace(scale=3e6)),
        (discrete_laplace, MAX_SCALE, stats.laplace(scale=float(MAX_SCALE))),
    ],
)
def test_large_noise_cannot_be_told_from_continuous_noise(sampler: Sampler, parameter: int, continuous: Any) -> None:
    """No overflow up to the largest parameters: the Kolmogorov-Smirnov distance is that of chance."""
    drawn = sampler(parameter, DRAWS // 2, seeded_words(4, parameter))
    assert stats.kstest(drawn, continuous.cdf).pvalue > ALPHA


def test_same_words_give_same_noise_and_other_words_other_noise() -> None:
    for sampler in (discrete_gaussian, discrete_laplace):
        first, again, other = (sampler(10**6, 1000, seeded_words(seed)) for seed in (1, 1, 2))
        assert (first == again).all()
        assert (first != other).mean() > 0.99


@pytest.mark.parametrize("count", [0, 1, 17, 100_000])
def test_as_many_numbers_as_asked_for(count: int) -> None:
    for sampler in (discrete_gaussian, discrete_laplace):
        drawn = sampler(1000, count, seeded_words(1))
        assert drawn.shape == (count,)
        assert drawn.dtype == np.int64


@pytest.mark.parametrize("limit", [2, 3, 10, 2**63 + 1])
def test_below_is_uniform_and_never_reaches_the_limit(limit: int, assert_frequencies: CheckFrequencies) -> None:
    drawn = uniform(limit, DRAWS, seeded_words(5, limit))
    assert int(drawn.max()) < limit
    cells = min(limit, 10)
    assert_frequencies(
        np.bincount((drawn.astype(np.float64) * cells / limit).astype(int), minlength=cells),
        [TOTAL // cells] * (cells - 1) + [TOTAL - TOTAL // cells * (cells - 1)],
    )


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 1), (1, 2), (2, 3), (2**62 - 1, 2**62)])
def test_coins_have_the_probability_of_the_exponential(
    numerator: int, denominator: int, assert_frequencies: CheckFrequencies
) -> None:
    heads = bernoulli_exp(np.full(DRAWS, numerator, np.uint64), denominator, seeded_words(6, numerator, denominator))
    share = int((decimal.Decimal(-numerator) / denominator).exp() * TOTAL)
    if numerator == 0:
        assert heads.all()
    else:
        assert_frequencies(np.bincount(heads, minlength=2), [TOTAL - share, share])


def test_no_float_is_computed_on_the_way() -> None:
    """Neither a float literal nor a float type nor a true division stands in the module."""
    tree = ast.parse(inspect.getsource(sampling))
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not isinstance(node, ast.Div)
        assert not (isinstance(node, ast.Attribute) and node.attr in {"float32", "float64", "exp", "log", "sqrt"})
