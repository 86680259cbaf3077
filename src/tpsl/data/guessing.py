"""What the columns of a table seem to be: guesses from its first records, for a person to look at and to change.

A guess never fails a file: what nobody can use is left out, with the reason. Whether all of a file is as its beginning
says is for `tpsl.data.check` to find out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.id_columns import ID_LIKE
from tpsl.tables.columns import is_text, parsed_or_null, plain, reordered, value_type, with_points
from tpsl.tables.locations import Location
from tpsl.tables.reading import Dialect, column_names, dialect_of, read_blocks
from tpsl.tables.spelling import DAY_FIRST, MONTH_FIRST, SHORT_YEAR

SAMPLE_ROWS = 100_000
"""Records that are looked at."""
_FEW = 20
"""Fewer records say nothing about whether a category is an id."""
_RARELY = 0.05
_ODD_TEXTS = 3
"""Where nearly all values are numbers or dates, this many other texts at most stand for a missing value."""
ABSENT = ("", "NA", "N/A", "n/a", "na", "NaN", "nan", "NULL", "null", "#N/A", "?", "-", "--", "n.a.")
"""Texts that stand for a missing value in any column."""
_TRIED = 200
_NUMERIC_TYPES = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean
_ID_NAME = re.compile(r"(^|[_\W])(id|uuid|guid|key|nr|no|number|ref|reference)$")
_CODE_NAME = re.compile(r"(^|[_\W])(zip|postal|postcode|plz|code)$")
_SIGNS = r"[$€£¥%'\s,]|CHF|EUR|USD|GBP"
"""What may stand in numbers besides digits, where people read them."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

KindOfUse = Literal["number", "category", "date"]


@dataclass(frozen=True)
class Sample:
    """The first records of a table, a `pa.Array` for each column, as they were read."""

    path: Location
    dialect: Dialect
    columns: Mapping[str, Any]
    rows: int
    is_whole: bool = True
    """Whether these are all records of the table."""


@dataclass(frozen=True)
class ColumnGuess:
    """What a column seems to be: of a kind that features are made of, or None with the `reason` to leave it out.

    `absent` are the texts that stand for a missing value in it, `missing` the records that have none. `date_orders` are
    those in which all its dates can be read, `short_year` is one of them whose year has two digits.
    """

    name: str
    kind: KindOfUse | None
    distinct: int
    missing: int
    reason: str = ""
    absent: tuple[str, ...] = ()
    date_orders: tuple[str, ...] = ()
    short_year: str = ""


def sample_of(path: Location) -> Sample:
    """Return the first records of a table; columns whose names repeat or are empty are left out."""
    dialect = dialect_of(path)
    names = column_names(path, dialect)
    usable = [name for name in names if name and names.count(name) == 1]
    blocks, rows, is_whole = list[Any](), 0, True
    for block in read_blocks(path, usable, dialect):
        if rows >= SAMPLE_ROWS:
            is_whole = False
            break
        blocks.append(block.columns)
        rows += block.rows
    columns = {name: _joined([block[name] for block in blocks]) for name in usable}
    return Sample(path, dialect, columns, rows, is_whole)


def _joined(pieces: list[Any]) -> Any:
    whole = pa.chunked_array([plain(piece) for piece in pieces]).combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole


def guess_columns(sample: Sample) -> dict[str, ColumnGuess]:
    """Return what each column of a table seems to be."""
    return {name: _guess(name, values, sample) for name, values in sample.columns.items()}


def looks_like_id(name: str) -> bool:
    """Return whether a column is called as ids are."""
    return _ID_NAME.search(_CAMEL.sub("_", name).lower()) is not None


def _guess(name: str, values: Any, sample: Sample) -> ColumnGuess:
    kind = value_type(values)
    if is_text(kind):
        return _guess_text(name, pc.utf8_trim_whitespace(values), sample)
    missing = int(pc.sum(pc.is_null(values, nan_is_null=True)).as_py() or 0)
    try:
        found = ColumnGuess(name, None, len(values.drop_null().unique()), missing)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return ColumnGuess(name, None, 0, missing, f"is of type {kind}")
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _unless_useless(replace(found, kind="date", date_orders=("year",)))
    if pa.types.is_integer(kind) and looks_like_id(name):
        return _as_category(found, len(values) - missing)
    if any(is_of(kind) for is_of in _NUMERIC_TYPES):
        return _unless_useless(replace(found, kind="number"))
    return replace(found, reason=f"is of type {kind}")


