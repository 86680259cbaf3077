"""Whole columns: record ids, categories, numbers, labels, times and dates, as `tpsl.tables.spelling` defines a value.

Each function takes a column as it was read and returns it checked and in one canonical form, so that it does not matter
whether a party keeps its table as CSV or Parquet, its ids as integers or text, or how its files are cut. An error names
file, column and row (the first record is row 1) and the value at fault: the first one of the column.

PyArrow reads texts of the plain form; all others are read one distinct value at a time by `tpsl.tables.spelling`.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.tables import ArrowArray, ArrowObject, DataError
from tpsl.tables import spelling as spell
from tpsl.tables.reading import MOST_ID_BYTES as MOST_ID_BYTES
from tpsl.tables.reading import Block, plain
from tpsl.tables.reading import is_text as is_text
from tpsl.tables.spelling import LOCAL_TIME, PLAIN_NUMBER, WHITE_SPACE, ZONED_TIME, DateOrder, Spelling, shown

NO_LABEL = -1
"""Stands for a label that is not known yet."""

Times = npt.NDArray[np.int64] | npt.NDArray[np.float64]
"""Microseconds of UTC, or numbers."""

# A label column with more different fractions than this is taken for measurements.
_FRACTIONS = 20


@dataclass(frozen=True)
class Place:
    """Where values stand, for errors: file, column and the number of the first record."""

    file: str
    column: str
    first: int = 1

    @classmethod
    def of(cls, block: Block, column: str) -> "Place":
        """Return where the values of a block's column stand."""
        return cls(block.file, column, block.first - block.before)

    def fault(self, at: int, sentence: str) -> DataError:
        """Return the error of the value at this position."""
        return DataError(f"{self.file}: column {self.column!r}, row {self.first + at}: {sentence}")

    def wrong_type(self, kind: ArrowObject, sentence: str) -> DataError:
        """Return the error of a column whose type cannot serve."""
        return DataError(f"{self.file}: column {self.column!r} is of type {kind}, {sentence}")


def record_ids(column: ArrowArray, place: Place, what: str = "id") -> ArrowArray:
    """Return ids as text: the integer 123 is `"123"`, the text `"007"` stays; a missing, empty or long id is an error.

    `what` is what they name: records, or units (whom a record is about).
    """
    ids = _id_texts(column, place, what)
    absent = pc.fill_null(pc.equal(ids, ""), True)
    if pc.any(absent).as_py():
        raise place.fault(first_true(absent), f"the {what} is missing")
    too_long = pc.greater(pc.binary_length(ids), MOST_ID_BYTES)
    if pc.any(too_long).as_py():
        raise place.fault(first_true(too_long), f"the {what} has more than {MOST_ID_BYTES:,} bytes")
    return ids


def key_texts(column: ArrowArray, place: Place, missing: Sequence[str] = ()) -> ArrowArray:
    """Return keys as text, as `record_ids` does; null, the empty text and those in `missing` are null."""
    return without(("", *missing), _id_texts(column, place, "key"))


def _id_texts(column: ArrowArray, place: Place, what: str) -> ArrowArray:
    kind = value_type(column)
    if not (pa.types.is_integer(kind) or is_text(kind)):
        raise place.wrong_type(kind, f"and {what}s must be integers or text")
    return _as_text(column, place)


def texts(column: ArrowArray, place: Place, spelling: Spelling) -> ArrowArray:
    """Return categories as a dictionary array of text; null is missing."""
    kind = value_type(column)
    encoded = column if pa.types.is_dictionary(column.type) else _encoded(column, place)
    if is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        values = without(spelling.missing, _as_text(encoded.dictionary, place))
        if is_text(kind):
            values = _canonical(values)
    else:
        values = _by_value(encoded.dictionary, place, partial(spell.category, spelling=spelling), pa.string())
    if values.null_count or values.type != encoded.dictionary.type or not values.equals(encoded.dictionary):
        return values.take(encoded.indices).dictionary_encode()  # two spellings may be one value
    return encoded


def _canonical(texts: ArrowArray) -> ArrowArray:
    respelled = pc.match_substring_regex(texts, spell.SAME_CATEGORY.pattern).fill_null(False)
    canonical = [spell.canonical_text(text) for text in texts.filter(respelled).to_pylist()]
    return pc.replace_with_mask(texts, respelled, pa.array(canonical, pa.string())) if canonical else texts


