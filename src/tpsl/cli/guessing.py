"""What the columns of a table seem to be, and which is the id, the label or the privacy unit.

Guesses from the first records, for a person to look at and to change.

A guess never fails a file: what nobody can use is left out, with the reason. Whether all of a file is as its beginning
says is for `tpsl.data.check` to find out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.check import ID_LIKE
from tpsl.tables import DataError
from tpsl.tables.columns import Place, first_true, label_texts, parsed_or_null, reordered, value_type, with_points
from tpsl.tables.locations import Location
from tpsl.tables.reading import Dialect, column_names, dialect_of, is_text, one_array, plain, read_blocks
from tpsl.tables.spelling import DAY_FIRST, MONTH_FIRST, SHORT_YEAR, shown

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
    columns = {name: one_array([plain(block[name]) for block in blocks]) for name in usable}
    return Sample(path, dialect, columns, rows, is_whole)


def guess_columns(sample: Sample) -> dict[str, ColumnGuess]:
    """Return what each column of a table seems to be."""
    return {name: _unless_useless(_guess(name, values, sample)) for name, values in sample.columns.items()}


def _unless_useless(found: ColumnGuess) -> ColumnGuess:
    """Return the guess, without a kind if there is nothing in the column to learn from."""
    if found.kind is not None and found.distinct < 2 and not (found.distinct and found.missing):
        return replace(found, kind=None, reason="one value only" if found.distinct else "no values")
    return found


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
        return replace(found, kind="date", date_orders=("year",))
    if pa.types.is_integer(kind) and looks_like_id(name):
        return _as_category(found, len(values) - missing)
    if any(is_of(kind) for is_of in _NUMERIC_TYPES):
        return replace(found, kind="number")
    return replace(found, reason=f"is of type {kind}")


@dataclass(frozen=True)
class _Texts:
    """The different texts of a column, and how many records have each."""

    texts: Any
    counts: Any

    @property
    def records(self) -> int:
        """Number of records."""
        return int(pc.sum(self.counts).as_py() or 0)

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


def _guess_text(name: str, values: Any, sample: Sample) -> ColumnGuess:
    counted = pc.value_counts(values.fill_null(""))
    texts, counts = counted.field("values"), counted.field("counts")
    absent = pc.is_in(texts, value_set=pa.array(ABSENT))
    known = _Texts(texts.filter(pc.invert(absent)), counts.filter(pc.invert(absent)))
    missing = sample.rows - known.records
    found = ColumnGuess(name, "category", len(known.texts), missing, absent=tuple(texts.filter(absent).to_pylist()))
    if len(known.texts) < 2:
        return found
    have_leading_zeros = pc.any(pc.match_substring_regex(known.texts, "^0[0-9]+$")).as_py()  # 007 is no 7
    if not (have_leading_zeros or looks_like_id(name) or _CODE_NAME.search(name.lower())):
        odd = known.unreadable(with_points(known.texts, "," if sample.dialect.decimal_comma else ".")[0], pa.float64())
        if odd is not None:
            return _with_odd_texts(replace(found, kind="number"), odd)
    return _guess_date(found, known) or _guess_category(found, known)


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
        return replace(found, kind=None, reason=f"numbers with other signs, as {known.texts[0].as_py()}")
    return _as_category(found, known.records)


def _as_category(found: ColumnGuess, records: int) -> ColumnGuess:
    """Return the guess of a category that this many records have."""
    if records >= _FEW and found.distinct >= ID_LIKE * records:
        return replace(found, kind=None, reason="hardly repeats, as ids do")
    return replace(found, kind="category")


def _with_odd_texts(found: ColumnGuess, odd: Mapping[str, int]) -> ColumnGuess:
    """Return a guess in which these texts stand for a missing value."""
    missing, distinct = found.missing + sum(odd.values()), found.distinct - len(odd)
    return replace(found, distinct=distinct, missing=missing, absent=(*found.absent, *odd))


MOST_CLASSES = 20
"""Different values that a column may have to be taken for the label, where nobody has named it."""
_LABEL_NAME = re.compile(
    r"label|target|class|outcome|default|churn|fraud|click|paid|repaid|response|convert|bought|result|^y$"
)
_YES = {"yes", "y", "t", "positive", "pos", "default", "defaulted", "churn", "churned", "fraud", "bad", "late", "click"}
_NO = {"no", "n", "f", "negative", "neg", "good", "none", "ok", "paid", "repaid", "stayed", "normal"}


@dataclass(frozen=True)
class LabelGuess:
    """The label column and its classes in order; `values` are None where they are the numbers from 0 on.

    `is_sure` says that the order follows from what the values mean; else it is that of the alphabet.
    """

    column: str
    values: tuple[str, ...] | None
    counts: tuple[int, ...]
    is_sure: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The classes in order, as text."""
        return self.values or tuple(map(str, range(len(self.counts))))


