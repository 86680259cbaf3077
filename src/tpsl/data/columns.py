"""Giving a column its meaning: record id, category, number, label or time.

Each function takes a column as it was read and returns it checked and in one canonical form, so that it does not matter
whether a party keeps its table as CSV or Parquet, or its ids as integers or text. An error names file, column and row
(the first record is row 1) and the value at fault.
"""

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.errors import DataError
from tpsl.data.rawtable import NO_LABEL, Times


def record_ids(column: Any, file: str, name: str, what: str = "id") -> Any:
    """Return ids as text: the integer 123 is `"123"`, the text `"007"` stays; a missing or empty id is an error.

    `what` is what they name: records, or units (whom a record is about).
    """
    kind = _value_type(column)
    if not (pa.types.is_integer(kind) or _is_text(kind)):
        raise DataError(f"{file}: column {name!r} is of type {kind}, and {what}s must be integers or text")
    ids = _as_text(column, file, name)
    absent = pc.fill_null(pc.equal(ids, ""), True)
    if pc.any(absent).as_py():
        raise DataError(f"{file}: column {name!r}, row {_first_row(absent)}: the {what} is missing")
    return ids


def texts(column: Any, file: str, name: str, missing: tuple[str, ...]) -> Any:
    """Return categories as a dictionary array of text; null and the texts in `missing` are null."""
    return _without(missing, _as_text(column, file, name)).dictionary_encode()


def numbers(column: Any, file: str, name: str, missing: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """Return numbers within float32, or NaN (missing); text that is no number, or a larger number, is an error."""
    kind = _value_type(column)
    if _is_text(kind):
        known = _without(missing, pc.utf8_trim_whitespace(_as_text(column, file, name)))
        parsed = _parsed(known, pa.float64())
        unreadable = pc.and_(pc.is_valid(known), pc.is_null(parsed))
        if pc.any(unreadable).as_py():
            row = _first_row(unreadable)
            raise DataError(
                f"{file}: column {name!r}, row {row}: {known[row - 1].as_py()!r} is not a number "
                "(if it stands for a missing value, list it in `missing`)"
            )
    elif (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
        parsed = _plain(column).cast(pa.float64(), safe=False)
    else:
        raise DataError(f"{file}: column {name!r} is of type {kind}, which is not numeric")
    values = cast(npt.NDArray[np.float64], parsed.fill_null(np.nan).to_numpy(zero_copy_only=False))
    too_large = np.abs(values) > np.finfo(np.float32).max
    if too_large.any():
        row = int(np.argmax(too_large)) + 1
        raise DataError(f"{file}: column {name!r}, row {row}: the number {values[row - 1]} is too large for float32")
    return values


def class_numbers(
    column: Any, file: str, name: str, class_values: tuple[str, ...], *, late: bool = False
) -> npt.NDArray[np.int64]:
    """Return each label's class, its position in `class_values`; any other value is an error.

    Where labels may come `late`, an empty field is a label that is not known yet: `NO_LABEL`.
    Whole numbers are compared as integers, everything else as text. Where 0 and 1 are classes, true and false stand for
    them: 1, 1.0, `"1"`, `"true"` and true are the same label.
    """
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
        whole = pc.equal(column, pc.round(column))
        labels = pc.if_else(whole, column.cast(pa.int64(), safe=False).cast(pa.string()), column.cast(pa.string()))
    else:
        labels = pc.utf8_trim_whitespace(_as_text(column, file, name))
        labels = pc.replace_substring_regex(labels, r"^([+-]?\d+)\.0*$", r"\1")
    if {"0", "1"} <= set(class_values):
        labels = pc.replace_substring_regex(labels, r"^(?i:false)$", "0")
        labels = pc.replace_substring_regex(labels, r"^(?i:true)$", "1")
    classes = pc.index_in(labels, value_set=pa.array(class_values, pa.string()), skip_nulls=True)
    unknown = pc.is_null(classes)
    if late:
        unknown = pc.and_not(unknown, pc.fill_null(pc.equal(labels, ""), True))
    if pc.any(unknown).as_py():
        row = _first_row(unknown)
        value = column[row - 1].as_py()
        found = "the label is missing" if value is None or value == "" else f"{value!r} is not a label"
        raise DataError(f"{file}: column {name!r}, row {row}: {found}; labels are {_listed(class_values)}")
    return cast(npt.NDArray[np.int64], classes.fill_null(NO_LABEL).to_numpy(zero_copy_only=False).astype(np.int64))


def times(column: Any, file: str, name: str) -> Times:
    """Return moments that can be compared with each other: numbers as they are, dates and timestamps in their own unit.

    Text is read as integers, or else as numbers, or else as ISO 8601 dates and timestamps, all rows in the same way. A
    missing time is an error.
    """
    kind = _value_type(column)
    absent = pc.is_null(column, nan_is_null=pa.types.is_floating(kind))
    if _is_text(kind):
        column = pc.utf8_trim_whitespace(_as_text(column, file, name))
        absent = pc.is_in(pc.fill_null(pc.utf8_lower(column), ""), value_set=pa.array(["", "nan"]))
    if pc.any(absent).as_py():
        raise DataError(f"{file}: column {name!r}, row {_first_row(absent)}: the time is missing")
    if _is_text(kind):
        return _times_in_text(column, file, name)
    if pa.types.is_integer(kind) or pa.types.is_date64(kind) or pa.types.is_timestamp(kind):
        return _array(_plain(column).cast(pa.int64()))
    if pa.types.is_date32(kind):
        return _array(_plain(column).cast(pa.int32()).cast(pa.int64()))
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _array(_plain(column).cast(pa.float64(), safe=False))
    raise DataError(f"{file}: column {name!r} is of type {kind}, and times must be numbers, dates, timestamps or text")


def _times_in_text(column: Any, file: str, name: str) -> Times:
    readings: list[Any] = []
    for kind in (pa.int64(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        readings.append(_parsed(column, kind))
        if readings[-1].null_count == 0:
            return _array(readings[-1].cast(pa.int64()) if pa.types.is_timestamp(kind) else readings[-1])
    row = _first_row(pc.is_null(min(readings, key=lambda reading: reading.null_count)))
    raise DataError(
        f"{file}: column {name!r}, row {row}: {column[row - 1].as_py()!r} cannot be read as a time like "
        "the other rows (a number, or an ISO 8601 date or timestamp)"
    )


def _parsed(column: Any, kind: Any) -> Any:
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


def _as_text(column: Any, file: str, name: str) -> Any:
    try:
        return _plain(column).cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{file}: column {name!r} is of type {column.type}, which cannot be read as text") from error


def _plain(column: Any) -> Any:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _without(missing: tuple[str, ...], column: Any) -> Any:
    if not missing:
        return column
    absent = pc.is_in(column, value_set=pa.array(missing, pa.string()))
    return pc.if_else(absent, pa.scalar(None, pa.string()), column)


def _array(column: Any) -> Times:
    return cast(Times, column.to_numpy(zero_copy_only=False))


def _first_row(mask: Any) -> int:
    return int(pc.index(mask, True).as_py()) + 1


def _value_type(column: Any) -> Any:
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values if len(values) <= 6 else (*values[:2], "...", values[-1]))