def numbers(column: ArrowArray, place: Place, spelling: Spelling) -> npt.NDArray[np.float64]:
    """Return numbers within float32, or NaN (missing); text that is no number, or a larger number, is an error."""
    kind = value_type(column)
    if is_text(kind):
        known = _stripped(column, place, spelling)
        parsed = _plain_numbers(known, spelling)
        if parsed is None:
            parsed = _by_value(known, place, partial(spell.number, spelling=spelling), pa.float64())
    elif any(is_of(kind) for is_of in _NUMERIC):
        parsed = plain(column).cast(pa.float64(), safe=False)
    else:
        raise place.wrong_type(kind, "which is not numeric")
    values = np.asarray(parsed.fill_null(np.nan), np.float64)
    too_large = np.abs(values) > spell.LARGEST
    if too_large.any():
        at = int(np.argmax(too_large))
        raise place.fault(at, f"the number {values[at]} is too large for float32")
    return values


_NUMERIC = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal


def _plain_numbers(known: ArrowArray, spelling: Spelling) -> ArrowArray | None:
    """Return texts as numbers where all of them are of the plain form, and written in one style; None if not."""
    written, style = with_points(known, spelling.decimal)
    if written.null_count > known.null_count or (style and spelling.style not in ("", style)):
        return None
    parsed = _cast(written, PLAIN_NUMBER, pa.float64())
    if parsed is not None and style:
        spelling.see(style)
    return parsed


def with_points(numbers: ArrowArray, decimal: str) -> tuple[ArrowArray, str]:
    """Return texts of numbers with a decimal point and nothing between thousands, and the style that they show.

    Where a decimal comma and thousands show that a point is none, one that could be either makes a null.
    """
    style, between = "", "." if decimal == "," else ","
    if pc.any(pc.match_substring(numbers, between)).as_py():
        grouped = pc.match_substring_regex(numbers, spell.THOUSANDS[decimal].pattern)
        if decimal == ",":
            unclear = pc.match_substring_regex(numbers, spell.POINTS_ONLY.pattern)
            style = "grouped" if pc.any(grouped).as_py() else "points" if pc.any(unclear).as_py() else ""
            if style == "grouped":
                numbers = pc.if_else(unclear, pa.scalar(None, pa.string()), numbers)
        numbers = pc.if_else(grouped, pc.replace_substring(numbers, between, ""), numbers)
    return pc.replace_substring(numbers, ",", ".") if decimal == "," else numbers, style


