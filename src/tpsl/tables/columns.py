"""Giving a column its meaning: record id, category, number, label, time or date.

Each function takes a column as it was read and returns it checked and in one canonical form, so that it does not matter
whether a party keeps its table as CSV or Parquet, or its ids as integers or text. An error names file, column and row
(the first record is row 1) and the value at fault.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.tables.errors import DataError
from tpsl.tables.reading import PLAIN, Block, Dialect

NO_LABEL = -1
"""Stands for a label that is not known yet."""
MOST_ID_BYTES = 1024
"""What the id of a record or unit has at most, as UTF-8."""

Times = npt.NDArray[np.int64] | npt.NDArray[np.float64]

# A label column with more different fractions than this is taken for measurements.
_FRACTIONS = 20
_LONGEST_SHOWN = 40
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_THOUSANDS_BY_POINTS, _THOUSANDS_BY_COMMAS = r"^[+-]?\d{1,3}(\.\d{3})+,\d+$", r"^[+-]?\d{1,3}(,\d{3})+\.\d+$"
_POINTS_ONLY = r"^[+-]?[1-9]\d{0,2}(\.\d{3})+$"


@dataclass(frozen=True)
class Place:
    """Where values stand, for errors: file, column, the number of the first record, and that of one cut off."""

    file: str
    column: str
    first: int = 1
    dialect: Dialect = PLAIN
    unfinished: int | None = None

    @classmethod
    def of(cls, block: Block, column: str, dialect: Dialect = PLAIN) -> "Place":
        """Return where the values of a block's column stand."""
        return cls(block.file, column, block.first - block.before, dialect, block.unfinished)

    def fault(self, at: int, sentence: str) -> DataError:
        """Return the error of the value at this position."""
        fault = self.dialect.fault(self.first + at, self.unfinished, sentence)
        return DataError(f"{self.file}: column {self.column!r}, {fault}")

    def wrong_type(self, kind: Any, sentence: str) -> DataError:
        """Return the error of a column whose type cannot serve."""
        return DataError(f"{self.file}: column {self.column!r} is of type {kind}, {sentence}")


def shown(value: Any) -> str:
    """Return a value as an error shows it: quoted, and the end of a long one is left out."""
    text = value if not isinstance(value, str) or len(value) <= _LONGEST_SHOWN else value[: _LONGEST_SHOWN - 3] + "..."
    return repr(text)


def record_ids(column: Any, place: Place, what: str = "id") -> Any:
    """Return ids as text: the integer 123 is `"123"`, the text `"007"` stays; a missing, empty or long id is an error.

    `what` is what they name: records, or units (whom a record is about).
    """
    kind = value_type(column)
    if not (pa.types.is_integer(kind) or is_text(kind)):
        raise place.wrong_type(kind, f"and {what}s must be integers or text")
    ids = _as_text(column, place)
    absent = pc.fill_null(pc.equal(ids, ""), True)
    if pc.any(absent).as_py():
        raise place.fault(first_true(absent), f"the {what} is missing")
    too_long = pc.greater(pc.binary_length(ids), MOST_ID_BYTES)
    if pc.any(too_long).as_py():
        raise place.fault(first_true(too_long), f"the {what} has more than {MOST_ID_BYTES:,} bytes")
    return ids


def key_texts(column: Any, place: Place, missing: Sequence[str] = ()) -> Any:
    """Return keys as text, as `record_ids` does; null, the empty text and those in `missing` are null."""
    kind = value_type(column)
    if not (pa.types.is_integer(kind) or is_text(kind)):
        raise place.wrong_type(kind, "and keys must be integers or text")
    return without(("", *missing), _as_text(column, place))


def texts(column: Any, place: Place, missing: Sequence[str] = ()) -> Any:
    """Return categories as a dictionary array of text; null and the texts in `missing` are null."""
    kind = value_type(column)
    if not (is_text(kind) or pa.types.is_integer(kind)):
        return without(missing, _as_text(column, place)).dictionary_encode()
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    if is_text(kind) and not missing:
        return encoded
    values, indices = _as_text(encoded.dictionary, place), encoded.indices
    absent = pc.is_in(values, value_set=pa.array(list(missing), pa.string()))
    if pc.any(absent).as_py():
        indices = pc.if_else(pc.fill_null(absent.take(indices), False), pa.scalar(None, indices.type), indices)
    return pa.DictionaryArray.from_arrays(indices, values)


