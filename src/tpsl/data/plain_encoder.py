"""Records as plain Python values, a few at a time, to the arrays that a half of the network reads.

This file needs Python 3.11 and NumPy and nothing else: an exported half comes with a copy of it, `encode.py`.

    encoder = PlainEncoder.load("encoder.json")
    categorical, numeric = encoder.encode([{"colour": "red", "weight": 1.5, "bought": "2024-02-29"}])

A record is a mapping from column to value: text (as in a CSV file), int, float, bool, date, datetime, or None for a
missing value. Each record is encoded by itself. Guarantee: the arrays are, bit for bit, those of a file with such
columns.

Categories: a field of v kept values takes v + 2 rows of the embedding table: row 0 for unseen and rare values, row 1
for a missing value, then the values. A hashed field takes buckets + 1 rows: row 0 for a missing value, row 1 + h(value)
otherwise. A number is standardised by mean and deviation; one that is missing becomes 0.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

VERSION = 1
UNSEEN, MISSING, FIRST_VALUE = 0, 1, 2

# A training value is at most sqrt(rows) deviations from the mean, so this cuts none of up to 100 million; a test value
# further away is an accident that would overflow in the network.
MOST_DEVIATIONS = 1e4

DAYS_A_YEAR = 365.25
MICROSECONDS_A_DAY = 86_400_000_000

Numbers = npt.NDArray[np.float64]
Record = Mapping[str, Any]

_REMEMBERED, _LONGEST_REMEMBERED = 1 << 12, 64
"""How many hashes of a field's values are kept, and of how long texts: others may send any."""


@dataclass(frozen=True)
class Standard:
    """What standardises a number: mean and deviation in training, and whether one was missing there."""

    mean: float
    deviation: float
    indicated: bool

    def column_names(self, name: str) -> tuple[str, ...]:
        """Return the names of the encoded columns that `name` becomes."""
        return (name, f"{name} missing") if self.indicated else (name,)

    @property
    def scale(self) -> float:
        """What values are divided by. A column that is constant up to rounding carries nothing but dust: by 1."""
        return self.deviation if self.deviation > 1e-12 * abs(self.mean) else 1.0

    def columns(self, values: Numbers) -> list[npt.NDArray[np.float32]]:
        """Return the standardised values, and the indicator if there is one."""
        encoded, missing = standardised(values, self.mean, self.scale)
        return [encoded, missing.astype(np.float32)] if self.indicated else [encoded]