def _guess_text(name: str, values: Any, sample: Sample) -> ColumnGuess:
    counted = pc.value_counts(values.fill_null(""))
    texts, counts = counted.field("values"), counted.field("counts")
    absent = pc.is_in(texts, value_set=pa.array(ABSENT))
    known = _Texts(texts.filter(pc.invert(absent)), counts.filter(pc.invert(absent)))
    missing = sample.rows - known.records
    found = ColumnGuess(name, None, len(known.texts), missing, absent=tuple(texts.filter(absent).to_pylist()))
    if len(known.texts) < 2:
        return _unless_useless(replace(found, kind="category"))
    if not (known.have_leading_zeros or looks_like_id(name) or _CODE_NAME.search(name.lower())):
        odd = known.unreadable(with_points(known.texts, sample.dialect), pa.float64())
        if odd is not None:
            return _with_odd_texts(replace(found, kind="number"), odd)
    return _guess_date(found, known) or _guess_category(found, known)


@dataclass(frozen=True)
class _Texts:
    """The different texts of a column, and how many records have each."""

    texts: Any
    counts: Any

    @property
    def records(self) -> int:
        """Number of records."""
        return int(pc.sum(self.counts).as_py() or 0)

    @property
    def have_leading_zeros(self) -> bool:
        """Whether there are digits that would be others as a number: 007."""
        return bool(pc.any(pc.match_substring_regex(self.texts, "^0[0-9]+$")).as_py())

    def unreadable(self, written: Any, *kinds: Any) -> dict[str, int] | None:
        """Return the texts that cannot be read as the first of these types that nearly all can; None if there is none.

        `written` are the texts as they are read, in their order.
        """
        for kind in kinds:
            some = written[:_TRIED]
            if parsed_or_null(some, kind).null_count > len(some) // 2:
                continue
            odd = pc.is_null(parsed_or_null(written, kind))
            texts, counts = self.texts.filter(odd).to_pylist(), self.counts.filter(odd).to_pylist()
            if len(texts) <= _ODD_TEXTS and sum(counts) <= _RARELY * self.records:
                return dict(zip(texts, counts, strict=True))
        return None


def _guess_date(found: ColumnGuess, known: _Texts) -> ColumnGuess | None:
    written = {
        "year": known.texts,
        "day": reordered(known.texts, DAY_FIRST),
        "month": reordered(known.texts, MONTH_FIRST),
    }
    moments = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
    odd = {order: known.unreadable(texts, *moments) for order, texts in written.items()}
    fits = {order: texts for order, texts in odd.items() if texts is not None}
    if not fits:
        return None
    fewest = min(len(texts) for texts in fits.values())
    best = tuple(order for order, texts in fits.items() if len(texts) == fewest)
    orders = ("year",) if "year" in best else best
    short = known.texts.filter(pc.match_substring_regex(known.texts, SHORT_YEAR))
    example = short[0].as_py() if len(short) else ""
    return _with_odd_texts(replace(found, kind="date", date_orders=orders, short_year=example), fits[orders[0]])


def _guess_category(found: ColumnGuess, known: _Texts) -> ColumnGuess:
    without_signs = pc.replace_substring_regex(known.texts, _SIGNS, "")
    if without_signs != known.texts and known.unreadable(without_signs, pa.float64()) is not None:
        return replace(found, reason=f"numbers with other signs, as {known.texts[0].as_py()}")
    return _as_category(found, known.records)


def _as_category(found: ColumnGuess, records: int) -> ColumnGuess:
    """Return the guess of a category that this many records have."""
    if records >= _FEW and found.distinct >= ID_LIKE * records:
        return replace(found, reason="hardly repeats, as ids do")
    return _unless_useless(replace(found, kind="category"))


def _with_odd_texts(found: ColumnGuess, odd: Mapping[str, int]) -> ColumnGuess:
    """Return a guess in which these texts stand for a missing value."""
    missing, distinct = found.missing + sum(odd.values()), found.distinct - len(odd)
    return _unless_useless(replace(found, distinct=distinct, missing=missing, absent=(*found.absent, *odd)))


def _unless_useless(found: ColumnGuess) -> ColumnGuess:
    """Return the guess, without a kind if there is nothing in the column to learn from."""
    if not found.distinct:
        return replace(found, kind=None, reason="no values")
    if found.distinct == 1 and not found.missing:
        return replace(found, kind=None, reason="one value only")
    return found
