"""Which records are for training, and in which order: splits, random orders and the batch plan.

All of it follows from the number of records and a few public numbers. It does not see a label, so batches cannot leak
one; both parties compute it separately, today and with another NumPy; and any step can be asked for at any time, so a
resumed run continues where it stopped. NumPy guarantees the words of a bit generator and of `SeedSequence` for ever
(NEP 19), but not what `Generator.permutation` makes of them; so the permutation is made here, from the words.

A blockwise order reads a disk in large pieces. Rows form blocks of `BLOCK_ROWS`. Each epoch has its own order of
blocks; `WINDOW_BLOCKS` of them, one after the other in that order, are a window, and the rows of a window are shuffled.
So a batch comes from as many places of the table as a window has blocks, and both sides compute it in memory bounded by
a few windows, whatever the number of rows.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from tpsl.data.out_of_core import Rows as Rows
from tpsl.data.out_of_core import ascending, counting, empty, others, parts
from tpsl.tables import DataError


def permutation(size: int, *key: int) -> Rows:
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
    generator = np.random.PCG64(np.random.SeedSequence(list(key)))
    for part in parts(size):
        positions = np.arange(part.start, part.stop, dtype=np.uint64)
        words[part] = (generator.random_raw(len(positions)) & ~low_bits) | positions
    return words


def position_mask(size: int) -> int:
    """Return the low bits of a word that hold a position."""
    return (1 << max(1, (size - 1).bit_length())) - 1


# Keys of the random streams of this room; a number is never reused for another purpose.
SPLIT_STREAM, SUBSET_STREAM, BATCH_STREAM, VALIDATION_STREAM, FOLD_STREAM = 1, 2, 3, 4, 5
BLOCK_STREAM, WINDOW_STREAM = 7, 8


def split_rows(
    rows: int, kind: Literal["random", "chronological"], test_fraction: float, seed: int
) -> tuple[Rows, Rows]:
    """Return (train, test): ascending, disjoint, together all of `range(rows)`, neither empty.

    `chronological` takes the last rows of the canonical order as test set; `random` ignores everything but
    `rows` and `seed`. Parties whose tables have the same ids therefore get the same split without talking.
    """
    test_rows = round(rows * test_fraction)
    if not 0 < test_rows < rows:
        raise DataError(f"test_fraction {test_fraction} of {rows} records leaves no training or no test record")
    if kind == "chronological":
        everything = counting(rows)
        return everything[: rows - test_rows], everything[rows - test_rows :]
    test = ascending(permutation(rows, SPLIT_STREAM, seed)[:test_rows])
    return others(rows, test), test


def subset_rows(available: int, wanted: int, seed: int) -> Rows:
    """Return `wanted` of `available` row positions, chosen at random by `seed`, ascending."""
    if wanted > available:
        raise DataError(f"rows: {wanted} records were asked for, there are {available}")
    return ascending(permutation(available, SUBSET_STREAM, seed)[:wanted])


BLOCK_ROWS = 1 << 14
WINDOW_BLOCKS = 16
"""Both are part of what two sides agree on: other numbers are another order."""


def blockwise_part(rows: int, seed: int, epoch: int, start: int, stop: int) -> Rows:
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
def _blocks(rows: int, seed: int, epoch: int) -> Rows:
    return permutation(-(-rows // BLOCK_ROWS), BLOCK_STREAM, seed, epoch)


@lru_cache(maxsize=4)
def _window_ends(rows: int, seed: int, epoch: int) -> Rows:
    """Return how many rows the windows up to each one have; the last block of the table may be short."""
    sizes = np.minimum(rows - _blocks(rows, seed, epoch) * BLOCK_ROWS, BLOCK_ROWS)
    return np.cumsum(np.add.reduceat(sizes, range(0, len(sizes), WINDOW_BLOCKS)))


@lru_cache(maxsize=4)  # a batch may lie in two windows, and the next one in the one after
def _window(rows: int, seed: int, epoch: int, number: int) -> Rows:
    """Return the rows of a window in their order, as a read-only array."""
    blocks = _blocks(rows, seed, epoch)[number * WINDOW_BLOCKS : (number + 1) * WINDOW_BLOCKS]
    starts = (blocks * BLOCK_ROWS).tolist()
    together = np.concatenate([np.arange(start, min(start + BLOCK_ROWS, rows)) for start in starts])
    shuffled: Rows = together[permutation(len(together), WINDOW_STREAM, seed, epoch, number)]
    shuffled.flags.writeable = False
    return shuffled


Order = Literal["shuffled", "blockwise", "arrival"]


@lru_cache(maxsize=2)  # both parties in one process, and the turn of an epoch
def _epoch_order(rows: int, seed: int, epoch: int) -> Rows:
    order = permutation(rows, BATCH_STREAM, seed, epoch)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class BatchPlan:
    """Batches of `batch_size` positions into the training rows; the last one of an epoch may be smaller.

    Each epoch visits each row exactly once: `shuffled` in a new order every epoch, which is
    `permutation(rows, BATCH_STREAM, seed, epoch)` (the same with every version of NumPy);
    `blockwise`, in a new order every epoch that keeps neighbours together; or in order of
    `arrival`, the order of the rows themselves.
    """

    rows: int
    batch_size: int
    seed: int = 0
    order: Order = "shuffled"

    def __post_init__(self) -> None:
        if self.rows < 1 or self.batch_size < 1:
            raise ValueError(f"a batch plan needs rows and batch_size above 0, not {self.rows} and {self.batch_size}")
        if self.seed < 0:
            raise ValueError(f"a batch plan needs a seed that is not negative, not {self.seed}")
        if self.order not in get_args(Order):
            raise ValueError(f"the order of a batch plan is one of {get_args(Order)}, not {self.order!r}")

    @property
    def batches_per_epoch(self) -> int:
        """Number of steps that visit every row once."""
        return -(-self.rows // self.batch_size)

    def steps(self, epochs: int) -> int:
        """Return the number of steps in this number of epochs."""
        return epochs * self.batches_per_epoch

    def batch(self, step: int) -> Rows:
        """Return the row positions of a step (from 0; the step decides the epoch), as a read-only array."""
        if step < 0:
            raise ValueError(f"steps count from 0, there is no step {step}")
        epoch, batch = divmod(step, self.batches_per_epoch)
        start, stop = batch * self.batch_size, min((batch + 1) * self.batch_size, self.rows)
        return self._part(epoch, start, stop)

    def epoch(self, epoch: int) -> Rows:
        """Return the row positions of a whole epoch, from 0, in the order of its steps, as a read-only array."""
        return self._part(epoch, 0, self.rows)

    def _part(self, epoch: int, start: int, stop: int) -> Rows:
        if self.order == "shuffled":
            return _epoch_order(self.rows, self.seed, epoch)[start:stop]
        if self.order == "blockwise":
            positions = blockwise_part(self.rows, self.seed, epoch, start, stop)
        else:
            positions = np.arange(start, stop, dtype=np.int64)
        positions.flags.writeable = False
        return positions

    def epoch_words(self, epoch: int) -> npt.NDArray[np.uint64] | None:
        """Return the words whose order is that of an epoch (`permutation`); None if it is not shuffled."""
        return permutation_words(self.rows, BATCH_STREAM, self.seed, epoch) if self.order == "shuffled" else None

    def digest(self) -> str:
        """Return a SHA-256 in hex that is equal at two parties exactly if their plans are."""
        blocks = {"blocks": [BLOCK_ROWS, WINDOW_BLOCKS]} if self.order == "blockwise" else {}
        described = json.dumps({"plan": 1, **asdict(self), **blocks}, sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()
