"""An order of an epoch that reads a disk in large pieces, and of which any part follows from a few numbers.

Rows form blocks of `BLOCK_ROWS`. Each epoch has its own order of blocks; `WINDOW_BLOCKS` of them, one after the other
in that order, are a window, and the rows of a window are shuffled. So a batch comes from as many places of the table as
a window has blocks, and both sides compute it in memory bounded by a few windows, whatever the number of rows.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tpsl.data.order import permutation
from tpsl.data.split import BLOCK_STREAM, WINDOW_STREAM

BLOCK_ROWS = 1 << 14
WINDOW_BLOCKS = 16
"""Both are part of what two sides agree on: other numbers are another order."""

Positions = npt.NDArray[np.int64]


def blockwise_part(rows: int, seed: int, epoch: int, start: int, stop: int) -> Positions:
    """Return the rows at places `start` to `stop` of an epoch.

    Definition: blocks in the order `permutation(blocks, BLOCK_STREAM, seed, epoch)`; the rows of window w, as its
    blocks have them, in the order `permutation(size, WINDOW_STREAM, seed, epoch, w)`; windows one after the other.
    """
    ends = _window_ends(rows, seed, epoch)
    first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
    begin = int(ends[first - 1]) if first else 0
    windows = [_window(rows, seed, epoch, number) for number in range(first, last + 1)]
    found = windows[0] if len(windows) == 1 else np.concatenate(windows)
    return found[start - begin : stop - begin]


@lru_cache(maxsize=4)  # both parties in one process, and the turn of an epoch
def _blocks(rows: int, seed: int, epoch: int) -> Positions:
    return permutation(-(-rows // BLOCK_ROWS), BLOCK_STREAM, seed, epoch)


@lru_cache(maxsize=4)
def _window_ends(rows: int, seed: int, epoch: int) -> Positions:
    """Return how many rows the windows up to each one have; the last block of the table may be short."""
    sizes = np.minimum(rows - _blocks(rows, seed, epoch) * BLOCK_ROWS, BLOCK_ROWS)
    return np.cumsum(np.add.reduceat(sizes, range(0, len(sizes), WINDOW_BLOCKS)))


@lru_cache(maxsize=4)  # a batch may lie in two windows, and the next one in the one after
def _window(rows: int, seed: int, epoch: int, number: int) -> Positions:
    """Return the rows of a window in their order, as a read-only array."""
    blocks = _blocks(rows, seed, epoch)[number * WINDOW_BLOCKS : (number + 1) * WINDOW_BLOCKS]
    starts = (blocks * BLOCK_ROWS).tolist()
    together = np.concatenate([np.arange(start, min(start + BLOCK_ROWS, rows)) for start in starts])
    shuffled: Positions = together[permutation(len(together), WINDOW_STREAM, seed, epoch, number)]
    shuffled.flags.writeable = False
    return shuffled
