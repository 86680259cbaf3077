"""Random words, and draws of integer noise outcome by outcome against their formulas, without a float."""

from __future__ import annotations

import ast
import decimal
import hashlib
import inspect
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from scipy import stats

from tpsl.mechanisms import RandomWords, sampling, secure_words, seeded_words
from tpsl.mechanisms.sampling import (
    MAX_SCALE,
    MAX_VARIANCE,
    bernoulli_exp,
    discrete_gaussian,
    discrete_laplace,
    uniform,
)

# The random words: AES-256-CTR, as the standard has it; seeded streams repeat, secure ones do not.

# NIST SP 800-38A, F.5.5, CTR-AES256.Encrypt: key, first counter block, and the key stream ("output block") it gives.
NIST_KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
NIST_COUNTER = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
NIST_OUTPUT = bytes.fromhex("0bdf7df1591716335e9a8b15c860c502")


def counter_mode(key: bytes, first_counter: int, blocks: int) -> bytes:
    """Counter mode from its definition: the encryption of first_counter, first_counter + 1, …, big-endian."""
    encryptor = Cipher(AES(key), ECB()).encryptor()
    return b"".join(encryptor.update((first_counter + i).to_bytes(16, "big")) for i in range(blocks))


def test_the_reference_of_these_tests_gives_the_vector_of_the_standard() -> None:
    assert counter_mode(NIST_KEY, int.from_bytes(NIST_COUNTER, "big"), 1) == NIST_OUTPUT


def test_words_are_the_aes_256_key_stream_from_counter_zero() -> None:
    words = RandomWords(NIST_KEY, secure=False).words(1000)
    assert words.dtype == np.uint64
    assert words.astype("<u8").tobytes() == counter_mode(NIST_KEY, 0, 500)


def test_first_words_of_a_seed_are_pinned() -> None:
    """An experiment that names its seed can be repeated by a later version."""
    assert seeded_words(7).words(2).tolist() == [1039200744417995385, 17322652996834560801]
    assert seeded_words(7, "vault", 3).words(2).tolist() == [17985660328886045661, 8326090988325006526]


def test_words_are_the_same_however_the_calls_are_cut() -> None:
    whole = seeded_words(1, "cut").words(1001)
    stream = seeded_words(1, "cut")
    cut = np.concatenate([stream.words(n) for n in (0, 1, 1, 3, 0, 128, 7, 861)])
    assert np.array_equal(whole, cut)


@pytest.mark.parametrize("other", [(2,), (1, "a"), (1, "b"), (1, 1), (-1,), (1, "a", "b"), (11,)])
def test_different_seeds_and_contexts_give_different_streams(other: tuple[int | str, ...]) -> None:
    assert not np.array_equal(seeded_words(1).words(2), seeded_words(*other).words(2))  # type: ignore[arg-type]


def test_seeded_stream_repeats_and_is_not_secure() -> None:
    assert np.array_equal(seeded_words(3, "x").words(100), seeded_words(3, "x").words(100))
    assert np.array_equal(seeded_words(3).words(9), seeded_words(np.int64(3)).words(9))  # type: ignore[arg-type]
    assert seeded_words(3).secure is False


@pytest.mark.parametrize("seed", [1.5, 1.0, "1", None, np.random.default_rng(0)])
def test_a_seed_that_is_no_integer_is_refused(seed: object) -> None:
    """1.5 must not become 1: two experiments with different seeds would share their noise."""
    with pytest.raises(TypeError):
        seeded_words(seed)  # type: ignore[arg-type]


def test_secure_streams_never_repeat_and_are_secure() -> None:
    first = {secure_words().words(2).tobytes() for _ in range(1000)}
    assert len(first) == 1000
    assert secure_words().secure is True


def test_secure_key_comes_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    key = hashlib.sha256(b"entropy").digest()
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return key[:count]

    monkeypatch.setattr("os.urandom", entropy)
    assert secure_words().words(4).astype("<u8").tobytes() == counter_mode(key, 0, 2)
    assert asked == [32]


@pytest.mark.parametrize("stream", [seeded_words(5), RandomWords(bytes(range(32)), secure=False)])
def test_every_bit_of_a_word_is_a_fair_coin(stream: RandomWords) -> None:
    """A bit that is never randomised has been seen in a real library; each of the 64 is looked at."""
    words = stream.words(1_000_000)
    for bit in range(64):
        ones = int(((words >> np.uint64(bit)) & np.uint64(1)).sum())
        assert stats.binomtest(ones, len(words)).pvalue > 1e-6 / 64 / 2, f"bit {bit}: {ones} ones"


def test_a_secure_stream_does_not_cross_a_fork() -> None:
    """Parent and child would otherwise draw the same words."""
    stream = secure_words()
    child = os.fork()
    if child == 0:
        try:
            stream.words(1)
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(stream.words(3)) == 3


# Draws of integer noise: outcome by outcome against probabilities computed from the formulas, and without a float.

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
