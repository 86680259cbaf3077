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
saved encoders name kinds (`tpsl.data.encoder`). A new rule is a new kind.
"""  # noqa: E501

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.plain_encoder import DAY_FIRST, DAYS_A_YEAR, MICROSECONDS_A_DAY, MONTH_FIRST, DateOrder, moment_of_hour
from tpsl.tables.columns import (
    Place,
    dates,
    first_true,
    is_text,
    numbers,
    parsed_or_null,
    plain,
    shown,
    texts,
    value_type,
    whole_numbers,
    without,
)

Numbers = npt.NDArray[np.float64]
Missing = tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """`read` checks a column and gives it its type, as an Arrow array; the fields are made of that.

    A field is called by the column's name and what stands before it here.
    """

    read: Callable[[Any, Place, Missing], Any]
    categories: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    numbers: Mapping[str, Callable[[Any], Numbers]] = field(default_factory=dict)


def category_fields(columns: Mapping[str, str]) -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """Return field -> (column, what makes the field of it) for columns of these kinds."""
    return {
        name + ending: (name, make) for name, kind in columns.items() for ending, make in KINDS[kind].categories.items()
    }


def number_fields(columns: Mapping[str, str]) -> dict[str, tuple[str, Callable[[Any], Numbers]]]:
    """Return field -> (column, what makes the field of it) for columns of these kinds."""
    return {
        name + ending: (name, make) for name, kind in columns.items() for ending, make in KINDS[kind].numbers.items()
    }


def _same(values: Any) -> Any:
    return values


def _as_numbers(values: Any) -> Numbers:
    plain = values.cast(pa.float64(), safe=False).fill_null(np.nan)
    return np.asarray(plain.to_numpy(zero_copy_only=False))


def signed_logarithm(values: Any) -> Numbers:
    """Return sign(x)·log(1 + |x|); NaN where there is no number."""
    plain = _as_numbers(values)
    return np.asarray(np.copysign(np.log1p(np.abs(plain)), plain))


def _spelled(column: Any, place: Place, missing: Missing, canonical: Callable[[Any], Any], what: str) -> Any:
    """Read categories of one form; `canonical` returns the one spelling of each value, null if it is of another."""
    encoded = texts(column, place, missing)
    known = canonical(pc.utf8_trim_whitespace(encoded.dictionary))
    if known.null_count:
        wrong = pc.and_(pc.is_null(known.take(encoded.indices)), pc.is_valid(encoded.indices))
        if pc.any(wrong).as_py():
            at = first_true(wrong)
            raise place.fault(at, f"{shown(encoded[at].as_py())} is not {what}")
    if known.equals(encoded.dictionary):
        return encoded
    return known.take(encoded.indices).dictionary_encode()  # two spellings may be one value


def _hexadecimal(column: Any, place: Place, missing: Missing) -> Any:
    def canonical(values: Any) -> Any:
        digits = pc.match_substring_regex(values, "^[0-9a-fA-F]{8}$")
        return pc.if_else(digits, pc.ascii_lower(values), pa.scalar(None, pa.string()))

    return _spelled(column, place, missing, canonical, "a category of eight hexadecimal digits")


def _integer(column: Any, place: Place, missing: Missing) -> Any:
    def canonical(values: Any) -> Any:
        return parsed_or_null(values, pa.int32()).cast(pa.string())

    return _spelled(column, place, missing, canonical, "a whole number of up to 32 bits")


def _dates_in_order(order: DateOrder) -> Callable[[Any, Place, Missing], Any]:
    def read(column: Any, place: Place, missing: Missing) -> Any:
        if is_text(value_type(column)):
            column = reordered(without(missing, pc.utf8_trim_whitespace(plain(column))), order)
        return dates(column, place, missing)

    return read


def reordered(texts: Any, order: DateOrder) -> Any:
    """Return dates that are written in this order as ISO 8601 has them; what is no such date stays as it is."""
    for pattern, replacement in order:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts


def _hours(column: Any, place: Place, missing: Missing) -> Any:
    if not is_text(value_type(column)):
        return dates(column, place)

    def canonical(values: Any) -> Any:
        return pa.array([text if moment_of_hour(text) else None for text in values.to_pylist()], pa.string())

    encoded = _spelled(column, place, (), canonical, "an hour as YYMMDDHH")
    return pa.array([moment_of_hour(text) for text in encoded.dictionary.to_pylist()], pa.timestamp("us")).take(
        encoded.indices
    )


def _category_of(part: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda moments: part(moments).cast(pa.string()).dictionary_encode()


def _days(moments: Any) -> Numbers:
    return _as_numbers(moments.cast(pa.int64())) / MICROSECONDS_A_DAY


def _of_year(wave: Callable[[Numbers], Numbers]) -> Callable[[Any], Numbers]:
    return lambda moments: wave(_as_numbers(pc.day_of_year(moments)) * (2 * np.pi / DAYS_A_YEAR))


_CLOCK = {" hour": _category_of(pc.hour), " weekday": _category_of(pc.day_of_week)}
_DATE_NUMBERS = {"": _days, " sine of year": _of_year(np.sin), " cosine of year": _of_year(np.cos)}

KINDS: dict[str, Kind] = {
    "category": Kind(texts, {"": _same}),
    "number": Kind(lambda *given: pa.array(numbers(*given)), {}, {"": _as_numbers}),
    "date": Kind(dates, _CLOCK, _DATE_NUMBERS),
    "day_first_date": Kind(_dates_in_order(DAY_FIRST), _CLOCK, _DATE_NUMBERS),
    "month_first_date": Kind(_dates_in_order(MONTH_FIRST), _CLOCK, _DATE_NUMBERS),
    "count": Kind(whole_numbers, {}, {"": signed_logarithm}),
    "hexadecimal": Kind(_hexadecimal, {"": _same}),
    "integer": Kind(_integer, {"": _same}),
    "hour": Kind(_hours, _CLOCK),
}
