"""The random words: AES-256-CTR, as the standard has it; seeded streams repeat, secure ones do not."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from scipy import stats

from tpsl.mechanisms import RandomWords, secure_words, seeded_words

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
