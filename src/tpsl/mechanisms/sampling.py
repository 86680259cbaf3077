"""Secure randomness and exact integer noise: 64-bit words of AES-256, discrete Laplace and discrete Gaussian draws.

The samplers are those of Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy* (2020), for
whole arrays at once. The probabilities are those of the formulas, not approximations of them: no float occurs, and no
integer overflows.
"""

from __future__ import annotations

import hashlib
import math
import operator
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_SCALE, MAX_VARIANCE = 1 << 48, 1 << 62
"""The largest parameters for which every intermediate number fits 64 bits."""

_AT_ONCE = 1 << 16
_LARGEST_WORD = (1 << 64) - 1


class RandomWords:
    """An endless stream of uniform 64-bit words: AES-256 in counter mode. `secure`: noise made from it is private.

    A secure stream takes its key from the operating system and forgets it with the object. A seeded stream derives it
    from a number, so whoever knows the number knows the noise: it serves experiments that must be repeatable, and
    everything made with it says so.
    """

    def __init__(self, key: bytes, *, secure: bool) -> None:
        self._keystream: CipherContext = Cipher(AES(key), CTR(bytes(16))).encryptor()
        self.secure = secure
        self._process = os.getpid()

    def words(self, count: int) -> Words:
        """Return the next `count` words; the same key gives the same words however the calls are cut.

        Raises:
            RuntimeError: a secure stream is used in a forked process; parent and child would draw the same noise.
        """
        if self.secure and os.getpid() != self._process:
            raise RuntimeError("a secure stream of random words does not cross a fork; make a new one in each process")
        keystream = self._keystream.update(bytes(8 * count))
        return np.frombuffer(keystream, dtype="<u8").astype(np.uint64, copy=False)


def secure_words() -> RandomWords:
    """Return a stream under a fresh 256-bit key from the operating system."""
    return RandomWords(os.urandom(32), secure=True)


def seeded_words(seed: int, *context: str | int) -> RandomWords:
    """Return the stream of `seed`; noise made from it is NOT private. Different contexts give independent streams."""
    text = "\x1f".join(["tpsl seeded noise", str(operator.index(seed)), *(str(part) for part in context)])
    return RandomWords(hashlib.sha256(text.encode()).digest(), secure=False)


def uniform(limit: int, count: int, words: RandomWords) -> Words:
    """Draw `count` integers uniformly from 0 to `limit - 1`; each has equally many words, the remainder is redrawn."""
    if limit == 1:
        return np.zeros(count, np.uint64)
    step = np.uint64(_LARGEST_WORD // limit)
    drawn = words.words(count) // step
    while len(again := np.flatnonzero(drawn >= limit)):
        drawn[again] = words.words(len(again)) // step
    return drawn


def bernoulli_exp(numerators: Words, denominator: int, words: RandomWords) -> Flags:
    """Draw Bernoulli(`e^{-a/b}`) for each numerator a ≤ b (Canonne, Kamath and Steinke, Algorithm 1).

    Trial k succeeds with probability `a/(bk)`, so the first K successes have probability `(a/b)^K / K!`. The first
    failure comes at an odd trial with probability `1 - a/b + (a/b)²/2! - … = e^{-a/b}`.
    """
    result = np.empty(len(numerators), np.bool_)
    going, k = np.arange(len(numerators)), 1
    while len(going):
        success = (uniform(denominator, len(going), words) < numerators[going]) & (uniform(k, len(going), words) == 0)
        result[going[~success]] = k % 2 == 1
        going, k = going[success], k + 1
    return result


def geometric_exp(numerator: int, denominator: int, count: int, words: RandomWords) -> Integers:
    """Draw `count` geometric variables, `P(v) = (1 - e^{-a/b})·e^{-av/b}`: successes before the first failure."""
    numerators = np.full(count, numerator, np.uint64)
    successes = np.zeros(count, np.int64)
    going = np.arange(count)
    while len(going):
        going = going[bernoulli_exp(numerators[going], denominator, words)]
        successes[going] += 1
    return successes


def _bernoulli_exp_power(numerators: Words, denominator: int, powers: Integers, words: RandomWords) -> Flags:
    """Draw Bernoulli(`e^{-an/b}`) for each numerator a ≤ b and power n: n draws of `e^{-a/b}` must all succeed."""
    result = np.ones(len(numerators), np.bool_)
    going, drawn = np.flatnonzero(powers > 0), 0
    while len(going):
        success = bernoulli_exp(numerators[going], denominator, words)
        result[going[~success]] = False
        drawn += 1
        going = going[success]
        going = going[powers[going] > drawn]
    return result


def discrete_laplace(scale: int, count: int, words: RandomWords) -> Integers:
    """Draw `count` integers with `P(y) ∝ e^{-|y|/scale}` (Algorithm 2); `scale` is from 1 to `MAX_SCALE`.

    `|y| = scale·v + u`: u is uniform below the scale and accepted with probability `e^{-u/scale}`, v is geometric with
    `e^{-1}`.
    """

    def candidates(size: int) -> Integers:
        u = uniform(scale, size, words)
        u = u[bernoulli_exp(u, scale, words)]
        return _signed(scale * geometric_exp(1, 1, len(u), words) + u.astype(np.int64), words)

    return _first(count, candidates)


def discrete_gaussian(variance: int, count: int, words: RandomWords) -> Integers:
    """Draw `count` integers with `P(y) ∝ e^{-y²/(2·variance)}`; `variance` is from 1 to `MAX_VARIANCE`.

    The distribution of Algorithm 3, with the exponent divided as in Karney, *Sampling exactly from the normal
    distribution* (2016), so that each part fits 64 bits. With `t = ⌊√variance⌋` and `|y| = t·v + u`,
    `y² = v·t² + v(v-1)·t² + u² + v·2tu`. The first part is the geometric draw of v; each of the others is a probability
    `e^{-part/(2·variance)}` with which the candidate is accepted.
    """
    t = math.isqrt(variance)

    def candidates(size: int) -> Integers:
        v = geometric_exp(t * t, 2 * variance, size, words)
        v = v[_bernoulli_exp_power(np.full(size, t * t, np.uint64), 2 * variance, v * (v - 1), words)]
        u = uniform(t, len(v), words)
        kept = np.flatnonzero(bernoulli_exp(u * u, 2 * variance, words))
        u, v = u[kept], v[kept]
        kept = np.flatnonzero(_bernoulli_exp_power(np.uint64(t) * u, variance, v, words))
        return _signed(t * v[kept] + u[kept].astype(np.int64), words)

    return _first(count, candidates)


def _signed(sizes: Integers, words: RandomWords) -> Integers:
    """Give each size a fair sign, and reject those that became -0, so that 0 is not drawn twice as often."""
    negative = uniform(2, len(sizes), words) == 1
    signed: Integers = np.where(negative, -sizes, sizes)[~(negative & (sizes == 0))]
    return signed


def _first(count: int, candidates: Callable[[int], Integers]) -> Integers:
    """Return the first `count` accepted candidates, of as many rounds as it takes."""
    drawn, missing = [np.empty(0, np.int64)], count
    while missing > 0:
        drawn.append(candidates(min(_AT_ONCE, 3 * missing + 16))[:missing])
        missing -= len(drawn[-1])
    return np.concatenate(drawn)
