"""The order of a long column, found in memory that does not grow with it.

Blocks of the column are sorted one by one and cut at the same values, which a sample chooses. What lies between two
cuts is then gathered from all blocks and sorted together; what equals a cut is in its order already.
"""

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.long_columns import Rows, empty, parts

_SAMPLE = 64
"""Sampled values for each block: what lies between two cuts is of about one size."""


def is_ascending(values: Any, *, strictly: bool = False) -> bool:
    """Say whether each value of an Arrow column is at least the one before it, or `strictly` more."""
    in_order = pc.less if strictly else pc.less_equal
    return all(
        pc.all(in_order(values[part], values[part.start + 1 : part.stop + 1])).as_py() is not False
        for part in parts(len(values) - 1)
    )


def sorted_positions(values: Any) -> Rows:
    """Return the positions of an Arrow column's values in ascending order, equal ones in the order that they have.

    Texts are ordered by their UTF-8 bytes. The positions may lie on disk; memory is that of a few parts of the column.
    """
    by_block, found = empty(len(values), np.int64), empty(len(values), np.int64)
    cuts, bounds, done = _cuts(values), [], 0
    for block in parts(len(values)):
        order = _sorted(values[block])
        here = values[block].take(pa.array(order))
        by_block[block] = order + block.start
        ends = [side(here, cut, key=_plain) for cut in cuts for side in (bisect_left, bisect_right)]
        bounds.append([block.start + end for end in (0, *ends, len(here))])
    for number, (starts, stops) in enumerate(pairwise(np.array(bounds).T.tolist())):
        first = done
        for start, stop in zip(starts, stops, strict=True):
            found[done : done + stop - start] = by_block[start:stop]
            done += stop - start
        if number % 2 == 0:  # between two cuts
            piece = found[first:done]
            piece[:] = piece[_sorted(values.take(pa.array(piece)))]
    return found


def _cuts(values: Any) -> list[Any]:
    """Return different values, ascending, between which about as many lie as a block has."""
    blocks = len(list(parts(len(values))))
    sample = values.take(pa.array(np.linspace(0, len(values) - 1, blocks * _SAMPLE).astype(np.int64)))
    ordered = sample.take(pa.array(_sorted(sample)))
    return sorted({ordered[number * _SAMPLE].as_py() for number in range(1, blocks)})


def _sorted(values: Any) -> npt.NDArray[np.int64]:
    """Return the positions of a few values in ascending order; Arrow keeps equal ones in theirs."""
    order: npt.NDArray[np.int64] = pc.array_sort_indices(values).to_numpy().view(np.int64)
    return order


def _plain(value: Any) -> Any:
    return value.as_py()
