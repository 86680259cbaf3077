"""Paillier encryption: what is encrypted is decrypted and added, bad keys are refused, and answers are uniform."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from tpsl.blind import BlindError
from tpsl.blind.paillier import BITS, PublicKey, SecretKey, _hashed, _Prime, gmp
from tpsl.mechanisms import secure_words, seeded_words

MESSAGES = (0, 1, 1 << 64)


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return SecretKey.random(2048)


def refused(check: object, code: str) -> None:
    with pytest.raises(BlindError) as error:
        check()  # type: ignore[operator]
    assert error.value.code == code


def test_what_is_encrypted_is_decrypted(key: SecretKey) -> None:
    values = np.arange(300) % 3
    ciphertexts = key.encrypt(values, MESSAGES, secure_words())
    assert key.decrypt(ciphertexts) == [MESSAGES[value] for value in values]
    assert len(set(ciphertexts)) == len(ciphertexts)


def test_products_are_sums_and_a_key_from_its_file_is_the_same(key: SecretKey) -> None:
    values = np.arange(30) % 3
    total = math.prod(key.encrypt(values, MESSAGES, secure_words())) % key.public.square
    assert SecretKey.from_json(key.to_json()).decrypt([total]) == [sum(MESSAGES[value] for value in values)]
    assert SecretKey.from_json(key.to_json()).public == key.public


def test_encryption_is_repeated_from_its_words(key: SecretKey) -> None:
    """A restarted label party sends the same bytes again, if it encrypts the same labels from the same words."""
    values = np.arange(2100) % 2
    first, again = (key.encrypt(values, (0, 1), seeded_words(5)) for _ in range(2))
    assert first == again
    assert set(first).isdisjoint(key.encrypt(values, (0, 1), seeded_words(6)))


@pytest.mark.parametrize("bits", BITS)
def test_keys_have_their_size_and_pass_the_check(bits: int) -> None:
    key = SecretKey.random(bits)
    assert key.public.bits == bits
    key.public.check()
    for prime in (key.p, key.q):
        assert gmp().is_prime(prime.p, 50)
        assert math.prod(prime.factors) <= prime.p - 1
        assert all((prime.p - 1) % factor == 0 and gmp().is_prime(factor) for factor in prime.factors)
        rest = prime.p - 1
        for factor in prime.factors:
            while rest % factor == 0:
                rest //= factor
        assert rest == 1, "a prime factor of p - 1 is missing, so a generator would not be one"
        generator = prime.generator(key.public.n)
        assert gmp().powmod(generator, prime.p - 1, prime.square) == 1
        assert all(gmp().powmod(generator, (prime.p - 1) // f, prime.square) != 1 for f in prime.factors)


def roots_as_well_as_can_be(n: int, totient: int) -> tuple[int, ...]:
    """What a dishonest owner can answer: the exponent that would be right but for what gcd(n, φ(n)) takes away."""
    g = gmp()
    exponent = g.invert(n // g.gcd(n, totient), totient // g.gcd(n, totient) or 1)
    return tuple(g.powmod(number, exponent, n) for number in _hashed(n))


def test_keys_that_would_not_hide_the_features_are_refused(key: SecretKey) -> None:
    g, p = gmp(), key.p.p
    refused(PublicKey(key.public.n, key.public.roots[:-1]).check, "no-key")
    refused(PublicKey(key.public.n, (*key.public.roots[1:], key.public.roots[0])).check, "no-key")
    refused(PublicKey(key.public.n + 1, key.public.roots).check, "no-key")
    small = SecretKey(_Prime.random(512), _Prime.random(512))
    refused(small.public.check, "no-key")
    # p divides q - 1: n-th powers are few, and an answer would tell in which class of them its ciphertext was.
    short = _Prime.random(600).p
    factor = (g.mpz(1) << 2048 - 600) // (2 * short) + 1
    while not g.is_prime(q := 2 * factor * short + 1) or (short * q).bit_length() != 2048:
        factor += 1
    bad = short * q
    refused(PublicKey(bad, roots_as_well_as_can_be(bad, (short - 1) * (q - 1))).check, "no-key")
    square = p * p
    refused(PublicKey(square, roots_as_well_as_can_be(square, p * (p - 1))).check, "no-key")
    three = 3 * g.next_prime(g.mpz(1) << 2046)
    refused(PublicKey(three, tuple(g.mpz(1) for _ in range(8))).check, "no-key")


def test_ciphertexts_of_no_key_are_refused(key: SecretKey) -> None:
    public, size = key.public, key.public.ciphertext_bytes
    good = key.encrypt(np.array([1, 0]), (0, 1), secure_words())
    assert public.unpack(public.pack(good)) == good
    for bad in (bytes(size), int(public.square).to_bytes(size, "little"), int(public.n).to_bytes(size, "little")):
        refused(lambda bad=bad: public.unpack(public.pack(good) + bad), "no-ciphertexts")
    refused(lambda: public.unpack(public.pack(good)[:-1]), "no-ciphertexts")
    for number in (0, int(key.p.p), int(public.n), int(public.square)):
        refused(lambda number=number: key.decrypt([number]), "no-ciphertexts")


TINY = PublicKey(11 * 17, ())
UNITS = [c for c in range(TINY.n**2) if math.gcd(c, TINY.n) == 1]


def test_masks_and_units_reach_every_answer_once() -> None:
    """(s, σ) → (1 + sn)σⁿ is a bijection if gcd(n, φ(n)) = 1, and not for n = 3·7, where 3 divides 6."""

    def answers(n: int) -> set[int]:
        units = [u for u in range(n) if math.gcd(u, n) == 1]
        return {(1 + s * n) * pow(u, n, n * n) % (n * n) for s, u in product(range(n), units)}

    assert answers(187) == set(UNITS)
    assert len(answers(21)) < 21 * 12


@pytest.mark.parametrize("ciphertext", [1, 2, 187 * 186 + 1, 34002])
def test_an_answer_is_uniform_whatever_it_answers(ciphertext: int) -> None:
    """So a label party, honest or not, learns nothing of the features. Exact values, all of a small key's."""
    assert ciphertext in UNITS
    draws = 20 * len(UNITS)
    seen = np.zeros(TINY.n**2)
    for _ in range(draws):
        seen[int(TINY.blinded(gmp().mpz(ciphertext), TINY.random_mask()))] += 1
    assert stats.chisquare(seen[UNITS]).pvalue > 1e-6
    assert seen.sum() == seen[UNITS].sum()


def test_ciphertexts_of_a_small_key_are_uniform_among_those_of_their_plaintext() -> None:
    p, q = _Prime(11, (2, 5)), _Prime(17, (2,))
    key = SecretKey(p, q)
    residues = {pow(u, 187, 187**2) for u in range(187) if math.gcd(u, 187) == 1}
    for value, message in ((0, 0), (1, 5)):
        ciphertexts = key.encrypt(np.full(160 * 50, value), (0, 5), seeded_words(value))
        counts = np.unique(np.array([int(c) for c in ciphertexts]), return_counts=True)
        assert {int(c) for c in counts[0]} == {(1 + message * 187) * r % 187**2 for r in residues}
        assert stats.chisquare(counts[1]).pvalue > 1e-6