def guess_ids(samples: Sequence[Sample], guesses: Sequence[Mapping[str, ColumnGuess]]) -> list[str]:
    """Return the id column of each table: it differs in each record, and its values are in the other tables too."""
    *others, last = [_unique_columns(sample, columns) for sample, columns in zip(samples, guesses, strict=True)]
    if not others:
        return [max(last, key=looks_like_id)]
    best = max(
        last, key=lambda name: sum(max(_likeness(known, name, last[name]) for known in each.items()) for each in others)
    )
    return [*(max(each.items(), key=lambda known: _likeness(known, best, last[best]))[0] for each in others), best]


def _unique_columns(sample: Sample, guesses: Mapping[str, ColumnGuess]) -> dict[str, set[str]]:
    """Return the columns that could be the id, with their values; dates are none, also where they all differ."""
    found, closest = {}, ("", sample.rows)
    for name, values in sample.columns.items():
        if not _names_somebody(values) or guesses[name].kind == "date":
            continue
        texts = values.cast(pa.string())
        repeated = sample.rows - len(texts.unique())
        if repeated == 0 and not pc.any(pc.equal(texts, "")).as_py():
            found[name] = set(texts.to_pylist())
        elif looks_like_id(name) and repeated < closest[1]:
            closest = name, repeated
    if not found:
        name, repeated = closest
        times = "once" if repeated == 1 else f"{repeated:,} times"
        hint = f" ({name!r} repeats an earlier value {times}, as {_repeated(sample, name)})" if name else ""
        raise DataError(f"{sample.path}: no column differs in every record{hint}, but a record needs an id of its own")
    return found


def _names_somebody(values: Any) -> bool:
    """Return whether each record has a value, and these are such as ids have."""
    return (is_text(value_type(values)) or pa.types.is_integer(value_type(values))) and not values.null_count


def _repeated(sample: Sample, name: str) -> str:
    counted = pc.value_counts(sample.columns[name])
    return shown(counted.field("values")[first_true(pc.greater(counted.field("counts"), 1))].as_py())


def _likeness(known: tuple[str, set[str]], name: str, values: set[str]) -> float:
    """Return how much two columns seem to be one id: by common values first, then by their names."""
    common = len(known[1] & values) / min(len(known[1]), len(values))
    same_name = known[0].lower() == name.lower()
    return 4 * common + 2 * same_name + looks_like_id(known[0]) + looks_like_id(name)


def looks_like_label(name: str) -> bool:
    """Return whether a column is called as labels are."""
    return _LABEL_NAME.search(name.lower()) is not None


