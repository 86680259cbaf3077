"""What one value of a column means, whether it comes from CSV, Parquet, JSON, a data frame or a Python record.

This is the only definition. `tpsl.tables.columns` applies it to whole columns, and leaves texts to PyArrow only where
both read them alike; `tpsl.data.row_encoder` applies it to a few records. This file needs Python 3.11 and NumPy and
nothing else, because an exported half comes with a copy of it.

| kind | values | missing |
|---|---|---|
| category | text; integers; 1.0 is `1`; True, TRUE and a Boolean are `true` | None, NaN, "", the texts in `missing` |
| number | floats, integers, Booleans (1 and 0) and texts of them, within float32 | the same, and the text `nan` |
| date | dates, timestamps, ISO 8601 texts; also 31.12.2025 or 12/31/2025 where the kind says the order | the same |

What depends on the *column* is its `Spelling`: it is fixed for all rows, saved with the encoder, and a row that is
written otherwise is an error, in whatever file or block it stands.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np

LARGEST = float(np.finfo(np.float32).max)
PLAIN_NUMBER = re.compile(r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$")
THOUSANDS = {
    ".": re.compile(r"^[+-]?[0-9]{1,3}(,[0-9]{3})+\.[0-9]+$"),
    ",": re.compile(r"^[+-]?[0-9]{1,3}(\.[0-9]{3})+,[0-9]+$"),
}
"""By decimal sign: only what stands before a decimal sign is sure to be thousands."""
POINTS_ONLY = re.compile(r"^[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+$")
TRUTH = {"true": 1.0, "false": 0.0}
_DAY, _CLOCK = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[ T]([01][0-9]|2[0-3])(:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?"
LOCAL_TIME = re.compile(f"^{_DAY}({_CLOCK})?$")
ZONED_TIME = re.compile(f"^{_DAY}{_CLOCK}(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)$")
SAME_CATEGORY = re.compile(r"^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|-?(0|[1-9][0-9]*)\.0)$")
"""Texts that `canonical_text` may change. Letters by name: regular expressions differ in which fold to an s."""
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""What is stripped from numbers, dates and labels."""
_WHOLE_LABEL = re.compile(r"[+-]?[0-9]+(\.0*)?")
_LARGEST_WHOLE = 1e15
_LONGEST_SHOWN = 40
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_ADVICE = "if it stands for a missing value, list it in `missing`"

DateOrder = Sequence[tuple[str, str]]
"""What turns dates of another form into ISO 8601: patterns in their order, and their replacements.

A year of two digits is one from 1969 to 2068, as POSIX reads them (`%y` of `strptime`).
"""
SHORT_YEAR = r"^([0-9]{1,2})[./]([0-9]{1,2})[./]([0-9]{2})( |T|$)"
"""A date whose year has two digits; not with hyphens, as 25-12-31 is more likely to begin with the year."""


def _year_last(day_and_month: str) -> DateOrder:
    return (
        (SHORT_YEAR.replace("[0-9]{2}", "69|[7-9][0-9]"), rf"19\3-{day_and_month}\4"),
        (SHORT_YEAR, rf"20\3-{day_and_month}\4"),
        (r"^([0-9]{1,2})[./-]([0-9]{1,2})[./-]([0-9]{4})", rf"\3-{day_and_month}"),
        (r"^([0-9]{4})-([0-9])-", r"\1-0\2-"),
        (r"^([0-9]{4}-[0-9]{2})-([0-9])( |T|$)", r"\1-0\2\3"),
    )


DAY_FIRST, MONTH_FIRST = _year_last(r"\2-\1"), _year_last(r"\1-\2")
"""31.12.2025 and 12/31/2025."""
_HOUR = r"([0-9]{2})([0-9]{2})([0-9]{2})$"
HOURS: DateOrder = (rf"^(69|[7-9][0-9]){_HOUR}", r"19\1-\2-\3T\4"), (rf"^([0-9]{{2}}){_HOUR}", r"20\1-\2-\3T\4")
"""YYMMDDHH."""

STYLES = {
    "grouped": "numbers such as 1.234,56, beside which it could mean either: write it without points, or with decimals",
    "points": "numbers such as 1.234, beside which it could mean either: write them without points, or with decimals",
    "local": "times without a zone",
    "zoned": "times with a zone",
    "numeric": "numbers for times",
}
"""Ways of writing that exclude each other within a column, and what they are called in an error."""


@dataclass
class Spelling:
    """How the values of one column are written.

    `missing` texts stand for a missing value; the empty text always does. `decimal` is the decimal sign, a comma in
    tables whose values are separated by semicolons. `style` is what the rows before have shown where two ways of
    writing exclude each other ("" if none has): it is fixed by the first row that shows one.
    """

    missing: frozenset[str] = frozenset([""])
    decimal: str = "."
    style: str = ""

    def see(self, style: str) -> None:
        """Note how a row is written; a row that contradicts an earlier one is a `ValueError` of one sentence."""
        if self.style not in ("", style):
            raise ValueError(f"other rows of the column have {STYLES[self.style]}")
        self.style = style


