"""Which records of several lists are the same: what the label party finds when every list was blinded by everyone.

Lists are compared key by key in order of preference. A record is common by the first key by which all lists have it;
a row that was found once is not looked for again, so each row of a list is at most one common record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.alignment.group import POINT_BYTES, Bytes32
from tpsl.data.order import Rows
from tpsl.net.failures import BadMessage

ROWS_AT_ONCE = 1 << 17
"""About how many points are compared at once."""


class Common(NamedTuple):
    """The common records of lists, in the order of the first."""

    positions: Rows
    """[records, lists]: where each list has the record."""
    keys: npt.NDArray[np.uint8]
    """The number of the key by which all lists have it."""


def common_records(lists: Sequence[Bytes32]) -> Common:
    """Return the records that all lists have; each list is [rows, keys, 32] and names no key twice.

    The records of a single list are all common.
    """
    first, others = lists[0], lists[1:]
    if not others:
        return Common(np.arange(len(first))[:, None], np.zeros(len(first), np.uint8))
    free = [np.ones(len(each), bool) for each in lists]
    found = [np.empty((0, len(lists)), np.int64)]
    for key in range(first.shape[1]):
        positions = np.flatnonzero(free[0])[:, None]
        for other, is_free in zip(others, free[1:], strict=True):
            at = _places(first[positions[:, 0], key], other[:, key])
            here = at >= 0
            here[here] = is_free[at[here]]
            positions = np.column_stack([positions[here], at[here]])
        for is_free, taken in zip(free, positions.T, strict=True):
            is_free[taken] = False
        found.append(positions)
    together = np.concatenate(found)
    keys = np.repeat(np.arange(first.shape[1], dtype=np.uint8), [len(each) for each in found[1:]])
    order = np.argsort(together[:, 0])
    return Common(together[order], keys[order])


def require_distinct(rows: Bytes32, culprit: str) -> None:
    """Raise BadMessage if a list [rows, keys, 32] names a key twice."""
    for key in range(rows.shape[1]):
        points = rows[:, key]
        for (part,) in _parts(points):
            if pc.count_distinct(_as_arrow(points[part])).as_py() != len(part):
                raise BadMessage(f"the list of {culprit} names a key twice")


def _places(points: Bytes32, of: Bytes32) -> Rows:
    """Return where each point stands in the other list; -1: nowhere."""
    places = np.full(len(points), -1, np.int64)
    for mine, theirs in _parts(points, of):
        found = pc.index_in(_as_arrow(points[mine]), value_set=_as_arrow(of[theirs])).fill_null(-1).to_numpy()
        is_there = found >= 0
        places[mine[is_there]] = theirs[found[is_there]]
    return places


def _parts(*lists: Bytes32) -> Iterator[tuple[Rows, ...]]:
    """Yield rows of each list, so many that their comparison fits into memory; equal points are in the same part."""
    number = 1
    while number < 256 and max(map(len, lists)) > number * ROWS_AT_ONCE:
        number *= 2
    for part in range(number):
        yield tuple(np.flatnonzero(each[:, 0] % number == part) for each in lists)


def _as_arrow(points: Bytes32) -> Any:
    buffer = pa.py_buffer(np.ascontiguousarray(points))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(POINT_BYTES), len(points), [None, buffer])
