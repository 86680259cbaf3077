"""Kinds of columns: how the values of each are read, and which fields of categories and of numbers they become.

| kind | values | categories | numbers |
|---|---|---|---|
| `category` | any text, or integers | the text | |
| `number` | numbers | | the number |
| `date` | dates and timestamps, also as ISO 8601 text | hour of day, weekday (Monday is 0) | days since 1970; sine and cosine of the day of the year |
| `day_first_date`, `month_first_date` | the same, also as 31.12.2025 or 12/31/2025; 31.12.25 is in 2025, years from 69 to 99 are in the 1900s | as those of `date` | as those of `date` |
| `count` | whole numbers of up to 64 bits | | sign(x)·log(1 + abs(x)) |
| `hexadecimal` | eight hexadecimal digits | the digits, as lower-case text | |
| `integer` | whole numbers of up to 32 bits | the number as text | |
| `hour` | YYMMDDHH | hour of day, weekday | |

The first five are those of users' tables, the others those of click logs. What a kind makes of a value never changes:
saved encoders name kinds (`tpsl.data.encoder`). A new rule is a new kind. A kind reads whole columns (`Kind.read`) and
single values (`ROW_KINDS`), by the one definition in `tpsl.tables.spelling`, and makes the same fields of both.
"""  # noqa: E501

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.row_encoder import ROW_KINDS, RowKind
from tpsl.tables.columns import (
    Place,
    dates,
    hexadecimal_texts,
    hours,
    integer_texts,
    numbers,
    texts,
    whole_numbers,
)
from tpsl.tables.spelling import DAY_FIRST, MONTH_FIRST, Spelling

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """`read` checks a whole column and gives it its type, as an Arrow array; the fields are made of that."""

    read: Callable[[Any, Place, Spelling], Any]
    row: RowKind

    def category(self, ending: str, values: Any) -> Any:
        """Return a field of categories as a dictionary array of text."""
        make = self.row.categories[ending]
        if make is None:
            return values
        found = make(values.to_numpy(zero_copy_only=False))
        return pa.array(found, mask=found < 0).cast(pa.string()).dictionary_encode()

    def number(self, ending: str, values: Any) -> Numbers:
        """Return a field of numbers, NaN where one is missing."""
        if not self.row.is_moment:
            values = values.cast(pa.float64(), safe=False).fill_null(np.nan)
        return self.row.numbers[ending](values.to_numpy(zero_copy_only=False))


_READERS: Mapping[str, Callable[[Any, Place, Spelling], Any]] = {
    "category": texts,
    "number": lambda *given: pa.array(numbers(*given)),
    "date": dates,
    "day_first_date": partial(dates, order=DAY_FIRST),
    "month_first_date": partial(dates, order=MONTH_FIRST),
    "count": whole_numbers,
    "hexadecimal": hexadecimal_texts,
    "integer": integer_texts,
    "hour": hours,
}
KINDS = {name: Kind(_READERS[name], row) for name, row in ROW_KINDS.items()}


def category_fields(columns: Mapping[str, str]) -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """Return field -> (column, what makes the field of it) for columns of these kinds."""
    return {
        name + ending: (name, partial(KINDS[kind].category, ending))
        for name, kind in columns.items()
        for ending in ROW_KINDS[kind].categories
    }


def number_fields(columns: Mapping[str, str]) -> dict[str, tuple[str, Callable[[Any], Numbers]]]:
    """Return field -> (column, what makes the field of it) for columns of these kinds."""
    return {
        name + ending: (name, partial(KINDS[kind].number, ending))
        for name, kind in columns.items()
        for ending in ROW_KINDS[kind].numbers
    }
