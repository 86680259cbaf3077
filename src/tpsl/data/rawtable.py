"""One party's table before encoding: canonical ids, text categories, numbers, in the canonical order.

Two parties that hold the same ids put their rows in the same order without talking to each other: sorted by id as
UTF-8 bytes, or by (time, id) for a chronological split.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.errors import DataError

NO_LABEL = -1
"""Stands for a label that is not known yet."""

Times = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class RawTable:
    """Rows of one party; `name` is the file (or source) that errors name."""

    name: str
    ids: Any  # pa.Array of pa.string(), no nulls
    categorical: dict[str, Any]  # column -> pa.Array of text, plain or dictionary; null = missing
    numeric: dict[str, npt.NDArray[np.float64]]  # column -> numbers, NaN = missing
    labels: npt.NDArray[np.int64] | None = None
    times: Times | None = None
    units: Any | None = None  # pa.Array of pa.string(), no nulls: whom a record is about

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: npt.NDArray[np.int64]) -> "RawTable":
        """Return these rows in this order."""
        positions = pa.array(rows)
        return RawTable(
            self.name,
            self.ids.take(positions),
            {column: values.take(positions) for column, values in self.categorical.items()},
            {column: values[rows] for column, values in self.numeric.items()},
            None if self.labels is None else self.labels[rows],
            None if self.times is None else self.times[rows],
            None if self.units is None else self.units.take(positions),
        )

    def in_canonical_order(self) -> "RawTable":
        """Return the rows sorted by id, or by (time, id) where times are given; a repeated id is an error."""
        by_id = pc.array_sort_indices(self.ids).to_numpy()
        repeated_id_is_error(self.name, self.ids, by_id)
        order = by_id if self.times is None else by_id[np.argsort(self.times[by_id], kind="stable")]
        return self.take(order.astype(np.int64))


def repeated_id_is_error(name: str, ids: Any, by_id: npt.NDArray[np.uint64]) -> None:
    """Raise if an id occurs twice; `by_id` are the positions of the ids in sorted order."""
    in_order = ids.take(pa.array(by_id))
    repeats = pc.equal(in_order[1:], in_order[:-1]).to_numpy(zero_copy_only=False)
    if repeats.any():
        at = int(np.flatnonzero(repeats)[0])
        first, second = sorted((int(by_id[at]) + 1, int(by_id[at + 1]) + 1))
        raise DataError(
            f"{name}: id {in_order[at].as_py()!r} stands in row {first} and in row {second}; "
            f"{int(repeats.sum())} rows repeat an id, and an id must be unique"
        )


def same_ids_or_error(name: str, ids: Any, other_name: str, other_ids: Any, chronological: bool = False) -> None:
    """Raise, with counts and an example, unless both parties have the same ids in the same canonical order."""
    if ids.equals(other_ids):
        return
    only_here = ids.filter(pc.invert(pc.is_in(ids, value_set=other_ids)))
    only_there = other_ids.filter(pc.invert(pc.is_in(other_ids, value_set=ids)))
    if len(only_here) or len(only_there):
        example, place = (only_here[0], name) if len(only_here) else (only_there[0], other_name)
        raise DataError(
            f"{name} and {other_name} must have the same ids, but {len(only_here)} of {len(ids)} are only in the first "
            f"and {len(only_there)} of {len(other_ids)} only in the second, "
            f"for example {example.as_py()!r} only in {place}"
        )
    at = int(np.flatnonzero(pc.not_equal(ids, other_ids).to_numpy(zero_copy_only=False))[0])
    reason = "the times disagree" if chronological else "the order disagrees"
    raise DataError(
        f"{name} and {other_name} have the same ids but {reason}: position {at} is {ids[at].as_py()!r} "
        f"in the first and {other_ids[at].as_py()!r} in the second"
    )
