"""Records as Python values, a few at a time, to the arrays that a half of the network reads.

This file needs `spelling.py` and NumPy and nothing else: an exported half comes with a copy of both.

    encoder = RowEncoder.load("encoder.json")
    categorical, numeric = encoder.encode([{"colour": "red", "weight": 1.5, "bought": "2024-02-29"}])

A record is a mapping from column to value: text (as in a CSV file), int, float, bool, date, datetime, or None for a
missing value. Each record is encoded by itself. Guarantee: the arrays are, bit for bit, those of a file with such
columns, because `tpsl.data.rawtable` makes the same fields of the same values.

Categories: a field of v kept values takes v + 2 rows of the embedding table: row 0 for unseen and rare values, row 1
for a missing value, then the values. A hashed field takes buckets + 1 rows: row 0 for a missing value, row 1 + h(value)
otherwise. A number is standardised by mean and deviation; one that is missing becomes 0.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tpsl.tables import spelling
from tpsl.tables.spelling import DAY_FIRST, HOURS, MONTH_FIRST, Spelling

VERSION = 1
UNSEEN, MISSING, FIRST_VALUE = 0, 1, 2

# A training value is at most sqrt(rows) deviations from the mean, so this cuts none of up to 100 million; a test value
# further away is an accident that would overflow in the network.
MOST_DEVIATIONS = 1e4

Numbers = npt.NDArray[np.float64]
Moments = npt.NDArray[np.datetime64]
Value: TypeAlias = Any
"""What a caller gives for a column of a record, and what its kind reads it as."""
Record = Mapping[str, Value]
Content: TypeAlias = dict[str, Any]
"""An encoder as `encoder.json` holds it."""

_DAYS_A_YEAR = 365.25
_MICROSECONDS_A_DAY = 86_400_000_000


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
    def is_constant(self) -> bool:
        """Whether the number was the same in all of training, up to rounding."""
        return self.deviation <= 1e-12 * abs(self.mean)

    @property
    def scale(self) -> float:
        """What values are divided by."""
        return 1.0 if self.is_constant else self.deviation

    def columns(self, values: Numbers) -> list[npt.NDArray[np.float32]]:
        """Return the standardised values, and the indicator if there is one; 0 stands for those that are missing."""
        missing = np.isnan(values)
        found = (values - self.mean) / self.scale
        np.clip(found, -MOST_DEVIATIONS, MOST_DEVIATIONS, out=found)
        found[missing] = 0.0
        return [found.astype(np.float32), *([missing.astype(np.float32)] if self.indicated else [])]


def stable_hash(text: str) -> int:
    """Return the 64-bit hash that bucket numbers come from: the same in every process, version and language."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


# ---- the fields that columns become


def signed_logarithm(values: Numbers) -> Numbers:
    """Return sign(x)·log(1 + |x|); NaN where there is no number."""
    return np.asarray(np.copysign(np.log1p(np.abs(values)), values))


