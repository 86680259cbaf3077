"""One party's table before encoding, and the canonical order of its records.

Two parties that hold the same ids put their rows in the same order without talking to each other: sorted by id as
UTF-8 bytes, or by (time, id) for a chronological split.

Kinds of columns say how the values of each are read, and which fields of categories and of numbers they become:

| kind | values | categories | numbers |
|---|---|---|---|
| `category` | any text, or integers | the text | |
| `number` | numbers | | the number |
| `date` | dates and timestamps, also as ISO 8601 text | hour of day, weekday (Monday is 0) | days since 1970; sine and cosine of the day of the year |
| `day_first_date`, `month_first_date` | the same, also as 31.12.2025 or 12/31/2025; 31.12.25 is in 2025, years from 69 to 99 are in the 1900s | as those of `date` | as those of `date` |
| `count` | numbers | | sign(x)·log(1 + abs(x)) |
| `hour` | the same, also as YYMMDDHH | hour of day, weekday | |

The first five are those of users' tables, the others those of click logs. What a kind makes of a value never changes:
saved encoders name kinds (`tpsl.data.encoder`). A new rule is a new kind. A kind reads whole columns (`Kind.read`) and
single values (`ROW_KINDS`), by the one definition in `tpsl.tables.spelling`, and makes the same fields of both.
"""  # noqa: E501

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.out_of_core import Rows, chosen, counting, empty, is_ascending, parts, sorted_positions, taken
from tpsl.data.row_encoder import ROW_KINDS, Numbers, RowKind
from tpsl.spill import Array, ArrowArray
from tpsl.tables import DataError
from tpsl.tables.columns import NO_LABEL as NO_LABEL
from tpsl.tables.columns import (
    Place,
    Times,
    dates,
    first_time,
    numbers,
    texts,
)
from tpsl.tables.reading import PLAIN, Dialect
from tpsl.tables.spelling import DAY_FIRST, HOURS, MONTH_FIRST, Spelling

FIND_COMMON_RECORDS = "`tpsl align` brings the parties to the records that they have in common"
"""What helps parties whose records are not the same."""


Field = Array | ArrowArray | Callable[[], Iterator[Array | ArrowArray]]
"""A column or field: in memory, or what yields it piece by piece, in the order of the rows, as often as asked."""
Fields = Mapping[str, Field]


def pieces_of(values: Field) -> Iterator[Array | ArrowArray]:
    """Yield a column or field, piece by piece; one in memory is one piece."""
    return values() if callable(values) else iter([values])


