"""Random orders that two parties can compute separately, today and with another NumPy.

NumPy guarantees the words of a bit generator and of `SeedSequence` for ever (NEP 19), but not what
`Generator.permutation` makes of them; so the permutation is made here, from the words.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from tpsl.data.long_columns import empty

_DRAWN_AT_ONCE = 1 << 18
"""Words; more are drawn by several threads, each from its own place in the stream and in memory of its own."""


def permutation(size: int, *key: int) -> npt.NDArray[np.int64]:
    """Return the permutation of `range(size)` that belongs to `key` (non-negative integers).

    Definition: let `b = max(1, (size - 1).bit_length())`; word `i` of `PCG64(SeedSequence(key))` has its
    `b` low bits replaced by `i`; the words are sorted; their `b` low bits are the permutation. The words
    differ, so every sorting algorithm gives the same result. (Equal high parts are ordered by position: at 2**24 rows
    one neighbour in 2**16, and at a million rows one in 2**24.)
    """
    words = permutation_words(size, *key)
    words.sort()
    words &= np.uint64(position_mask(size))
    return words.view(np.int64)


def permutation_words(size: int, *key: int) -> npt.NDArray[np.uint64]:
    """Return the words whose order is the permutation, not sorted yet: they can be sorted anywhere."""
    if size < 0 or any(part < 0 for part in key):
        raise ValueError(f"a permutation needs a size and a key that are not negative, not {size} and {key}")
    words, low_bits = empty(size, np.uint64), np.uint64(position_mask(size))

    def draw(start: int) -> None:
        stop, generator = min(start + _DRAWN_AT_ONCE, size), np.random.PCG64(np.random.SeedSequence(list(key)))
        part = words[start:stop]
        part[:] = generator.advance(start).random_raw(stop - start)
        part &= ~low_bits
        part |= np.arange(start, stop, dtype=np.uint64)

    if size <= _DRAWN_AT_ONCE:
        draw(0)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(draw, range(0, size, _DRAWN_AT_ONCE)))
    return words


def position_mask(size: int) -> int:
    """Return the low bits of a word that hold a position."""
    return (1 << max(1, (size - 1).bit_length())) - 1
