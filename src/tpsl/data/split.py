"""Training and test rows, from nothing but the number of records and the shared configuration."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from tpsl.data.errors import DataError
from tpsl.data.long_columns import ascending, counting, others
from tpsl.data.order import permutation

Rows = npt.NDArray[np.int64]

# Keys of the random streams of this room; a number is never reused for another purpose.
SPLIT_STREAM, SUBSET_STREAM, BATCH_STREAM, VALIDATION_STREAM, FOLD_STREAM, STATISTIC_STREAM = 1, 2, 3, 4, 5, 6
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
