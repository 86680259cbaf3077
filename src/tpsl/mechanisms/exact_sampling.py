"""Exact draws of integer noise from uniform words: discrete Laplace and discrete Gaussian, with no float anywhere.

Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy* (2020), build both from one coin: heads
with probability `e^{-a/b}` for integers a ≤ b (their Algorithm 1). Here whole arrays of such coins are tossed at once,
and the exponent of the Gaussian is divided into parts that fit 64 bits (as in Karney, *Sampling exactly from the normal
distribution*, 2016), so no product overflows. The probabilities are those of the formulas, not approximations of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.random_words import RandomWords, Words

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_SCALE, MAX_VARIANCE = 1 << 48, 1 << 62
"""The largest parameters for which every intermediate number fits 64 bits."""

_AT_ONCE = 1 << 16
_LARGEST_WORD = (1 << 64) - 1


def discrete_laplace(scale: int, count: int, words: RandomWords) -> Integers:
    """Draw `count` integers with `P(y) ∝ e^{-|y|/scale}` (Algorithm 2).

    `|y| = scale·v + u`: u is uniform below the scale and kept with probability `e^{-u/scale}`, v counts heads of
    probability `e^{-1}`. The scale is from 1 to `MAX_SCALE`.
    """

    def candidates(size: int) -> Integers:
        u = below(scale, size, words)
        u = u[coins(u, scale, words)]
        return _signed(scale * heads_in_a_row(1, 1, len(u), words) + u.astype(np.int64), words)

    return _first(count, candidates)


def discrete_gaussian(variance: int, count: int, words: RandomWords) -> Integers:
    """Draw `count` integers with `P(y) ∝ e^{-y²/(2·variance)}`.

    With `t = ⌊√variance⌋` and `|y| = t·v + u`, the exponent is `v·t² + v(v-1)·t² + v·2tu + u²` over `2·variance`: the
    first part is that of counting heads for v, the others are coins that must all show heads. The variance is from 1
    to `MAX_VARIANCE`.
    """
    t = math.isqrt(variance)

    def candidates(size: int) -> Integers:
        v = heads_in_a_row(t * t, 2 * variance, size, words)
        v = v[_all_heads(np.full(size, t * t, np.uint64), 2 * variance, v * (v - 1), words)]
        u = below(t, len(v), words)
        kept = np.flatnonzero(coins(u * u, 2 * variance, words))
        u, v = u[kept], v[kept]
        kept = np.flatnonzero(_all_heads(np.uint64(t) * u, variance, v, words))
        return _signed(t * v[kept] + u[kept].astype(np.int64), words)

    return _first(count, candidates)


def below(limit: int, count: int, words: RandomWords) -> Words:
    """Draw `count` uniform integers from 0 to `limit - 1`; each stands for equally many words, the rest is redrawn."""
    if limit == 1:
        return np.zeros(count, np.uint64)
    step = np.uint64(_LARGEST_WORD // limit)
    drawn = words.words(count) // step
    while len(again := np.flatnonzero(drawn >= limit)):
        drawn[again] = words.words(len(again)) // step
    return drawn


def coins(numerators: Words, denominator: int, words: RandomWords) -> Flags:
    """Toss one coin for each numerator a ≤ b, heads with probability `e^{-a/b}` (Algorithm 1).

    Trial k succeeds with probability `a/(bk)`; the first failure comes at an odd k with probability
    `1 - a/b + (a/b)²/2! - … = e^{-a/b}`.
    """
    heads = np.empty(len(numerators), np.bool_)
    going, k = np.arange(len(numerators)), 1
    while len(going):
        success = (below(denominator, len(going), words) < numerators[going]) & (below(k, len(going), words) == 0)
        heads[going[~success]] = k % 2 == 1
        going, k = going[success], k + 1
    return heads


def heads_in_a_row(numerator: int, denominator: int, count: int, words: RandomWords) -> Integers:
    """Count the heads before the first tails, `count` times: v has probability `(1 - e^{-a/b})·e^{-av/b}`."""
    numerators = np.full(count, numerator, np.uint64)
    heads = np.zeros(count, np.int64)
    going = np.arange(count)
    while len(going):
        going = going[coins(numerators[going], denominator, words)]
        heads[going] += 1
    return heads


def _all_heads(numerators: Words, denominator: int, tosses: Integers, words: RandomWords) -> Flags:
    """Toss the coin of each numerator as often as `tosses` says; True where no tails came."""
    passed = np.ones(len(numerators), np.bool_)
    going, tossed = np.flatnonzero(tosses > 0), 0
    while len(going):
        heads = coins(numerators[going], denominator, words)
        passed[going[~heads]] = False
        tossed += 1
        going = going[heads]
        going = going[tosses[going] > tossed]
    return passed


def _signed(sizes: Integers, words: RandomWords) -> Integers:
    """Give each size a fair sign, and drop those that became -0, so that 0 is not drawn twice as often."""
    negative = below(2, len(sizes), words) == 1
    signed: Integers = np.where(negative, -sizes, sizes)[~(negative & (sizes == 0))]
    return signed


def _first(count: int, candidates: Callable[[int], Integers]) -> Integers:
    """Return the first `count` of the candidates that were kept, of as many rounds as it takes."""
    drawn, missing = [np.empty(0, np.int64)], count
    while missing > 0:
        drawn.append(candidates(min(_AT_ONCE, 3 * missing + 16))[:missing])
        missing -= len(drawn[-1])
    return np.concatenate(drawn)