def class_numbers(column: ArrowArray, place: Place, class_values: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Return each label's class, its position in `class_values`; any other value is an error.

    Whole numbers are compared as integers, everything else as text, in which capitals count only where they tell
    classes apart. Where 0 and 1 are classes, true and false stand for them: 1, 1.0, +1, `"1"`, `"true"` and true are
    the same label.
    """
    exact = {name: number for number, name in enumerate(class_values)}
    lower = {name.lower(): number for name, number in exact.items()}
    lower = lower if len(lower) == len(exact) else {}
    if {"0", "1"} <= exact.keys():
        lower = {"true": exact["1"], "false": exact["0"]} | lower

    def read(value: object) -> int:
        text = value if isinstance(value, str) and value in exact else spell.label_text(value)
        found = None if text is None else exact.get(text, lower.get(text.lower()))
        if found is None:
            raise ValueError(_label_complaint(value, column.unique().to_pylist(), class_values))
        return found

    return np.asarray(_by_value(column, place, read, pa.int64()), np.int64)


def label_texts(column: ArrowArray, place: Place) -> ArrowArray:
    """Return labels as they are compared: as text, a whole number without a fraction; null is missing."""
    return _by_value(column, place, spell.label_text, pa.string())


def _label_complaint(value: object, values: Sequence[object], class_values: tuple[str, ...]) -> str:
    if value is None or value == "":
        return f"the label is missing; labels are {_listed(class_values)} (remove the row if there is none)"
    fractions = sum(_is_fraction(other) for other in values)
    if fractions > _FRACTIONS:
        return (
            f"{shown(value)} is one of {fractions} different fractions in the column, which looks like a quantity: "
            "labels are classes, and regression is not supported"
        )
    return (
        f"{shown(value)} is not a label; labels are {_listed(class_values)} (class_values names others, one for each "
        "of the classes)"
    )


def _is_fraction(value: object) -> bool:
    try:
        return float(str(value)) % 1 != 0
    except ValueError:
        return False


def dates(column: ArrowArray, place: Place, spelling: Spelling, order: DateOrder = ()) -> ArrowArray:
    """Return dates and timestamps, or texts of them, as microseconds of UTC; null is missing.

    A time without a zone is taken as it stands. Texts are ISO 8601, or in the given order.
    """
    kind = value_type(column)
    if is_text(kind):
        known = _stripped(column, place, spelling)
        parsed = _plain_moments(reordered(known, order), spelling)
        if parsed is None:
            reader = partial(spell.moment, spelling=spelling, order=order)
            parsed = _by_value(known, place, reader, pa.timestamp("us"))
        return parsed
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise place.wrong_type(kind, "and dates must be dates, timestamps or text")
    if column.null_count < len(column):
        _see("local" if getattr(kind, "tz", None) is None else "zoned", column, place, spelling)
    return _in_utc(plain(column))


def reordered(texts: ArrowArray, order: DateOrder) -> ArrowArray:
    """Return dates that are written in this order as ISO 8601 has them; what is no such date stays as it is."""
    for pattern, replacement in order:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts


def _plain_moments(known: ArrowArray, spelling: Spelling) -> ArrowArray | None:
    """Return texts as microseconds of UTC where all of them are ISO 8601 in one style; None if not."""
    for style, pattern, zone in (("local", LOCAL_TIME, None), ("zoned", ZONED_TIME, "UTC")):
        parsed = _cast(known, pattern, pa.timestamp("us", tz=zone)) if spelling.style in ("", style) else None
        if parsed is not None:
            if parsed.null_count < len(parsed):
                spelling.see(style)
            return _in_utc(parsed)
    return None


def times(column: ArrowArray, place: Place, spelling: Spelling) -> Times:
    """Return moments that can be compared with each other: numbers as float64, dates and timestamps in UTC.

    Numbers beside dates in one column, and a missing time, are errors.
    """
    kind = value_type(column)
    absent = pc.is_null(column, nan_is_null=pa.types.is_floating(kind))
    if is_text(kind):
        column = _stripped(column, place, spelling)
        absent = pc.is_in(pc.fill_null(pc.utf8_lower(column), ""), value_set=pa.array(["", "nan"]))
    if pc.any(absent).as_py():
        raise place.fault(first_true(absent), "the time is missing")
    if is_text(kind) and len(column) and PLAIN_NUMBER.match(column[0].as_py()):
        column = pa.array(numbers(column, place, Spelling()))
        kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        _see("numeric", column, place, spelling)
        return _array(plain(column).cast(pa.float64(), safe=False))
    if is_text(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _array(dates(column, place, spelling).cast(pa.int64()))
    raise place.wrong_type(kind, "and times must be numbers, dates, timestamps or text")


def first_time(since: str, moments: Times, place: Place) -> float:
    """Return a number, or an ISO 8601 date or timestamp, as a column of times has been read.

    A time without a zone is taken as it stands, one with a zone in UTC.
    """
    kind = "numbers" if moments.dtype == np.float64 else "dates"
    try:
        start = spell.moment(since, Spelling()) if kind == "dates" else float(since)
    except ValueError:
        raise DataError(f"{place.file}: column {place.column!r} has {kind}, and {since!r} is none") from None
    return start if isinstance(start, float) else int(np.datetime64(start, "us").astype(np.int64))


def _in_utc(moments: ArrowArray) -> ArrowArray:
    """Return dates or timestamps as microseconds of UTC; a time without a zone is taken as it stands."""
    in_microseconds = moments.cast(pa.timestamp("us", tz=getattr(moments.type, "tz", None)), safe=False)
    return in_microseconds.cast(pa.timestamp("us"), safe=False)


def _see(style: str, column: ArrowArray, place: Place, spelling: Spelling) -> None:
    """Note how a column is written that has one style throughout."""
    try:
        spelling.see(style)
    except ValueError as error:
        at = first_true(pc.is_valid(column))
        raise place.fault(at, f"{shown(str(column[at].as_py()))} cannot be read as a time: {error}") from None


def _stripped(column: ArrowArray, place: Place, spelling: Spelling) -> ArrowArray:
    """Return a column of text without white space around the texts; null where one is missing."""
    return without(spelling.missing, pc.utf8_trim(_as_text(column, place), characters=WHITE_SPACE))


def _cast(known: ArrowArray, pattern: re.Pattern[str], kind: ArrowObject) -> ArrowArray | None:
    """Return texts as a type, if all that are not null are of a form that PyArrow and Python read alike."""
    if not pc.all(pc.match_substring_regex(known, pattern.pattern).fill_null(True)).as_py():
        return None
    try:
        return known.cast(kind)
    except pa.ArrowInvalid:
        return None


def _by_value(column: ArrowArray, place: Place, read: Callable[[object], object], kind: ArrowObject) -> ArrowArray:
    """Return a column as `read` reads each of its distinct values; the first row that cannot be read is an error.

    Distinct values come in the order of their first rows, null among them: [b, a, b] is the dictionary [b, a] with the
    indices [0, 1, 0], so the first value that fails is that of the first row that does.
    """
    encoded = _encoded(column, place, "encode")
    found = []
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            found.append(read(value))
        except ValueError as error:
            raise place.fault(first_true(pc.equal(encoded.indices, code)), str(error)) from None
    return pa.array(found, kind).take(encoded.indices)


def _encoded(column: ArrowArray, place: Place, nulls: str = "mask") -> ArrowArray:
    try:
        return plain(column).dictionary_encode(nulls)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise place.wrong_type(column.type, "which cannot be read as text") from error


def parsed_or_null(column: ArrowArray, kind: ArrowObject) -> ArrowArray:
    """Cast text to `kind`; what cannot be cast becomes null."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        # Rare: cast the distinct values one by one, to find out which ones are at fault.
        encoded = column.dictionary_encode()
        return pa.array([_parsed_one(value, kind) for value in encoded.dictionary], kind).take(encoded.indices)


def _parsed_one(value: ArrowObject, kind: ArrowObject) -> ArrowObject:
    try:
        return value.cast(kind).as_py()
    except pa.ArrowInvalid:
        return None


def _as_text(column: ArrowArray, place: Place) -> ArrowArray:
    try:
        return plain(column).cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise place.wrong_type(column.type, "which cannot be read as text") from error


def value_type(column: ArrowArray) -> ArrowObject:
    """Return the type of a column's values, also where it holds a dictionary of them."""
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def without(missing: Sequence[str] | frozenset[str], column: ArrowArray) -> ArrowArray:
    """Return a column of text in which those that stand for a missing value are null."""
    absent = pc.is_in(column, value_set=pa.array(sorted(missing), pa.string()))
    return pc.if_else(absent, pa.scalar(None, pa.string()), column) if pc.any(absent).as_py() else column


def _array(column: ArrowArray) -> Times:
    found: Times = column.to_numpy(zero_copy_only=False)
    return found


def first_true(mask: ArrowArray) -> int:
    """Return the position of the first value that is true."""
    return int(pc.index(mask, True).as_py())


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values if len(values) <= 6 else (*values[:2], "...", values[-1]))


_TEXTS_AT_ONCE = 1 << 16


class TextsDigest:
    """SHA-256 over the lengths and the bytes of texts, and over what they are (`purpose`)."""

    def __init__(self, purpose: bytes) -> None:
        self._purpose = purpose
        self._lengths, self._texts = hashlib.sha256(), hashlib.sha256()

    def update(self, texts: ArrowArray) -> None:
        """Take in the next texts, an Arrow array or chunked array; one that is missing counts as empty."""
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            part = texts.slice(start, _TEXTS_AT_ONCE)
            part = part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part
            encoded = pc.fill_null(pc.cast(part, pa.large_string()), "")
            offsets = np.frombuffer(encoded.buffers()[1], dtype="<i8")
            offsets = offsets[encoded.offset : encoded.offset + len(encoded) + 1]
            self._lengths.update(np.diff(offsets).astype("<i8").tobytes())
            if offsets[-1] > offsets[0]:
                self._texts.update(memoryview(encoded.buffers()[2])[offsets[0] : offsets[-1]])

    def digest(self) -> bytes:
        """Return the digest of all texts so far."""
        return hashlib.sha256(self._purpose + self._lengths.digest() + self._texts.digest()).digest()