def hour_of_day(moments: Moments) -> npt.NDArray[np.int64]:
    """Return the hour of each moment, -1 where it is missing."""
    return _known(moments, moments.astype(np.int64) // 3_600_000_000 % 24)


def weekday(moments: Moments) -> npt.NDArray[np.int64]:
    """Return the day of the week of each moment (Monday is 0), -1 where it is missing. 1970 began on a Thursday."""
    return _known(moments, (moments.astype(np.int64) // _MICROSECONDS_A_DAY + 3) % 7)


def _known(moments: Moments, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.where(np.isnat(moments), -1, values)


def _days(moments: Moments) -> Numbers:
    """Return days since 1970."""
    days = moments.astype(np.int64).astype(np.float64) / _MICROSECONDS_A_DAY
    return np.where(np.isnat(moments), np.nan, days)


def _of_year(wave: Callable[[Numbers], Numbers], moments: Moments) -> Numbers:
    """Return the sine or cosine of the day of the year, which goes round in a year."""
    day = (moments.astype("M8[D]") - moments.astype("M8[Y]").astype("M8[D]")).astype(np.int64) + 1
    return wave(np.where(np.isnat(moments), np.nan, day) * (2 * np.pi / _DAYS_A_YEAR))


@dataclass(frozen=True)
class RowKind:
    """How values of a kind are read one by one, and which fields a column of them becomes.

    Fields are called by the column's name and what stands before them here. Categories of moments are whole numbers as
    text.
    """

    read: Callable[[Value, Spelling], Value]
    categories: Mapping[str, Callable[[Moments], npt.NDArray[np.int64]] | None] = field(default_factory=dict)
    numbers: Mapping[str, Callable[[Value], Numbers]] = field(default_factory=dict)
    is_moment: bool = False


_TEXT: Mapping[str, None] = {"": None}
_CLOCK: Mapping[str, Callable[[Moments], npt.NDArray[np.int64]]] = {" hour": hour_of_day, " weekday": weekday}
_DATE: Mapping[str, Callable[[Value], Numbers]] = {
    "": _days,
    " sine of year": partial(_of_year, np.sin),
    " cosine of year": partial(_of_year, np.cos),
}
ROW_KINDS = {
    "category": RowKind(spelling.category, _TEXT),
    "number": RowKind(spelling.number, {}, {"": np.asarray}),
    "date": RowKind(spelling.moment, _CLOCK, _DATE, True),
    "day_first_date": RowKind(partial(spelling.moment, order=DAY_FIRST), _CLOCK, _DATE, True),
    "month_first_date": RowKind(partial(spelling.moment, order=MONTH_FIRST), _CLOCK, _DATE, True),
    "count": RowKind(spelling.number, {}, {"": signed_logarithm}),
    "hour": RowKind(partial(spelling.moment, order=HOURS), _CLOCK, {}, True),
}


# ---- encoding


class RowEncoder:
    """What was learned from one party's training rows, applied to a few records at a time."""

    def __init__(self, content: Content) -> None:
        """Take an encoder as `encoder.json` holds it; one of another version, or with an unknown kind, is an error."""
        if content["version"] != VERSION:
            raise ValueError(f"the encoder is of version {content['version']}, and this program reads {VERSION}")
        unknown = [kind for kind in content["columns"].values() if kind not in ROW_KINDS]
        if unknown:
            raise ValueError(f"there is no kind of column {unknown[0]!r}, only {', '.join(ROW_KINDS)}")
        missing, styles = frozenset(["", *content["missing"]]), content["styles"]
        self._columns = {
            name: (ROW_KINDS[kind], Spelling(missing, content["decimal"], styles.get(name, "")))
            for name, kind in content["columns"].items()
        }
        self._standards = {name: Standard(**part) for name, part in content["numbers"].items()}
        self._rows_of: dict[str, Callable[[str | None], int]] = {}
        first = 0
        for name, part in content["categories"].items():
            indexed = "values" in part
            self._rows_of[name] = _indexed(part["values"], first) if indexed else _hashed(part["buckets"], first)
            first += FIRST_VALUE + len(part["values"]) if indexed else 1 + part["buckets"]

    @classmethod
    def load(cls, path: str | Path) -> "RowEncoder":
        """Read an exported encoder."""
        return cls(json.loads(Path(path).read_text(encoding="utf-8")))

    def encode(self, records: Sequence[Record]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return categories [n, F] and numbers [n, M]; columns that were not learned from do not matter.

        A column that a record lacks, or a value that cannot be read, is a `ValueError` of one sentence.
        """
        categories: dict[str, list[int]] = {}
        numbers: dict[str, list[npt.NDArray[np.float32]]] = {}
        for name, (kind, spelled) in self._columns.items():
            values = _as_array(_read(records, name, kind, replace(spelled)), kind)
            for ending, make in kind.categories.items():
                texts = values if make is None else _as_texts(make(values))
                categories[name + ending] = list(map(self._rows_of[name + ending], texts))
            for ending, number_of in kind.numbers.items():
                numbers[name + ending] = self._standards[name + ending].columns(number_of(values))
        rows = [categories[name] for name in self._rows_of]
        columns = [column for name in self._standards for column in numbers[name]]
        return (
            np.array(rows, dtype=np.int32).reshape(len(rows), len(records)).T.copy(),
            np.array(columns, dtype=np.float32).reshape(len(columns), len(records)).T.copy(),
        )


def _read(records: Sequence[Record], name: str, kind: RowKind, spelled: Spelling) -> list[Value]:
    """Return the values of a column as its kind reads them."""
    values = []
    for number, record in enumerate(records, 1):
        if name not in record:
            raise ValueError(f"record {number}: there is no column {name!r}, which the encoder has learned from")
        try:
            values.append(kind.read(record[name], spelled))
        except ValueError as error:
            raise ValueError(f"record {number}: column {name!r}: {error}") from None
    return values


def _as_array(values: list[Value], kind: RowKind) -> Value:
    """Return what was read in the form that fields are made of: moments, numbers, or texts as they are."""
    if kind.is_moment:
        return np.array(values, dtype="M8[us]")
    return np.array(values, np.float64) if kind.numbers else values


def _as_texts(numbers: npt.NDArray[np.int64]) -> list[str | None]:
    return [None if number < 0 else str(number) for number in numbers.tolist()]


def _indexed(values: Sequence[str], first: int) -> Callable[[str | None], int]:
    rows: dict[str | None, int] = {text: row for row, text in enumerate(values, first + FIRST_VALUE)}
    rows[None] = first + MISSING
    unseen = first + UNSEEN
    return lambda text: rows.get(text, unseen)


def _hashed(buckets: int, first: int) -> Callable[[str | None], int]:
    return lambda text: first if text is None else first + 1 + stable_hash(text) % buckets