def numbers(column: Any, place: Place, missing: Sequence[str] = ()) -> npt.NDArray[np.float64]:
    """Return numbers within float32, or NaN (missing); text that is no number, or a larger number, is an error."""
    kind = value_type(column)
    if is_text(kind):
        parsed = _numbers_in_text(column, place, missing, pa.float64(), "a number")
    elif (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
        parsed = plain(column).cast(pa.float64(), safe=False)
    else:
        raise place.wrong_type(kind, "which is not numeric")
    values = cast(npt.NDArray[np.float64], parsed.fill_null(np.nan).to_numpy(zero_copy_only=False))
    too_large = np.abs(values) > np.finfo(np.float32).max
    if too_large.any():
        at = int(np.argmax(too_large))
        raise place.fault(at, f"the number {values[at]} is too large for float32")
    return values


def whole_numbers(column: Any, place: Place, missing: Sequence[str] = ()) -> Any:
    """Return whole numbers of up to 64 bits as an Arrow array, null where one is missing; anything else is an error."""
    kind = value_type(column)
    if is_text(kind):
        return _numbers_in_text(column, place, missing, pa.int64(), "a whole number of up to 64 bits")
    if not pa.types.is_integer(kind):
        raise place.wrong_type(kind, "which is not a type of whole numbers")
    return plain(column).cast(pa.int64())


def class_numbers(
    column: Any, place: Place, class_values: tuple[str, ...], *, late: bool = False
) -> npt.NDArray[np.int64]:
    """Return each label's class, its position in `class_values`; any other value is an error.

    Where labels may come `late`, an empty field is a label that is not known yet: `NO_LABEL`.
    Whole numbers are compared as integers, everything else as text, in which capitals count only where they tell
    classes apart. Where 0 and 1 are classes, true and false stand for them: 1, 1.0, `"1"`, `"true"` and true are the
    same label.
    """
    column = column.dictionary_encode() if not pa.types.is_dictionary(column.type) else column
    found = column.dictionary
    labels = label_texts(found, place)
    if {"0", "1"} <= set(class_values):
        labels = pc.replace_substring_regex(labels, r"^(?i:false)$", "0")
        labels = pc.replace_substring_regex(labels, r"^(?i:true)$", "1")
    classes = _class_of(labels, pa.array(class_values, pa.string())).take(column.indices)
    unknown = pc.is_null(classes)
    if late:
        unknown = pc.and_not(unknown, pc.fill_null(pc.equal(labels, "").take(column.indices), True))
    if pc.any(unknown).as_py():
        at = first_true(unknown)
        raise place.fault(at, _label_complaint(column[at].as_py(), labels, class_values))
    return cast(npt.NDArray[np.int64], classes.fill_null(NO_LABEL).to_numpy(zero_copy_only=False).astype(np.int64))


def _class_of(labels: Any, class_values: Any) -> Any:
    """Return the position of each label among the classes, null if it is none of them."""
    exact = pc.index_in(labels, value_set=class_values, skip_nulls=True)
    in_lower_case = pc.utf8_lower(class_values)
    if len(in_lower_case.unique()) < len(class_values):
        return exact
    return pc.coalesce(exact, pc.index_in(pc.utf8_lower(labels), value_set=in_lower_case, skip_nulls=True))


def times(column: Any, place: Place) -> Times:
    """Return moments that can be compared with each other: numbers as they are, dates and timestamps in their own unit.

    Text is read as integers, or else as numbers, or else as ISO 8601 dates and timestamps, all rows in the same way. A
    missing time is an error.
    """
    moments = _moments(column, place)
    if pa.types.is_date32(moments.type):
        moments = moments.cast(pa.int32())
    return _array(moments if pa.types.is_floating(moments.type) else moments.cast(pa.int64()))


def not_before(column: Any, place: Place, since: str) -> npt.NDArray[np.bool_]:
    """Return which times of a whole column are at or after `since`, as `recent_times` does; none is an error."""
    recent = recent_times(column, place, since)
    if not recent.any():
        raise DataError(f"{place.file}: column {place.column!r} has no time at or after {since}")
    return recent


def recent_times(column: Any, place: Place, since: str) -> npt.NDArray[np.bool_]:
    """Return which times are at or after `since`: a number where they are numbers, else an ISO 8601 date or timestamp.

    A time without a zone is taken as it stands, one with a zone in UTC.
    """
    moments = _moments(column, place)
    are_dates = pa.types.is_temporal(moments.type)
    try:
        start: Any = datetime.fromisoformat(since) if are_dates else float(since)
    except ValueError:
        kind = "dates" if are_dates else "numbers"
        raise DataError(f"{place.file}: column {place.column!r} has {kind}, and {since!r} is none") from None
    if are_dates:
        in_utc = start if start.tzinfo is None else start.astimezone(UTC).replace(tzinfo=None)
        moments, start = _in_utc(moments), pa.scalar(in_utc, pa.timestamp("us"))
    return _array(pc.greater_equal(moments, start))


def _moments(column: Any, place: Place) -> Any:
    """Return times as whole numbers, fractions, dates or timestamps; a missing one is an error."""
    kind = value_type(column)
    absent = pc.is_null(column, nan_is_null=pa.types.is_floating(kind))
    if is_text(kind):
        column = pc.utf8_trim_whitespace(_as_text(column, place))
        absent = pc.is_in(pc.fill_null(pc.utf8_lower(column), ""), value_set=pa.array(["", "nan"]))
    if pc.any(absent).as_py():
        raise place.fault(first_true(absent), "the time is missing")
    if is_text(kind):
        return _in_one_way(column, place, (pa.int64(), pa.float64(), *_MOMENTS), "a number, or an ISO 8601")
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return plain(column)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return plain(column).cast(pa.float64(), safe=False)
    raise place.wrong_type(kind, "and times must be numbers, dates, timestamps or text")


def dates(column: Any, place: Place, missing: Sequence[str] = ()) -> Any:
    """Return dates and timestamps, or ISO 8601 text of them, as microseconds of UTC; null is missing.

    A time without a zone is taken as it stands.
    """
    kind = value_type(column)
    if is_text(kind):
        column = without(missing, pc.utf8_trim_whitespace(_as_text(column, place)))
        column = _in_one_way(column, place, _MOMENTS, "an ISO 8601")
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = plain(column)
    else:
        raise place.wrong_type(kind, "and dates must be dates, timestamps or text")
    return _in_utc(column)


def _in_utc(moments: Any) -> Any:
    """Return dates or timestamps as microseconds of UTC; a time without a zone is taken as it stands."""
    in_microseconds = moments.cast(pa.timestamp("us", tz=getattr(moments.type, "tz", None)), safe=False)
    return in_microseconds.cast(pa.timestamp("us"), safe=False)


_MOMENTS = (pa.timestamp("us"), pa.timestamp("us", tz="UTC"))


def _in_one_way(column: Any, place: Place, kinds: Sequence[Any], wanted: str) -> Any:
    """Return text as the first of these types that all of it can be read as."""
    readings: list[Any] = []
    for kind in kinds:
        readings.append(parsed_or_null(column, kind))
        if readings[-1].null_count == column.null_count:
            return readings[-1]
    closest = min(readings, key=lambda reading: reading.null_count)
    at = first_true(pc.and_(pc.is_null(closest), pc.is_valid(column)))
    raise place.fault(
        at,
        f"{shown(column[at].as_py())} cannot be read as a time like the other rows ({wanted} date or timestamp)",
    )


def _numbers_in_text(column: Any, place: Place, missing: Sequence[str], kind: Any, what: str) -> Any:
    known = without(missing, pc.utf8_trim_whitespace(_as_text(column, place)))
    parsed = parsed_or_null(with_points(known, place.dialect), kind)
    unreadable = pc.and_(pc.is_valid(known), pc.is_null(parsed))
    if pc.any(unreadable).as_py():
        at = first_true(unreadable)
        value = known[at].as_py()
        advice = "if it stands for a missing value, list it in `missing`"
        if place.dialect.decimal_comma and re.fullmatch(_POINTS_ONLY, value):
            advice = "beside numbers as 1.234,56 it could be either: write it without points, or with decimals"
        elif _DECIMAL_COMMA.fullmatch(value):
            advice = "numbers have a decimal point, or a comma where semicolons separate the columns"
        raise place.fault(at, f"{shown(value)} is not {what} ({advice})")
    return parsed


def with_points(numbers: Any, dialect: Dialect) -> Any:
    """Return texts of numbers with a decimal point and nothing between thousands.

    Only what stands before a decimal sign is sure to be thousands: 1,234.56, and 1.234,56 where a file has decimal
    commas. There 1.234 beside 1.234,56 could be either, and becomes null.
    """
    between, pattern = (".", _THOUSANDS_BY_POINTS) if dialect.decimal_comma else (",", _THOUSANDS_BY_COMMAS)
    if pc.any(pc.match_substring(numbers, between)).as_py():
        grouped = pc.match_substring_regex(numbers, pattern)
        unclear = pc.match_substring_regex(numbers, _POINTS_ONLY)
        if dialect.decimal_comma and pc.any(grouped).as_py():
            numbers = pc.if_else(unclear, pa.scalar(None, pa.string()), numbers)
        numbers = pc.if_else(grouped, pc.replace_substring(numbers, between, ""), numbers)
    return pc.replace_substring(numbers, ",", ".") if dialect.decimal_comma else numbers


def label_texts(values: Any, place: Place) -> Any:
    """Return labels as they are compared: as text, a whole number without a fraction."""
    if pa.types.is_floating(values.type):
        values = values.cast(pa.float64())
        whole = pc.equal(values, pc.round(values))
        return pc.if_else(whole, values.cast(pa.int64(), safe=False).cast(pa.string()), values.cast(pa.string()))
    labels = pc.utf8_trim_whitespace(_as_text(values, place))
    return pc.replace_substring_regex(labels, r"^([+-]?\d+)\.0*$", r"\1")


def _label_complaint(value: Any, labels: Any, class_values: tuple[str, ...]) -> str:
    if value is None or value == "":
        return f"the label is missing; labels are {_listed(class_values)} (remove the row if there is none)"
    fractions = pc.sum(pc.match_substring_regex(labels, r"^[+-]?\d*\.\d+(e[+-]?\d+)?$")).as_py() or 0
    if fractions > _FRACTIONS:
        return (
            f"{shown(value)} is one of {fractions} different fractions in the column, which looks like a quantity: "
            "labels are classes, and regression is not supported"
        )
    return (
        f"{shown(value)} is not a label; labels are {_listed(class_values)} (class_values names others, one for each "
        "of the classes)"
    )


def parsed_or_null(column: Any, kind: Any) -> Any:
    """Cast text to `kind`; what cannot be cast becomes null."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        # Rare: cast the distinct values one by one, to find out which ones are at fault.
        encoded = column.dictionary_encode()
        return pa.array([_parsed_one(value, kind) for value in encoded.dictionary], kind).take(encoded.indices)


def _parsed_one(value: Any, kind: Any) -> Any:
    try:
        return value.cast(kind).as_py()
    except pa.ArrowInvalid:
        return None


def _as_text(column: Any, place: Place) -> Any:
    try:
        return plain(column).cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise place.wrong_type(column.type, "which cannot be read as text") from error


def plain(column: Any) -> Any:
    """Return a column's values themselves, where it holds a dictionary of them."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def without(missing: Sequence[str], column: Any) -> Any:
    """Return a column of text in which those that stand for a missing value are null."""
    if not missing:
        return column
    absent = pc.is_in(column, value_set=pa.array(list(missing), pa.string()))
    return pc.if_else(absent, pa.scalar(None, pa.string()), column)


def _array(column: Any) -> npt.NDArray[Any]:
    return cast(npt.NDArray[Any], column.to_numpy(zero_copy_only=False))


def first_true(mask: Any) -> int:
    """Return the position of the first value that is true."""
    return int(pc.index(mask, True).as_py())


def value_type(column: Any) -> Any:
    """Return the type of a column's values, also where it holds a dictionary of them."""
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def is_text(kind: Any) -> bool:
    """Return whether a type is one of those of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values if len(values) <= 6 else (*values[:2], "...", values[-1]))
