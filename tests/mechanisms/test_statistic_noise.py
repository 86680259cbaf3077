"""The noise of a statistic, and the bound on what it is summed from."""

from __future__ import annotations

import decimal
import json
import math
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tpsl.mechanisms import (
    DEFAULT_BOUND,
    DiscreteGaussian,
    DiscreteLaplace,
    NoNoise,
    Norm,
    StatisticNoise,
    clip_rows,
    compose,
    epsilon_of_rho,
    fit_noise,
    noise_from_spec,
    seeded_words,
    to_integers,
)
from tpsl.mechanisms.exact import MAX_WIDTH
from tpsl.mechanisms.statistic_noise import MAX_BOUND

# Rows of integers with a bounded norm, whatever the other side sends.

NORMS: list[Norm] = ["l1", "l2"]
SHAPES = arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=12)
INTEGERS = st.sampled_from([np.int8, np.int32, np.int64, np.uint8, np.uint64])
FLOATS = st.sampled_from([np.float32, np.float64])


def norm_of(row: list[int], norm: Norm) -> int:
    """The norm, squared for "l2", in Python's integers."""
    return sum(abs(q) for q in row) if norm == "l1" else sum(q * q for q in row)


def assert_bounded(clipped: np.ndarray, bound: int, norm: Norm) -> None:
    limit = bound if norm == "l1" else bound**2
    assert all(norm_of(row, norm) <= limit for row in clipped.tolist())


@given(
    rows=INTEGERS.flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)),
    bound=st.integers(1, MAX_BOUND),
    norm=st.sampled_from(NORMS),
)
def test_no_integers_exceed_the_bound(rows: np.ndarray, bound: int, norm: Norm) -> None:
    clipped = clip_rows(rows, bound, norm)
    assert clipped.shape == rows.shape
    assert_bounded(clipped, bound, norm)
    assert (np.sign(clipped) * np.sign(rows.astype(np.float64)) >= 0).all(), "no number changes its sign"
    short = [norm_of(row, norm) <= (bound if norm == "l1" else bound**2) for row in rows.tolist()]
    assert (clipped[short] == rows[short]).all(), "a row within the bound stays as it is"