def guess_label(sample: Sample, id_column: str, named: str | None = None, positive: str | None = None) -> LabelGuess:
    """Return the label column, or the classes of the one that is `named`; `positive` is the last of two classes."""
    if named is not None:
        counts = _class_counts(sample, named)
        if (complaint := _no_label(sample, named, counts)) is not None:
            raise DataError(f"{sample.path}: column {named!r} {complaint}")
        return _ordered(named, counts, positive)
    others = {name: _class_counts(sample, name) for name in sample.columns if name != id_column}
    if not others:
        raise DataError(f"{sample.path}: there is no column with labels beside the id {id_column!r}")
    fit = {name: counts for name, counts in others.items() if 2 <= len(counts) <= MOST_CLASSES}
    if not fit:
        name, counts = min(others.items(), key=lambda other: len(other[1]))
        raise DataError(f"{sample.path}: no column looks like a label; {name!r} {_no_label(sample, name, counts)}")
    order = list(fit)
    column = max(fit, key=lambda name: (looks_like_label(name), len(fit[name]) == 2, order.index(name)))
    return _ordered(column, fit[column], positive)


def _class_counts(sample: Sample, name: str) -> dict[str, int]:
    """Return the records of each value of a column, as labels are compared; what stands for no value is left out.

    Texts that differ in capitals only are one value, called by the one with the fewest capitals at its beginning.
    """
    counted = pc.value_counts(label_texts(sample.columns[name], Place(str(sample.path), name)))
    counts = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
    found: dict[str, tuple[str, int]] = {}
    for value, count in counts:
        if value is not None and value not in ABSENT:
            spelling, before = found.get(value.lower(), (value, 0))
            found[value.lower()] = max(spelling, value), before + count
    return dict(found.values())


def _no_label(sample: Sample, name: str, counts: dict[str, int]) -> str | None:
    """Return why a column cannot be the label; None if it can."""
    if len(counts) < 2:
        same = f"is {shown(next(iter(counts)))} in every record" if counts else "has no values"
        return f"{same}: there is nothing to learn"
    if len(counts) <= max(MOST_CLASSES, sample.rows // 100):
        return None
    if not parsed_or_null(pa.array(list(counts)), pa.float64()).null_count:
        return (
            f"has {len(counts):,} different numbers, so it is a quantity: labels are classes. Cut it into ranges, as "
            "a column of 0 and 1 for below and above a limit"
        )
    return f"has {len(counts):,} different texts: labels are a few classes"


def _ordered(column: str, counts: dict[str, int], positive: str | None) -> LabelGuess:
    """Return the classes in order. It follows from the values alone, never from how many records have them."""
    if positive is not None and positive not in counts:
        raise DataError(f"{positive!r} is no label; the labels in column {column!r} are {', '.join(sorted(counts))}")
    if {value.lower() for value in counts} == {"false", "true"} and positive is None:
        counts = {str(int(value.lower() == "true")): count for value, count in counts.items()}
    if positive is None and set(counts) == set(map(str, range(len(counts)))):
        return LabelGuess(column, None, tuple(counts[str(number)] for number in range(len(counts))))
    numbers = parsed_or_null(pa.array(list(counts)), pa.float64())
    order = sorted(counts) if numbers.null_count else sorted(counts, key=float)
    is_sure = not numbers.null_count
    if len(order) == 2:
        last = positive or _positive(order)
        is_sure = is_sure or last is not None
        order = sorted(order, key=lambda value: value == last) if last is not None else order
    return LabelGuess(column, tuple(order), tuple(counts[value] for value in order), is_sure or len(order) > 2)


def _positive(values: Sequence[str]) -> str | None:
    """Return which of two labels says yes, if one of them is a word for yes or the other one for no."""
    for value, other in (values, reversed(values)):
        if value.lower() in _YES or other.lower() in _NO:
            return value
    return None


def guess_unit(sample: Sample, id_column: str, label: str) -> str | None:
    """Return the column that says whom a record is about: called as ids are, and some have several records."""
    known = ((name, values) for name, values in sample.columns.items() if name not in (id_column, label))
    named = ((name, values) for name, values in known if looks_like_id(name) and _names_somebody(values))
    return next((name for name, values in named if MOST_CLASSES < len(values.unique()) < sample.rows), None)
