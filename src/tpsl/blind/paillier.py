"""Paillier encryption (1999) of small numbers by the owner of the key, fast, and what its peer must know of the key.

A ciphertext of m is `(1 + mn)·ρ mod n²`, where ρ is a uniform n-th residue: nothing but Paillier's assumption is
needed. The owner draws ρ modulo p² and q² separately. There the n-th residues are the cyclic group of p - 1 elements
whose generator g is known, because p is made with the factors of p - 1; so ρ is g to a uniform power, by tables of
powers of g. Multiplying ciphertexts adds plaintexts.

A peer that answers a ciphertext times `(1 + sn)·σⁿ`, with s uniform modulo n and σ uniform among the units, answers a
uniform unit modulo n² whatever it was given, if `gcd(n, φ(n)) = 1`: then (s, σ) → `(1 + n)^s σⁿ` is a bijection. The
key carries a proof of that, so a dishonest owner learns nothing from the answers either.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import ModuleType

import numpy as np
import numpy.typing as npt

from tpsl.blind import BlindError
from tpsl.mechanisms.sampling import RandomWords

BITS = (2048, 3072)
"""Sizes of n: 2048 bits are held to be worth 112 bits of security, 3072 worth 128 (NIST SP 800-57)."""

_WINDOW = 12
_SMALL = 1 << 16
"""A key has no prime factor below this."""
_ROOTS = 8
"""Of hashed numbers; each is an n-th residue of a bad key with a probability of at most 1/_SMALL."""
_EXTRA_WORDS = 1
"""Beyond the size of p: an exponent reduced modulo p - 1 is uniform to 2^-64."""
_AT_ONCE = 1 << 10


def gmp() -> ModuleType:
    """Return gmpy2, or raise an error that says how to get it."""
    try:
        import gmpy2
    except ImportError:
        raise BlindError("blind-extra", "the blind statistic needs gmpy2: pip install 'tpsl[blind]'") from None
    module: ModuleType = gmpy2
    return module


@dataclass(frozen=True)
class PublicKey:
    """The modulus n, and n-th roots of numbers hashed from it, which prove that `gcd(n, φ(n)) = 1`."""

    n: int
    roots: tuple[int, ...]

    @property
    def bits(self) -> int:
        """The size of n."""
        return int(self.n).bit_length()

    @property
    def ciphertext_bytes(self) -> int:
        """The size of a ciphertext."""
        return self.bits // 4

    @cached_property
    def square(self) -> int:
        """n²."""
        square: int = gmp().mpz(self.n) ** 2
        return square

    def check(self) -> None:
        """Raise unless this is a key that a peer may answer to.

        Guarantee: if it passes, `gcd(n, φ(n)) = 1` but for a chance of 2^-128 in the choice of the hash. Let a prime d
        divide both. It divides n, so it is at least 2^16, and at most one unit in d is an n-th power (Gennaro,
        Micciancio and Rabin 1998).
        """
        g = gmp()
        if self.bits not in BITS or self.n % 2 == 0 or g.gcd(self.n, g.primorial(_SMALL)) != 1:
            raise BlindError("no-key", "the label party's key is no modulus of 2048 or 3072 bits")
        if len(self.roots) != _ROOTS or any(
            g.powmod(root, self.n, self.n) != number for root, number in zip(self.roots, _hashed(self.n), strict=True)
        ):
            raise BlindError("no-key", "the label party's key does not prove that it hides what is answered")

    def pack(self, ciphertexts: Iterable[int]) -> bytes:
        """Return ciphertexts as bytes, each of the same size."""
        size = self.ciphertext_bytes
        return b"".join(int(c).to_bytes(size, "little") for c in ciphertexts)

    def unpack(self, packed: bytes | memoryview) -> list[int]:
        """Return the ciphertexts of `pack`; each is a unit modulo n², or an error is raised."""
        g, size = gmp(), self.ciphertext_bytes
        if len(packed) % size:
            raise BlindError("no-ciphertexts", f"{len(packed):,} bytes are no whole number of ciphertexts")
        mpz, product = g.mpz, g.mpz(1)
        found = [mpz(int.from_bytes(packed[at : at + size], "little")) for at in range(0, len(packed), size)]
        for ciphertext in found:
            if ciphertext >= self.square:
                raise BlindError("no-ciphertexts", "a number is too large for a ciphertext of this key")
            product = product * ciphertext % self.n
        if g.gcd(product, self.n) != 1:
            raise BlindError("no-ciphertexts", "a number is no ciphertext of this key")
        return found

    def blinded(self, ciphertext: int, mask: int) -> int:
        """Return a fresh ciphertext of the plaintext plus the mask. It is uniform if the mask is: see the module."""
        g = gmp()
        unit = g.mpz(0)
        while g.gcd(unit, self.n) != 1:
            unit = g.mpz(secrets.randbelow(int(self.n)))
        shift = 1 + g.mpz(mask) * self.n
        blind: int = ciphertext * shift % self.square * g.powmod(unit, self.n, self.square) % self.square
        return blind

    def random_mask(self) -> int:
        """Return a uniform number below n."""
        return secrets.randbelow(int(self.n))


@dataclass(frozen=True)
class _Prime:
    """A prime p with the prime factors of p - 1."""

    p: int
    factors: tuple[int, ...]

    @cached_property
    def square(self) -> int:
        square: int = gmp().mpz(self.p) ** 2
        return square

    @classmethod
    def random(cls, bits: int) -> _Prime:
        """Return a random prime with `2^(bits - ½) < p < 2^bits`, so that the product of two has twice the bits."""
        g = gmp()
        least, limit = g.isqrt(g.mpz(1) << (2 * bits - 1)) + 1, g.mpz(1) << bits
        while True:
            large = g.next_prime(g.mpz(secrets.randbits(bits - 40) | 1 << (bits - 41)))
            low, high = least // (2 * large) + 1, limit // (2 * large)
            for _ in range(64 * bits):
                small = low + secrets.randbelow(int(high - low))
                if g.is_prime(p := 2 * small * large + 1, 40):
                    return cls(p, (*_prime_factors(2 * int(small)), large))

    def generator(self, n: int) -> int:
        """Return a generator of the n-th residues modulo p²: the n-th power of a primitive root of p."""
        g = gmp()
        while True:
            root = g.mpz(secrets.randbelow(int(self.p) - 2) + 2)
            if all(g.powmod(root, (self.p - 1) // factor, self.p) != 1 for factor in self.factors):
                generator: int = g.powmod(root, n, self.square)
                return generator


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            factors.append(divisor)
            while number % divisor == 0:
                number //= divisor
        divisor += 1
    return [*factors, number] if number > 1 else factors


def _hashed(n: int) -> Iterator[int]:
    """Return numbers below n that nobody has chosen."""
    size = n.bit_length() // 8 + 16  # the bytes beyond those of n make the remainder uniform to 2^-128
    for place in range(_ROOTS):
        text = b"tpsl paillier key " + bytes([place]) + int(n).to_bytes(n.bit_length() // 8 + 1, "little")
        yield int.from_bytes(hashlib.shake_256(text).digest(size), "little") % int(n)


class _Powers:
    """Powers of a generator modulo p², for exponents below p - 1: a product of one entry for each window of bits."""

    def __init__(self, prime: _Prime, n: int, messages: Sequence[int]) -> None:
        g = gmp()
        self.order = int(prime.p) - 1
        self.square = prime.square
        bits = self.order.bit_length()
        self.windows = -(-bits // _WINDOW)
        base = prime.generator(n)
        self.tables: list[list[int]] = []
        for window in range(self.windows):
            count = 1 << min(_WINDOW, bits - window * _WINDOW)
            row = [g.mpz(1)]
            for _ in range(count - 1):
                row.append(row[-1] * base % self.square)
            self.tables.append(row)
            base = row[-1] * base % self.square
        # The last window carries the message: what is multiplied, and how often, does not depend on it.
        last = self.tables.pop()
        self.last = [[entry * (1 + g.mpz(m) * n) % self.square for entry in last] for m in messages]

    def encrypt(self, values: Sequence[int], random: npt.NDArray[np.uint64]) -> list[int]:
        """Return `(1 + mn)·ρ mod p²` for each value, which names its message."""
        *others, last = self._digits(random)
        square = self.square
        products = [self.last[value][digit] for value, digit in zip(values, last, strict=True)]
        # Window after window, so that one row of the tables is used by all and stays in the processor's cache.
        for row, digits in zip(self.tables, others, strict=True):
            products = [product * row[digit] % square for product, digit in zip(products, digits, strict=True)]
        return products

    def _digits(self, random: npt.NDArray[np.uint64]) -> list[list[int]]:
        """Return the windows of uniform exponents, one for each row of words: the first of all, the second of all, …"""
        size = self.windows * _WINDOW // 8 + 1
        exponents = b"".join(
            (int.from_bytes(row.tobytes(), "little") % self.order).to_bytes(size, "little") for row in random
        )
        bits = np.unpackbits(np.frombuffer(exponents, np.uint8).reshape(-1, size), axis=1, bitorder="little")
        windows = bits[:, : self.windows * _WINDOW].reshape(len(random), self.windows, _WINDOW)
        digits: list[list[int]] = (windows @ (1 << np.arange(_WINDOW, dtype=np.int32))).T.tolist()
        return digits


@dataclass(frozen=True)
class SecretKey:
    """The primes of a key."""

    p: _Prime
    q: _Prime

    @classmethod
    def random(cls, bits: int) -> SecretKey:
        """Return a fresh key of this size, in bits."""
        while True:
            key = cls(_Prime.random(bits // 2), _Prime.random(bits // 2))
            n, totient = key.p.p * key.q.p, (key.p.p - 1) * (key.q.p - 1)
            if n.bit_length() == bits and gmp().gcd(n, totient) == 1:
                return key

    def to_json(self) -> list[list[str]]:
        """Return the key as data for a file."""
        return [[str(int(number)) for number in (prime.p, *prime.factors)] for prime in (self.p, self.q)]

    @classmethod
    def from_json(cls, data: list[list[str]]) -> SecretKey:
        """Rebuild a key."""
        mpz = gmp().mpz
        p, q = (_Prime(mpz(number), tuple(mpz(factor) for factor in factors)) for number, *factors in data)
        return cls(p, q)

    @cached_property
    def public(self) -> PublicKey:
        """What the peer gets."""
        g = gmp()
        n, totient = self.p.p * self.q.p, (self.p.p - 1) * (self.q.p - 1)
        root = g.invert(n, totient)
        return PublicKey(n, tuple(g.powmod(number, root, n) for number in _hashed(n)))

    def encrypt(self, values: npt.NDArray[np.integer], messages: tuple[int, ...], words: RandomWords) -> list[int]:
        """Return a fresh ciphertext of `messages[value]` for each value."""
        found: list[int] = []
        powers = [_powers(prime, self.public.n, messages) for prime in (self.p, self.q)]
        p2, q2 = self.p.square, self.q.square
        inverse = gmp().invert(q2, p2)
        for start in range(0, len(values), _AT_ONCE):
            part = values[start : start + _AT_ONCE].tolist()
            of_p, of_q = (
                each.encrypt(part, words.words(len(part) * count).reshape(len(part), count))
                for each in powers
                for count in [each.order.bit_length() // 64 + _EXTRA_WORDS]
            )
            found += [b + (a - b) * inverse % p2 * q2 for a, b in zip(of_p, of_q, strict=True)]
        return found

    def decrypt(self, ciphertexts: Iterable[int]) -> list[int]:
        """Return the plaintexts, modulo n. Raises where a number is no unit modulo n²."""
        g, n = gmp(), self.public.n
        found = []
        for ciphertext in ciphertexts:
            if not 0 < ciphertext < self.public.square or g.gcd(ciphertext, n) != 1:
                raise BlindError("no-ciphertexts", "a number is no ciphertext of this key")
            of_p, of_q = (self._decrypted(ciphertext, prime) for prime in (self.p, self.q))
            p, q = self.p.p, self.q.p
            found.append(of_q + (of_p - of_q) * g.invert(q, p) % p * q)
        return found

    def _decrypted(self, ciphertext: int, prime: _Prime) -> int:
        """Return the plaintext modulo p: `c^(p-1) = 1 + (p-1)·m·n mod p²`."""
        g, p = gmp(), prime.p
        raised = (g.powmod(ciphertext, p - 1, prime.square) - 1) // p
        plain: int = raised * g.invert((p - 1) * (self.public.n // p), p) % p
        return plain


@lru_cache(maxsize=2)
def _powers(prime: _Prime, n: int, messages: tuple[int, ...]) -> _Powers:
    return _Powers(prime, n, messages)