@given(
    phi=FLOATS.flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)),
    bound=st.integers(1, MAX_BOUND),
    norm=st.sampled_from(NORMS),
)
def test_no_floats_exceed_the_bound(phi: np.ndarray, bound: int, norm: Norm) -> None:
    """NaN, infinities, -0, denormal and huge numbers among them, and without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        integers = to_integers(phi, bound)
    assert (np.abs(integers) <= bound).all()
    assert_bounded(clip_rows(integers, bound, norm), bound, norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e308, -1e308])
def test_hostile_floats_are_harmless(value: float, norm: Norm) -> None:
    phi = np.full((3, 1000), value)
    clipped = clip_rows(to_integers(phi, DEFAULT_BOUND), DEFAULT_BOUND, norm)
    assert_bounded(clipped, DEFAULT_BOUND, norm)
    if not np.isfinite(value) or abs(value) < 1:
        assert (clipped == 0).all() == (np.isnan(value) or abs(value) < 1)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bound", [1, 1000, DEFAULT_BOUND, MAX_BOUND])
def test_a_one_hot_row_reaches_the_bound_and_not_more(bound: int, norm: Norm) -> None:
    rows = np.zeros((2, 50), np.int64)
    rows[0, 7], rows[1, 8] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    clipped = clip_rows(rows, bound, norm)
    assert clipped[0, 7] == -bound
    assert clipped[1, 8] == bound
    assert np.count_nonzero(clipped) == 2


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [2, 64, 4096])
def test_a_row_that_is_too_long_keeps_its_direction(width: int, norm: Norm) -> None:
    rows = np.random.default_rng(1).integers(-DEFAULT_BOUND, DEFAULT_BOUND + 1, (20, width))
    rows[:, 0] = DEFAULT_BOUND
    scaled = rows * (DEFAULT_BOUND / np.linalg.norm(rows, 1 if norm == "l1" else 2, axis=1, keepdims=True))
    assert np.abs(clip_rows(rows, DEFAULT_BOUND, norm) - scaled).max() <= 2, "two units of 32,768"


def test_the_widest_row_of_the_largest_numbers_does_not_overflow() -> None:
    rows = np.full((1, MAX_WIDTH), np.iinfo(np.int64).min)
    for norm in NORMS:
        clipped = clip_rows(rows, MAX_BOUND, norm)
        total = int(np.abs(clipped).astype(np.int64).sum())
        assert (total if norm == "l1" else total * int(np.abs(clipped).max())) <= MAX_BOUND ** (
            1 if norm == "l1" else 2
        )


def test_rounding_is_to_the_nearest() -> None:
    phi = np.array([[0.0, 0.5, -0.5, 1.0, 0.2499, 2.0, -3.0]])
    assert to_integers(phi, 1000).tolist() == [[0, 500, -500, 1000, 250, 1000, -1000]]


def test_many_rows_are_treated_as_each_by_itself() -> None:
    rng = np.random.default_rng(2)
    phi = rng.normal(size=(3000, 700)) / 20
    together = clip_rows(to_integers(phi, DEFAULT_BOUND), DEFAULT_BOUND, "l2")
    for row in (0, 1497, 1498, 2999):
        alone = clip_rows(to_integers(phi[row : row + 1], DEFAULT_BOUND), DEFAULT_BOUND, "l2")
        assert (together[row] == alone[0]).all()


def test_what_is_no_row_of_integers_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of at most"):
        clip_rows(np.zeros((2, 2)), 10, "l2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows of at most"):
        clip_rows(np.zeros(3, np.int64), 10, "l2")
    for bound in (0, -1, MAX_BOUND + 1, 2.5, True):
        with pytest.raises(ValueError, match="bound of a statistic"):
            clip_rows(np.zeros((2, 2), np.int64), bound, "l2")  # type: ignore[arg-type]


# Noise for a statistic: what it costs is what the integers cost, no less and hardly more, whatever the rows are.

KINDS = ["gaussian", "laplace"]
EPSILONS = [0.01, 0.1, 0.5, 1.0, 2.0, 8.0]
WIDTHS = [1, 7, 256]
DELTA = 1e-6
SameDistribution = Callable[[np.ndarray, np.ndarray], None]


@cache
def fitted(kind: str, epsilon: float, bound: int, classes: int) -> StatisticNoise:
    return fit_noise(kind, epsilon, DELTA, bound, classes)


def worst_rows(width: int, bound: int, noise: StatisticNoise) -> np.ndarray:
    """Rows of a hostile feature party, as the vault would clip them."""
    rng = np.random.default_rng(width)
    hostile = rng.integers(-(2**62), 2**62, (20, width))
    hostile[0] = 0
    hostile[0, 0] = 2**62
    hostile[1] = -(2**62)
    hostile[2:10] //= rng.integers(1, 2**62, (8, width))
    return clip_rows(hostile, bound, noise.norm)


@pytest.mark.parametrize("classes", [2, 3, 100])
@pytest.mark.parametrize("bound", [1 << 13, DEFAULT_BOUND, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_integers_cost_is_at_most_what_was_asked_for_and_at_least_0_999_of_it(
    kind: str, bound: int, classes: int
) -> None:
    for epsilon, width in product([0.01, 0.1, 1.0, 8.0], WIDTHS):
        noise = fitted(kind, epsilon, bound, classes)
        cost = noise.cost(bound, classes)
        assert 0.999 * epsilon <= cost.epsilon <= epsilon
        moved = worst_rows(width, bound, noise).astype(object)
        vectors = 1 if classes == 2 else 2
        if isinstance(noise, DiscreteGaussian):
            rho = max(Fraction(int(sq) * vectors, 2 * noise.variance) for sq in (moved**2).sum(axis=1))
            assert cost.rho is not None
            assert rho == cost.rho, "a one-hot row costs all that is claimed, no row more"
        else:
            assert isinstance(noise, DiscreteLaplace)
            pure = max(Fraction(int(size) * vectors, noise.scale) for size in np.abs(moved).sum(axis=1))
            assert Fraction(cost.epsilon) >= pure >= Fraction(math.nextafter(cost.epsilon, 0))


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("releases", [2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_several_releases_together_cost_what_was_asked_for(kind: str, releases: int, classes: int) -> None:
    for epsilon in EPSILONS:
        noise = fit_noise(kind, epsilon, DELTA, DEFAULT_BOUND, classes, releases)
        together = compose([noise.cost(DEFAULT_BOUND, classes)] * releases)
        assert 0.999 * epsilon <= together.epsilon <= epsilon
        assert together.delta == (pytest.approx(DELTA, rel=1e-12) if kind == "gaussian" else 0.0)


@pytest.mark.parametrize("variance", [1, 3, 20])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_gaussian_noise_has_its_rho_by_the_definition(variance: int, shift: int) -> None:
    """`D_α(y + shift || y) / α` over integers, for integer α where it is largest, at 50 digits."""
    noise = DiscreteGaussian(variance, DELTA)
    cost = noise.cost(shift, 2)
    assert cost.rho is not None
    with decimal.localcontext(prec=50):
        mass = {y: (Decimal(-y * y) / (2 * variance)).exp() for y in range(-200, 201)}
        total = sum(mass.values())
        ratios = []
        for alpha in (2, 3, 4):
            terms = ((mass[y - shift] / total) ** alpha * (mass[y] / total) ** (1 - alpha) for y in range(-100, 101))
            ratios.append(float(sum(terms).ln() / (alpha - 1) / alpha))
    assert ratios == pytest.approx([float(cost.rho)] * 3, rel=1e-12)


@pytest.mark.parametrize("variance", [1, 20, 400])
@pytest.mark.parametrize("shift", [1, 4])
def test_gaussian_noise_keeps_the_epsilon_and_delta_it_states(variance: int, shift: int) -> None:
    """`δ(ε) = Σ max(0, P(y - shift) - e^ε P(y))` of the exact distribution is at most the δ that is stated."""
    for delta in (1e-6, 1e-3, 0.1):
        cost = DiscreteGaussian(variance, delta).cost(shift, 2)
        y = np.arange(-400, 401)
        mass = np.exp(-(y**2) / (2 * variance))
        mass /= mass.sum()
        moved = np.exp(-((y - shift) ** 2) / (2 * variance)) / np.exp(-(y**2) / (2 * variance)).sum()
        excess = np.maximum(0, moved - math.exp(cost.epsilon) * mass).sum()
        assert excess <= delta
        assert excess >= delta / 20, "the conversion from ρ is not far off either"


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_opendp_puts_the_same_price_on_it(epsilon: float, classes: int) -> None:
    dp.enable_features("contrib")
    vectors = 1 if classes == 2 else 2
    integers = dp.vector_domain(dp.atom_domain(T="i64"))

    gaussian = fit_noise("gaussian", epsilon, DELTA, DEFAULT_BOUND, classes)
    theirs: Any = dp.m.make_gaussian(integers, dp.l2_distance(T="f64"), scale=gaussian.deviation)
    moved = DEFAULT_BOUND * math.sqrt(vectors)
    cost = gaussian.cost(DEFAULT_BOUND, classes)
    assert cost.rho is not None
    assert theirs.map(moved) == pytest.approx(float(cost.rho), rel=1e-12)
    by_rho = dp.c.make_zCDP_to_approxDP(theirs).map(moved).epsilon(DELTA)
    assert epsilon_of_rho(cost.rho, DELTA) == pytest.approx(by_rho, rel=1e-6)
    # OpenDP knows the ρ alone; the smaller ε of Gaussian noise is checked in test_gaussian_tradeoff.py.
    assert 0.85 * by_rho < cost.epsilon < 0.95 * by_rho

    laplace = fit_noise("laplace", epsilon, DELTA, DEFAULT_BOUND, classes)
    assert isinstance(laplace, DiscreteLaplace)
    theirs = dp.m.make_laplace(integers, dp.l1_distance(T="i64"), scale=float(laplace.scale))
    assert theirs.map(DEFAULT_BOUND * vectors) == pytest.approx(laplace.cost(DEFAULT_BOUND, classes).epsilon, rel=1e-12)


@pytest.mark.parametrize("noise", [DiscreteGaussian(30, DELTA), DiscreteLaplace(4)])
def test_draws_agree_with_opendp(noise: StatisticNoise, assert_same_distribution: SameDistribution) -> None:
    dp.enable_features("contrib")
    integers, reach, draws = dp.vector_domain(dp.atom_domain(T="i64")), 20, 20_000
    theirs: Any = (
        dp.m.make_gaussian(integers, dp.l2_distance(T="i64"), scale=noise.deviation)
        if isinstance(noise, DiscreteGaussian)
        else dp.m.make_laplace(integers, dp.l1_distance(T="i64"), scale=4.0)
    )
    ours = noise.sample(draws, seeded_words(1))
    both = [np.clip(drawn, -reach, reach) + reach for drawn in (ours, np.array(theirs([0] * draws)))]
    assert_same_distribution(*(np.bincount(drawn, minlength=2 * reach + 1) for drawn in both))


@pytest.mark.parametrize(
    "noise", [DiscreteGaussian(7, DELTA), DiscreteGaussian(10**12, 1e-9), DiscreteLaplace(3), NoNoise()], ids=str
)
def test_the_deviation_is_that_of_the_draws(noise: StatisticNoise) -> None:
    drawn = noise.sample(200_000, seeded_words(2))
    assert drawn.std() == pytest.approx(noise.deviation, rel=0.01)
    assert abs(drawn.mean()) <= 0.012 * noise.deviation


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_smaller_noise_would_cost_too_much(kind: str) -> None:
    noise = fit_noise(kind, 0.7, DELTA, DEFAULT_BOUND, 2)
    spec = noise.spec()
    parameter = "variance" if kind == "gaussian" else "scale"
    assert noise_from_spec({**spec, parameter: spec[parameter] - 1}).cost(DEFAULT_BOUND, 2).epsilon > 0.7


@pytest.mark.parametrize("noise", [DiscreteGaussian(1234, DELTA), DiscreteLaplace(99), NoNoise()], ids=str)
def test_a_spec_survives_json_and_rebuilds_the_noise(noise: StatisticNoise) -> None:
    rebuilt = noise_from_spec(json.loads(json.dumps(noise.spec())))
    assert rebuilt == noise
    assert rebuilt.digest == noise.digest


def test_the_digest_names_what_is_drawn() -> None:
    noises = [DiscreteGaussian(99, DELTA), DiscreteGaussian(98, DELTA), DiscreteLaplace(99), NoNoise()]
    assert len({noise.digest for noise in noises}) == 4
    assert DiscreteGaussian(99, 0.1).digest == noises[0].digest, "δ is a claim, no part of the draw"


def test_no_noise_promises_nothing() -> None:
    assert not NoNoise().sample(5, seeded_words(1)).any()
    assert NoNoise().cost(1, 2).epsilon == math.inf


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({}, "unknown noise for a statistic None; known are gaussian, laplace, none"),
        ({"noise": "uniform"}, "unknown noise for a statistic 'uniform'; known are gaussian, laplace, none"),
        ({"noise": "gaussian", "scale": 3}, "gaussian noise for a statistic does not take these parameters"),
        ({"noise": "gaussian", "variance": 0, "delta": 1e-6}, "the variance of Gaussian noise must be an integer"),
        ({"noise": "gaussian", "variance": 2**62 + 1, "delta": 1e-6}, r"from 1 to 2\^62"),
        ({"noise": "gaussian", "variance": 2.5, "delta": 1e-6}, "must be an integer"),
        ({"noise": "gaussian", "variance": 3, "delta": 0.0}, "delta must be above 0"),
        ({"noise": "laplace", "scale": True}, "the scale of Laplace noise must be an integer"),
    ],
)
def test_a_spec_that_is_none_is_refused(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        noise_from_spec(spec)


def test_noise_is_fitted_to_what_can_be_kept_alone() -> None:
    with pytest.raises(ValueError, match="known are gaussian, laplace"):
        fit_noise("none", 1.0, DELTA, DEFAULT_BOUND, 2)
    with pytest.raises(ValueError, match="epsilon must be a positive number"):
        fit_noise("laplace", 0.0, DELTA, DEFAULT_BOUND, 2)
    with pytest.raises(ValueError, match="delta must be above 0"):
        fit_noise("gaussian", 1.0, 0.0, DEFAULT_BOUND, 2)
    with pytest.raises(ValueError, match="bound of a statistic"):
        fit_noise("gaussian", 1.0, DELTA, 0, 2)
