"""Tables, seeded releases and seeded noise to the last bit: ledgers keep specs, and old releases must stay repeatable.

A value here may never change. A better table gets a new name (`tpsl.mechanisms.MECHANISMS`).
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from tpsl.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    Mechanism,
    StatisticNoise,
    best_for,
    from_spec,
    gaussian,
    identity,
    integer_weights,
    laplace,
    optimized_unary,
    randomized_response,
    seeded_words,
    subset_selection,
)

UNEVEN = integer_weights([[0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.2, 0.2, 0.6]], 1.1)

# mechanism, its ε, the first 16 digits of its digest and of the SHA-256 of 3,000 outcomes under seed 27
MECHANISMS: list[tuple[Mechanism, float, str, str]] = [
    (randomized_response(1.0), 1.0, "f52cf3f14f74a935", "aaa1f90e153ec592"),
    (randomized_response(0.1), 0.1, "0532465e1da3b14b", "f7a86488e1746d69"),
    (randomized_response(2.0, 10), 2.0, "835b252ebd469619", "684d4d38abebfc80"),
    (randomized_response(1.0, 300), 0.9999999999999983, "68a21529d88d8401", "898ddd7bc8a984fa"),
    (identity(), math.inf, "f7bc31df95000fd2", "1f86ae287fc2ce02"),
    (identity(4), math.inf, "f9c832a86b526963", "99f48dce199ca34f"),
    (laplace(1.0), 1.0, "ecc12675cc1c317d", "89ec2b6bbad3046f"),
    (laplace(0.1), 0.1, "1d532cc7c103c636", "58c5b575251532f6"),
    (laplace(2.0, 5), 2.0, "cec535c871f52af7", "6b201e1dab3aa7fd"),
    (gaussian(2.0, 1e-6), 2.2541097162907913, "e975247f7bfe5d69", "46ba40e2c20d9a9b"),
    (gaussian(1.0, 1e-5, 5), 6.572996380278319, "4485fcea8eef44c5", "b6424bcbf2df340b"),
    (subset_selection(0.5, 10), 0.5, "b81e1b1448842dc1", "76bf446dcf2dbb63"),
    (subset_selection(1.0, 100), 1.0, "02ffdaa6aa776012", "57a959cac355058d"),
    (subset_selection(4.0, 3), 4.0, "778c54e622685f53", "895ffc2ea779abd6"),
    (optimized_unary(1.0, 2), 1.0, "dd47ad6006b3d847", "28269ac7e054f2f1"),
    (optimized_unary(1.0, 20), 1.0, "eafec84b50564aa7", "5b548878ef95697c"),
    (best_for(1.0, 2)[0], 1.0, "f52cf3f14f74a935", "aaa1f90e153ec592"),
    (best_for(1.0, 40)[0], 1.0, "96d94ab4f8e6e6de", "b6c9ccf55ee16fc3"),
    (from_spec({"mechanism": "uneven", "weights": UNEVEN}), 0.6931471805599454, "9bce9260742a5604", "e7537011d95fbd9d"),
]

# noise, the ε of one release at a bound of 32,768 for two classes and for five, and the same digits of its digest and
# of 3,000 numbers under seed 27
NOISE: list[tuple[StatisticNoise, float, float, str, str]] = [
    (DiscreteGaussian(10**10, 1e-6), 1.4213679029177448, 2.073771513942224, "e2fdc8d528e25cb2", "5511ba52e652e767"),
    (DiscreteGaussian(12345, 1e-5), 44898.99072039755, 88973.76986328783, "a033783f1063325b", "2ff190039a3b4077"),
    (DiscreteGaussian(7, 1e-6), 76760938.56367688, 153483749.2335976, "45e93dc794eeab20", "4e09fd5314dcb125"),
    (DiscreteLaplace(100_000), 0.32768, 0.65536, "91449e62e55abf53", "3d77f7bda809cec2"),
    (DiscreteLaplace(3), 10922.666666666668, 21845.333333333336, "0951c7b2d03b2169", "cf48729684901ce0"),
]


def sha(array: np.ndarray, kind: str) -> str:
    return hashlib.sha256(array.astype(kind).tobytes()).hexdigest()[:16]


def test_seeded_words_are_those_recorded() -> None:
    assert sha(seeded_words(27, "recorded").words(3000), "<u8") == "a416e15ea265c4ce"


@pytest.mark.parametrize(("mechanism", "epsilon", "digest", "outcomes"), MECHANISMS, ids=lambda v: str(v)[:40])
def test_table_and_seeded_release_are_those_recorded(
    mechanism: Mechanism, epsilon: float, digest: str, outcomes: str
) -> None:
    labels = np.arange(3000) % mechanism.classes
    assert mechanism.epsilon == epsilon
    assert mechanism.digest[:16] == digest
    assert sha(mechanism.release(labels, rng=27).outcomes, "<u4") == outcomes


@pytest.mark.parametrize(("noise", "of_two", "of_five", "digest", "drawn"), NOISE, ids=lambda v: str(v)[:40])
def test_seeded_noise_of_a_statistic_is_that_recorded(
    noise: StatisticNoise, of_two: float, of_five: float, digest: str, drawn: str
) -> None:
    assert (noise.cost(32768, 2).epsilon, noise.cost(32768, 5).epsilon) == pytest.approx((of_two, of_five), rel=1e-12)
    assert noise.digest[:16] == digest
    assert sha(noise.sample(3000, seeded_words(27)), "<i8") == drawn