def category(value: object, spelling: Spelling) -> str | None:
    """Return a category as text, None if it is missing."""
    text = value if type(value) is str else _as_text(value)
    return None if text is None or text in spelling.missing else canonical_text(text)


def canonical_text(text: str) -> str:
    """Return the one spelling of texts that mean the same category: truth values, and 1.0 for 1."""
    if text[-1:] not in ("e", "E", "0") or not SAME_CATEGORY.match(text):
        return text
    return text.lower() if text[-1] != "0" else "0" if text == "-0.0" else text[:-2]


def number(value: object, spelling: Spelling) -> float | None:
    """Return a number within float32; None or NaN if it is missing."""
    value = _known(value, spelling)
    if value is None:
        return None
    if isinstance(value, str):
        found = _number_in(value, spelling)
    elif isinstance(value, int | float | Decimal):
        found = float(value) if not isinstance(value, int) or abs(value) < 2**128 else math.inf
    else:
        raise ValueError(f"{shown(value)} is of type {type(value).__name__}, which is not numeric")
    if abs(found) > LARGEST:
        raise ValueError(f"the number {found} is too large for float32")
    return found


def _number_in(text: str, spelling: Spelling) -> float:
    if spelling.decimal == "." and PLAIN_NUMBER.match(text):
        return float(text)
    lower = text.lower()
    if lower in TRUTH:
        return TRUTH[lower]
    if lower in ("nan", "inf", "-inf", "+inf"):
        return float(lower)
    plain, style = text, ""
    if THOUSANDS[spelling.decimal].match(text):
        plain, style = text.replace("." if spelling.decimal == "," else ",", ""), "grouped"
    elif POINTS_ONLY.match(text):
        style = "points"
    if spelling.decimal == ",":
        plain = plain.replace(",", ".")
        if style:
            _see(style, text, spelling)
    if not PLAIN_NUMBER.match(plain):
        comma = "numbers have a decimal point, or a comma where semicolons separate the columns"
        raise ValueError(f"{shown(text)} is not a number ({comma if _DECIMAL_COMMA.fullmatch(text) else _ADVICE})")
    return float(plain)


def _see(style: str, text: str, spelling: Spelling) -> None:
    try:
        spelling.see(style)
    except ValueError as error:
        raise ValueError(f"{shown(text)} is written differently: {error}") from None


def moment(value: object, spelling: Spelling, order: DateOrder = ()) -> datetime | None:
    """Return a date or timestamp in UTC, None if it is missing; a time without a zone is taken as it stands."""
    value = _known(value, spelling)
    if isinstance(value, str):
        return _moment_in(value, spelling, order)
    if value is None:
        return None
    if not isinstance(value, date):
        fault = "and dates must be dates, timestamps or text"
        raise ValueError(f"{shown(value)} is of type {type(value).__name__}, {fault}")
    found = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    spelling.see("local" if found.tzinfo is None else "zoned")
    return _in_utc(found)


def _moment_in(text: str, spelling: Spelling, order: DateOrder = ()) -> datetime:
    written = text
    for pattern, replacement in order:
        written = re.sub(pattern, replacement, written)
    style = "local" if LOCAL_TIME.match(written) else "zoned" if ZONED_TIME.match(written) else None
    try:
        found = _in_utc(datetime.fromisoformat(written if style else "-"))
    except (ValueError, OverflowError):
        raise ValueError(f"{shown(text)} cannot be read as a time (an ISO 8601 date or timestamp)") from None
    _see(style or "local", text, spelling)
    return found


def label_text(value: object) -> str | None:
    """Return a label as it is compared with the names of classes, None if it is missing: a whole number is `1`."""
    text = value.strip(WHITE_SPACE) if isinstance(value, str) else _as_text(value)
    if not text:
        return None
    return str(int(text.partition(".")[0])) if _WHOLE_LABEL.fullmatch(text) else text


def shown(value: object) -> str:
    """Return a value as an error shows it: quoted, and the end of a long one is left out."""
    text = value if not isinstance(value, str) or len(value) <= _LONGEST_SHOWN else value[: _LONGEST_SHOWN - 3] + "..."
    return repr(text)


def _as_text(value: object) -> str | None:
    """Return the text of a value that is none, None if it is missing."""
    value = _python(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value) and value == math.floor(value) and abs(value) < _LARGEST_WHOLE:
        return str(int(value))
    if isinstance(value, int | float | Decimal | date):
        return str(value)
    raise ValueError(f"{shown(value)} is of type {type(value).__name__}, which cannot be read as text")


def _known(value: object, spelling: Spelling) -> object:
    """Return the Python value of a number or date, a text without white space around it; None if it is missing."""
    if isinstance(value, str):
        text = value.strip(WHITE_SPACE)
        return None if text in spelling.missing else text
    return _python(value)


def _python(value: object) -> object:
    """Return the Python value of a NumPy scalar, and None for every form of missing: NaN, NaT and NA."""
    if isinstance(value, np.generic):
        value = float(str(value)) if isinstance(value, np.float16 | np.float32) else value.item()
    if isinstance(value, float) and value != value:
        return None
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def _in_utc(found: datetime) -> datetime:
    return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