def standardised(
    values: Numbers, mean: float | Numbers, scale: float | Numbers
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return (values - mean) / scale, 0 for those that are missing, and which are."""
    missing = np.isnan(values)
    found = values - mean
    found /= scale
    np.clip(found, -MOST_DEVIATIONS, MOST_DEVIATIONS, out=found)
    found[missing] = 0.0
    return found.astype(np.float32), missing


def stable_hash(text: str) -> int:
    """Return the 64-bit hash that bucket numbers come from: the same in every process, version and language."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


class PlainEncoder:
    """What was learned from one party's training rows, applied to a few records at a time."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        """Take an encoder as `encoder.json` holds it; one of another version, or with an unknown kind, is an error."""
        if content["version"] != VERSION:
            raise ValueError(f"the encoder is of version {content['version']}, and this program reads {VERSION}")
        unknown = [kind for kind in content["columns"].values() if kind not in _KINDS]
        if unknown:
            raise ValueError(f"there is no kind of column {unknown[0]!r}, only {', '.join(_KINDS)}")
        self._columns = {name: _KINDS[kind] for name, kind in content["columns"].items()}
        self._missing = frozenset(content["missing"])
        self._rows_of: dict[str, Callable[[str | None], int]] = {}
        self._row_of_value: dict[str, dict[str | None, int]] = {}
        """Of each field that is a column as it stands: the row of every value that was learned, and of missing ones."""
        first = 0
        for name, part in content["categories"].items():
            indexed = "values" in part
            self._rows_of[name] = _indexed(part["values"], first) if indexed else _hashed(part["buckets"], first)
            if indexed and content["columns"].get(name) == "category":
                rows = {text: row for row, text in enumerate(part["values"], first + FIRST_VALUE)}
                self._row_of_value[name] = rows | dict.fromkeys((*self._missing, None), first + MISSING)
            first += FIRST_VALUE + len(part["values"]) if indexed else 1 + part["buckets"]
        standards = {name: Standard(**part) for name, part in content["numbers"].items()}
        self._numbers = list(standards)
        self._means = np.array([[standard.mean] for standard in standards.values()])
        self._scales = np.array([[standard.scale] for standard in standards.values()])
        # A number is followed by its indicator, if it has one.
        self._indicated = np.array([standard.indicated for standard in standards.values()], dtype=bool)
        self._places = np.arange(len(standards)) + np.cumsum(self._indicated) - self._indicated

    @classmethod
    def load(cls, path: str | Path) -> "PlainEncoder":
        """Read an exported encoder."""
        return cls(json.loads(Path(path).read_text(encoding="utf-8")))

    def encode(self, records: Sequence[Record]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return categories [n, F] and numbers [n, M]; columns that were not learned from do not matter.

        A column that a record lacks, or a value that cannot be read, is a `ValueError` of one sentence.
        """
        rows: dict[str, Iterable[int]] = {}
        numbers: dict[str, Numbers] = {}
        for name, kind in self._columns.items():
            given = self._given(records, name)
            if name in self._row_of_value:
                rows[name] = self._rows_of_texts(name, given)
                continue
            read = _plain_numbers(given) if kind is _KINDS["number"] else None
            if read is not None:
                numbers[name] = read
                continue
            values = self._read(given, name, kind)
            for ending, make in kind.categories.items():
                rows[name + ending] = map(self._rows_of[name + ending], map(make, values))
            numbers |= {name + ending: make(values) for ending, make in kind.numbers.items()}
        categorical = [list(rows[name]) for name in self._rows_of]
        return (
            np.array(categorical, dtype=np.int32).reshape(len(categorical), len(records)).T.copy(),
            self._standardised(numbers, len(records)),
        )

    def _standardised(self, numbers: Mapping[str, Numbers], records: int) -> npt.NDArray[np.float32]:
        """Return all numbers of records, each with its indicator, if it has one, [n, M]."""
        together = np.array([numbers[name] for name in self._numbers]).reshape(len(self._numbers), records)
        encoded = np.empty((len(self._numbers) + int(self._indicated.sum()), records), np.float32)
        if len(self._numbers):
            encoded[self._places], missing = standardised(together, self._means, self._scales)
            encoded[self._places[self._indicated] + 1] = missing[self._indicated]
        return encoded.T.copy()

    def _given(self, records: Sequence[Record], name: str) -> list[Any]:
        try:
            return [record[name] for record in records]
        except KeyError:
            number = next(number for number, record in enumerate(records, 1) if name not in record)
            raise ValueError(
                f"record {number}: there is no column {name!r}, which the encoder has learned from"
            ) from None

    def _rows_of_texts(self, name: str, given: list[Any]) -> list[int]:
        """Return the rows of a column of categories; most values are texts that were learned."""
        known = self._row_of_value[name]
        try:
            rows = list(map(known.get, given))
        except TypeError:  # a list or a mapping
            rows = [None] * len(given)
        if None not in rows:
            return rows  # type: ignore[return-value]
        texts = self._read(given, name, _KINDS["category"])
        return [self._rows_of[name](text) if row is None else row for row, text in zip(rows, texts, strict=True)]

    def _read(self, given: list[Any], name: str, kind: "_Kind") -> list[Any]:
        """Return the values of a column as its kind reads them."""
        read, missing = kind.read, self._missing
        values = []
        for number, value in enumerate(given, 1):
            try:
                values.append(read(value, missing))
            except ValueError as error:
                raise ValueError(f"record {number}: column {name!r}: {error}") from None
        return values


def _plain_numbers(given: list[Any]) -> Numbers | None:
    """Return numbers of a column that needs no reading: floats, ints and None within float32; None if it does."""
    if not set(map(type, given)) <= {float, int, type(None)}:
        return None
    try:
        values = np.array(given, dtype=np.float64)
    except OverflowError:
        return None
    return None if (np.abs(values) > _LARGEST).any() else values


def _indexed(values: Sequence[str], first: int) -> Callable[[str | None], int]:
    rows: dict[str | None, int] = {text: row for row, text in enumerate(values, first + FIRST_VALUE)}
    rows[None] = first + MISSING
    unseen = first + UNSEEN
    return lambda text: rows.get(text, unseen)


def _hashed(buckets: int, first: int) -> Callable[[str | None], int]:
    def row(text: str) -> int:
        return first + 1 + stable_hash(text) % buckets

    remembered = lru_cache(_REMEMBERED)(row)

    def row_or_missing(text: str | None) -> int:
        if text is None:
            return first
        return remembered(text) if len(text) <= _LONGEST_REMEMBERED else row(text)

    return row_or_missing


@dataclass(frozen=True)
class _Kind:
    """`read` checks one value and gives it its type, None for a missing one; the fields are made of that."""

    read: Callable[[Any, frozenset[str]], Any]
    categories: Mapping[str, Callable[[Any], str | None]] = field(default_factory=dict)
    numbers: Mapping[str, Callable[[list[Any]], Numbers]] = field(default_factory=dict)


def _text(value: Any, missing: frozenset[str]) -> str | None:
    """Read a category."""
    if value is None:
        return None
    if type(value) is not str:
        value = _as_text(_plain(value))
    return None if value in missing else value


def _number(value: Any, missing: frozenset[str]) -> float | None:
    """Read a number within float32; NaN is missing, too."""
    if type(value) is float:
        number = value
    elif isinstance(value, str):
        text = value.strip()
        if text in missing:
            return None
        try:
            # Python would also read 1_000 and digits of other scripts.
            number = float(text if text.isascii() and "_" not in text else "-")
        except ValueError:
            raise _unreadable(text, "a number") from None
    elif value is None:
        return None
    elif isinstance(_plain(value), int | float):
        number = float(value) if not isinstance(value, int) or abs(value) < 2**128 else math.inf
    else:
        raise ValueError(f"{_shown(value)} is of type {type(value).__name__}, which is not numeric")
    if abs(number) > _LARGEST:
        raise ValueError(f"the number {number} is too large for float32")
    return number


def _whole_number(value: Any, missing: frozenset[str]) -> int | None:
    """Read a whole number of up to 64 bits."""
    if isinstance(value, str):
        text = value.strip()
        return None if text in missing else _integer_in(text, 64, _unreadable(text, "a whole number of up to 64 bits"))
    if value is None:
        return None
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise ValueError(f"{_shown(value)} is of type {type(value).__name__}, which is not a type of whole numbers")
    if not -(2**63) <= plain < 2**63:
        raise ValueError(f"{plain} is not a whole number of up to 64 bits")
    return plain


def _hexadecimal(value: Any, missing: frozenset[str]) -> str | None:
    """Read a category of eight hexadecimal digits."""
    text = _text(value, missing)
    if text is None:
        return None
    digits = text.strip()
    if not _HEXADECIMAL.fullmatch(digits):
        raise ValueError(f"{_shown(text)} is not a category of eight hexadecimal digits")
    return digits.lower()


def _integer(value: Any, missing: frozenset[str]) -> str | None:
    """Read a category that is a whole number of up to 32 bits."""
    text = _text(value, missing)
    if text is None:
        return None
    return str(_integer_in(text.strip(), 32, ValueError(f"{_shown(text)} is not a whole number of up to 32 bits")))


def _moment(value: Any, missing: frozenset[str]) -> datetime | None:
    """Read a date or timestamp, or ISO 8601 text of one, in UTC; a time without a zone is taken as it stands."""
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip()
        if text in missing:
            return None
        try:
            return _in_utc(datetime.fromisoformat(text if _ISO_8601.fullmatch(text) else "-"))
        except (ValueError, OverflowError):
            raise ValueError(f"{_shown(text)} cannot be read as a time (an ISO 8601 date or timestamp)") from None
    if isinstance(value, datetime):
        return _in_utc(value)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    raise ValueError(f"{_shown(value)} is of type {type(value).__name__}, and dates must be dates, timestamps or text")


def _moment_in_order(order: "DateOrder") -> Callable[[Any, frozenset[str]], datetime | None]:
    def read(value: Any, missing: frozenset[str]) -> datetime | None:
        if isinstance(value, str) and value.strip() not in missing:
            value = value.strip()
            for pattern, replacement in order:
                value = re.sub(pattern, replacement, value)
        return _moment(value, missing)

    return read


def _hour(value: Any, missing: frozenset[str]) -> datetime | None:
    """Read an hour as YYMMDDHH."""
    if not isinstance(value, str):
        return _moment(value, missing)
    found = moment_of_hour(value.strip())
    if found is None:
        raise ValueError(f"{_shown(value)} is not an hour as YYMMDDHH")
    return found


def moment_of_hour(text: str) -> datetime | None:
    """Return when an hour written as YYMMDDHH begins; None if it is none."""
    try:
        return datetime.strptime(text, "%y%m%d%H") if len(text) == 8 else None
    except ValueError:
        return None


def _integer_in(text: str, bits: int, fault: ValueError) -> int:
    """Return the whole number that a text is, decimal or hexadecimal; hexadecimal digits are those of its bits."""
    if _DECIMAL.fullmatch(text):
        number = int(text)
    elif _WITH_0X.fullmatch(text) and len(text) <= 2 + bits // 4:
        number = int(text, 16)
        number -= 2**bits if number >= 2 ** (bits - 1) else 0
    else:
        raise fault
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise fault
    return number


def _plain(value: Any) -> Any:
    """Return the Python value that a NumPy scalar holds."""
    return value.item() if isinstance(value, np.generic) else value


def _as_text(value: Any) -> str:
    """Return a value as Apache Arrow writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_as_text(value)
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    raise ValueError(f"{_shown(value)} is of type {type(value).__name__}, which cannot be read as text")


def _float_as_text(value: float) -> str:
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    shortest = Decimal(repr(value)).normalize()
    return f"{shortest:f}" if -6 <= shortest.adjusted() < 10 else f"{shortest:e}"


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _unreadable(text: str, what: str) -> ValueError:
    return ValueError(f"{_shown(text)} is not {what} (if it stands for a missing value, give it as missing)")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 42 else f"{text[:38]}...{text[-1]}"


def _same(value: str | None) -> str | None:
    return value


def _as_numbers(values: Iterable[float | None]) -> Numbers:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _logarithms(values: list[Any]) -> Numbers:
    plain = _as_numbers(values)
    return np.asarray(np.copysign(np.log1p(np.abs(plain)), plain))


def _days(moments: list[Any]) -> Numbers:
    since = [None if moment is None else float((moment - _EPOCH) // _MICROSECOND) for moment in moments]
    return _as_numbers(since) / MICROSECONDS_A_DAY


def _of_year(wave: Callable[[Numbers], Numbers]) -> Callable[[list[Any]], Numbers]:
    def field(moments: list[Any]) -> Numbers:
        days = [None if moment is None else moment.timetuple().tm_yday for moment in moments]
        return wave(_as_numbers(days) * (2 * np.pi / DAYS_A_YEAR))

    return field


_EPOCH, _MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)
_LARGEST = float(np.finfo(np.float32).max)
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{8}")
_DECIMAL, _WITH_0X = re.compile(r"-?0*[0-9]{1,19}"), re.compile(r"0[xX][0-9a-fA-F]+")
_ISO_8601 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([ T]([01][0-9]|2[0-3])(:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?"
)
_CLOCK: Mapping[str, Callable[[Any], str | None]] = {
    " hour": lambda moment: None if moment is None else str(moment.hour),
    " weekday": lambda moment: None if moment is None else str(moment.weekday()),
}
DateOrder = Sequence[tuple[str, str]]
_TWO_DIGITS = (r"^([0-9]{4})-([0-9])-", r"\1-0\2-"), (r"^([0-9]{4}-[0-9]{2})-([0-9])( |T|$)", r"\1-0\2\3")
_DAY_MONTH_YEAR = r"^([0-9]{1,2})[./-]([0-9]{1,2})[./-]([0-9]{4})"
SHORT_YEAR = r"^([0-9]{1,2})[./]([0-9]{1,2})[./]([0-9]{2})( |T|$)"
"""A date whose year has two digits; not with hyphens, as 25-12-31 is more likely to begin with the year."""
_SHORT_1900S = SHORT_YEAR.replace("[0-9]{2}", "69|[7-9][0-9]")
DAY_FIRST: DateOrder = (
    (_SHORT_1900S, r"19\3-\2-\1\4"),
    (SHORT_YEAR, r"20\3-\2-\1\4"),
    (_DAY_MONTH_YEAR, r"\3-\2-\1"),
    *_TWO_DIGITS,
)
MONTH_FIRST: DateOrder = (
    (_SHORT_1900S, r"19\3-\1-\2\4"),
    (SHORT_YEAR, r"20\3-\1-\2\4"),
    (_DAY_MONTH_YEAR, r"\3-\1-\2"),
    *_TWO_DIGITS,
)
"""What makes ISO 8601 of dates as 31.12.2025 or 12/31/2025: patterns in their order, and what takes their place.

A year of two digits is one from 1969 to 2068, as POSIX reads them (`%y` of `strptime`).
"""
_DATE_NUMBERS: Mapping[str, Callable[[list[Any]], Numbers]] = {
    "": _days,
    " sine of year": _of_year(np.sin),
    " cosine of year": _of_year(np.cos),
}
_KINDS = {
    "category": _Kind(_text, {"": _same}),
    "number": _Kind(_number, {}, {"": _as_numbers}),
    "date": _Kind(_moment, _CLOCK, _DATE_NUMBERS),
    "day_first_date": _Kind(_moment_in_order(DAY_FIRST), _CLOCK, _DATE_NUMBERS),
    "month_first_date": _Kind(_moment_in_order(MONTH_FIRST), _CLOCK, _DATE_NUMBERS),
    "count": _Kind(_whole_number, {}, {"": _logarithms}),
    "hexadecimal": _Kind(_hexadecimal, {"": _same}),
    "integer": _Kind(_integer, {"": _same}),
    "hour": _Kind(_hour, _CLOCK),
}