@dataclass(frozen=True)
class RawTable:
    """Rows of one party; `name` is the file (or source) that errors name.

    `columns` says of which kinds (`KINDS`) the columns are that fields were made of, and `missing` which texts stood
    for a missing value.
    """

    name: str
    ids: ArrowArray  # of text, no nulls
    categorical: Fields = field(default_factory=dict)  # Arrow arrays of text, plain or dictionary; null: missing
    numeric: Fields = field(default_factory=dict)  # NumPy arrays of float64; NaN: missing
    labels: npt.NDArray[np.int64] | None = None
    times: Times | None = None
    recent: npt.NDArray[np.bool_] | None = None  # which rows are of interest; None: all
    units: ArrowArray | None = None  # of text, no nulls: whom a record is about
    columns: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    dialect: Dialect = PLAIN
    spellings: Mapping[str, Spelling] = field(default_factory=dict)
    """How the columns are written, as far as their rows were read."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: npt.NDArray[np.int64]) -> "RawTable":
        """Return these rows, in this order, of a table whose fields are in memory."""
        positions = pa.array(rows)
        return RawTable(
            self.name,
            self.ids.take(positions),
            {name: next(pieces_of(values)).take(positions) for name, values in self.categorical.items()},
            {name: next(pieces_of(values))[rows] for name, values in self.numeric.items()},
            None if self.labels is None else self.labels[rows],
            None if self.times is None else self.times[rows],
            None if self.recent is None else self.recent[rows],
            None if self.units is None else self.units.take(positions),
        )

    def canonical_order(self) -> Rows | None:
        """Return the recent rows sorted by id, or by (time, id) where times are given; a repeated id is an error.

        None: all rows, as they are.
        """
        order = sorted_by_id(self.name, self.ids)
        if self.times is not None:
            times = pa.array(self.times if order is None else taken(self.times, order))
            if not is_ascending(times):
                by_time = sorted_positions(times)
                order = by_time if order is None else taken(order, by_time)
        if self.recent is not None:
            order = chosen(counting(len(self)) if order is None else order, self.recent)
        return order


def recent_rows(moments: Times, since: str, place: Place) -> npt.NDArray[np.bool_]:
    """Return which records have a time at or after `since`; it is an error if none has."""
    start, recent = first_time(since, moments, place), empty(len(moments), np.bool_)
    for part in parts(len(moments)):
        recent[part] = moments[part] >= start
    if not recent.any():
        raise DataError(f"{place.file}: column {place.column!r} has no time at or after {since}")
    return recent


def sorted_by_id(name: str, ids: ArrowArray) -> Rows | None:
    """Return the positions of ids in the order of their UTF-8 bytes, None for the order they have; each occurs once."""
    if is_ascending(ids, strictly=True):
        return None
    by_id = sorted_positions(ids)
    repeated, repeats = None, 0
    for part in parts(len(by_id) - 1):
        here = ids.take(pa.array(by_id[part.start : part.stop + 1]))
        same = pc.equal(here[1:], here[:-1]).to_numpy(zero_copy_only=False)
        repeats += int(same.sum())
        if repeats and repeated is None:
            repeated = part.start + int(same.argmax())
    if repeated is not None:
        first, second = sorted(by_id[repeated : repeated + 2].tolist())
        raise DataError(
            f"{name}: id {ids[int(by_id[repeated])].as_py()!r} stands in row {first + 1} and in row {second + 1}; "
            f"{repeats} rows repeat an id, and an id must be unique"
        )
    return by_id


def same_ids_or_error(
    name: str, ids: ArrowArray, other_name: str, other_ids: ArrowArray, chronological: bool = False
) -> None:
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
            f"for example {example.as_py()!r} only in {place}; {FIND_COMMON_RECORDS}"
        )
    at = int(np.flatnonzero(pc.not_equal(ids, other_ids).to_numpy(zero_copy_only=False))[0])
    reason = "the times disagree" if chronological else "the order disagrees"
    raise DataError(
        f"{name} and {other_name} have the same ids but {reason}: position {at} is {ids[at].as_py()!r} "
        f"in the first and {other_ids[at].as_py()!r} in the second"
    )


@dataclass(frozen=True)
class Kind:
    """`read` checks a whole column and gives it its type, as an Arrow array; the fields are made of that."""

    read: Callable[[ArrowArray, Place, Spelling], ArrowArray]
    row: RowKind

    def category(self, ending: str, values: ArrowArray) -> ArrowArray:
        """Return a field of categories as a dictionary array of text."""
        make = self.row.categories[ending]
        if make is None:
            return values
        found = make(values.to_numpy(zero_copy_only=False))
        return pa.array(found, mask=found < 0).cast(pa.string()).dictionary_encode()

    def number(self, ending: str, values: ArrowArray) -> Numbers:
        """Return a field of numbers, NaN where one is missing."""
        if not self.row.is_moment:
            values = values.cast(pa.float64(), safe=False).fill_null(np.nan)
        return self.row.numbers[ending](values.to_numpy(zero_copy_only=False))


def _numbers(column: ArrowArray, place: Place, spelling: Spelling) -> ArrowArray:
    return pa.array(numbers(column, place, spelling))


_READERS: Mapping[str, Callable[[ArrowArray, Place, Spelling], ArrowArray]] = {
    "category": texts,
    "number": _numbers,
    "date": dates,
    "day_first_date": partial(dates, order=DAY_FIRST),
    "month_first_date": partial(dates, order=MONTH_FIRST),
    "count": _numbers,
    "hour": partial(dates, order=HOURS),
}
KINDS = {name: Kind(_READERS[name], row) for name, row in ROW_KINDS.items()}


def fields_of(kinds: Mapping[str, str], columns: Fields) -> tuple[Fields, Fields]:
    """Return the fields of categories and of numbers that columns of these kinds become; they are made when asked."""

    def made(name: str, make: Callable[[str, ArrowArray], Array | ArrowArray], ending: str) -> Iterator[Array]:
        return map(partial(make, ending), pieces_of(columns[name]))

    of = {name: KINDS[kind] for name, kind in kinds.items()}
    return (
        {
            name + end: partial(made, name, kind.category, end)
            for name, kind in of.items()
            for end in kind.row.categories
        },
        {name + end: partial(made, name, kind.number, end) for name, kind in of.items() for end in kind.row.numbers},
    )
