"""What a line of a click log looks like, and what is wrong with one that does not."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

# hex: eight hexadecimal digits; integer: 32 bits; hour: YYMMDDHH. All three are categories.
Kind = Literal["label", "id", "number", "hex", "integer", "hour"]

HOUR_FIELDS = ("hour_of_day", "weekday")
HOUR_FORMAT = "%y%m%d%H"

_WHOLE = re.compile(r"[+-]?[0-9]+")
_RANGES = {"id": (0, 2**64), "number": (-(2**63), 2**63), "integer": (-(2**31), 2**31)}
_WANTED = {
    "label": "a label; labels are 0 and 1",
    "id": "a record id, which is a whole number of up to 64 bits",
    "number": "a whole number of up to 64 bits",
    "hex": "a category of eight hexadecimal digits",
    "integer": "a whole number of up to 32 bits",
    "hour": "an hour as YYMMDDHH",
}


@dataclass(frozen=True)
class Layout:
    """The columns of one publisher's file, in their order, each with its kind.

    A file without an `id` column has its line numbers for ids. An `hour` column gives two categorical fields,
    `hour_of_day` and `weekday` (Monday is 0).
    """

    source: str
    columns: dict[str, Kind]
    delimiter: str
    header: bool

    @property
    def label(self) -> str:
        """Name of the label column."""
        return self.of_kind("label")[0]

    @property
    def id(self) -> str | None:
        """Name of the id column, if the file has one."""
        return next(iter(self.of_kind("id")), None)

    @property
    def has_hours(self) -> bool:
        """Whether a record says when it was made."""
        return bool(self.of_kind("hour"))

    @property
    def numeric_fields(self) -> tuple[str, ...]:
        """Names of the numeric fields."""
        return self.of_kind("number")

    @property
    def categorical_fields(self) -> tuple[str, ...]:
        """Names of the categorical fields."""
        hours = HOUR_FIELDS if self.has_hours else ()
        return (*hours, *self.of_kind("hex", "integer"))

    def of_kind(self, *kinds: Kind) -> tuple[str, ...]:
        """Return the columns of these kinds in file order."""
        return tuple(name for name, kind in self.columns.items() if kind in kinds)

    def complaint(self, line: str) -> str | None:
        """Return what is wrong with a line (given without its end), beginning with the column if there is one."""
        if not line:
            return "the line is empty"
        values = line.split(self.delimiter)
        if len(values) != len(self.columns):
            return f"{len(values)} columns instead of {len(self.columns)}"
        for (name, kind), value in zip(self.columns.items(), values, strict=True):
            if not _is_of_kind(value.strip(), kind):
                shown = repr(value if len(value) <= 40 else value[:37] + "...")
                return f"column {name!r}: {shown} is not {_WANTED[kind]}"
        return None


def _is_of_kind(value: str, kind: Kind) -> bool:
    if kind == "label":
        return value in ("0", "1")
    if not value:
        return kind in ("number", "hex", "integer")  # there, nothing stands for a missing value
    if kind == "hex":
        return re.fullmatch("[0-9a-fA-F]{8}", value) is not None
    if kind == "hour":
        return hour_and_weekday(value) is not None
    low, high = _RANGES[kind]
    return _WHOLE.fullmatch(value) is not None and low <= int(value) < high


def hour_and_weekday(text: str) -> tuple[int, int] | None:
    """Return hour of day and weekday (Monday is 0) of YYMMDDHH, or nothing if there is no such hour."""
    try:
        moment = datetime.strptime(text, HOUR_FORMAT)
    except ValueError:
        return None
    return (moment.hour, moment.weekday()) if len(text) == 8 else None
