"""What the columns of a table seem to be, which is the id, the label or the privacy unit, and a draft of a job's data.

Guesses from the first records, for a person to look at and to change.

A guess never fails a file: what nobody can use is left out, with the reason. Whether all of a file is as its beginning
says is for `tpsl.data.check` to find out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.check import LABEL, hardly_repeats
from tpsl.tables import DataError
from tpsl.tables.columns import Place, first_true, label_texts, parsed_or_null, reordered, value_type, with_points
from tpsl.tables.locations import Location
from tpsl.tables.reading import Dialect, column_names, dialect_of, is_text, one_array, plain, read_blocks
from tpsl.tables.spelling import DAY_FIRST, MONTH_FIRST, SHORT_YEAR, shown

SAMPLE_ROWS = 100_000
"""Records that are looked at."""
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

MOST_CLASSES = 20
"""Different values that a column may have to be taken for the label, where nobody has named it."""
_LABEL_NAME = re.compile(
    r"label|target|class|outcome|default|churn|fraud|click|paid|repaid|response|convert|bought|result|^y$"
)
_YES = {"yes", "y", "t", "positive", "pos", "default", "defaulted", "churn", "churned", "fraud", "bad", "late", "click"}
_NO = {"no", "n", "f", "negative", "neg", "good", "none", "ok", "paid", "repaid", "stayed", "normal"}

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
    found = {name: _guess(name, values, sample) for name, values in sample.columns.items()}
    for name, guess in found.items():
        if guess.kind is not None and guess.distinct < 2 and not (guess.distinct and guess.missing):
            found[name] = replace(guess, kind=None, reason="one value only" if guess.distinct else "no values")
    return found


def looks_like_id(name: str) -> bool:
    """Return whether a column is called as ids are."""
    return _ID_NAME.search(_CAMEL.sub("_", name).lower()) is not None


def _guess(name: str, values: Any, sample: Sample) -> ColumnGuess:
    kind = value_type(values)
    if is_text(kind):
        return _guess_text(name, pc.utf8_trim_whitespace(values), sample)
    missing = int(pc.sum(pc.is_null(values, nan_is_null=True)).as_py() or 0)
    unusable = ColumnGuess(name, None, 0, missing, f"is of type {kind}")
    try:
        found = replace(unusable, distinct=len(values.drop_null().unique()))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return unusable
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return replace(found, kind="date", reason="", date_orders=("year",))
    if pa.types.is_integer(kind) and looks_like_id(name):
        return _as_category(found, len(values) - missing)
    return replace(found, kind="number", reason="") if any(is_of(kind) for is_of in _NUMERIC_TYPES) else found


def _guess_text(name: str, values: Any, sample: Sample) -> ColumnGuess:
    counted = pc.value_counts(values.fill_null(""))
    is_absent = pc.is_in(counted.field("values"), value_set=pa.array(ABSENT))
    known, absent = counted.filter(pc.invert(is_absent)), counted.filter(is_absent)
    texts, records = known.field("values"), int(pc.sum(known.field("counts")).as_py() or 0)
    gone = tuple(absent.field("values").to_pylist())
    found = ColumnGuess(name, "category", len(texts), sample.rows - records, absent=gone)
    if len(texts) < 2:
        return found

    def with_odd_texts(kind: KindOfUse, odd: Mapping[str, int]) -> ColumnGuess:
        missing, distinct = found.missing + sum(odd.values()), found.distinct - len(odd)
        return replace(found, kind=kind, distinct=distinct, missing=missing, absent=(*found.absent, *odd))

    have_leading_zeros = pc.any(pc.match_substring_regex(texts, "^0[0-9]+$")).as_py()  # 007 is no 7
    if not (have_leading_zeros or looks_like_id(name) or _CODE_NAME.search(name.lower())):
        odd = _unreadable(known, with_points(texts, "," if sample.dialect.decimal_comma else ".")[0], pa.float64())
        if odd is not None:
            return with_odd_texts("number", odd)
    written = {"year": texts, "day": reordered(texts, DAY_FIRST), "month": reordered(texts, MONTH_FIRST)}
    moments = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
    read = {order: _unreadable(known, dates, *moments) for order, dates in written.items()}
    if fits := {order: odd for order, odd in read.items() if odd is not None}:
        fewest = min(map(len, fits.values()))
        best = tuple(order for order, odd in fits.items() if len(odd) == fewest)
        orders = ("year",) if "year" in best else best
        short = texts.filter(pc.match_substring_regex(texts, SHORT_YEAR))
        dates = with_odd_texts("date", fits[orders[0]])
        return replace(dates, date_orders=orders, short_year=short[0].as_py() if len(short) else "")
    without_signs = pc.replace_substring_regex(texts, _SIGNS, "")
    if without_signs != texts and _unreadable(known, without_signs, pa.float64()) is not None:
        return replace(found, kind=None, reason=f"numbers with other signs, as {texts[0].as_py()}")
    return _as_category(found, records)


def _as_category(found: ColumnGuess, records: int) -> ColumnGuess:
    if hardly_repeats(found.distinct, records):
        return replace(found, kind=None, reason="hardly repeats, as ids do")
    return replace(found, kind="category", reason="")


def _unreadable(known: Any, written: Any, *kinds: Any) -> dict[str, int] | None:
    """Return the texts that cannot be read as the first of these types that nearly all can; None if there is none.

    `known` are the different texts and how many records have each, `written` the texts as they are read, in that order.
    """
    records = int(pc.sum(known.field("counts")).as_py() or 0)
    for kind in kinds:
        some = written[:_TRIED]
        if parsed_or_null(some, kind).null_count > len(some) // 2:
            continue
        odd = known.filter(pc.is_null(parsed_or_null(written, kind)))
        counts = odd.field("counts").to_pylist()
        if len(odd) <= _ODD_TEXTS and sum(counts) <= _RARELY * records:
            return dict(zip(odd.field("values").to_pylist(), counts, strict=True))
    return None


def guess_ids(samples: Sequence[Sample], guesses: Sequence[Mapping[str, ColumnGuess]]) -> list[str]:
    """Return the id column of each table: it differs in each record, and its values are in the other tables too."""
    *others, last = [_unique_columns(sample, columns) for sample, columns in zip(samples, guesses, strict=True)]
    if not others:
        return [max(last, key=looks_like_id)]

    def closest(columns: Mapping[str, set[str]], name: str) -> tuple[float, str]:
        """Return how much the column that is most like this one of the last table seems to be one id with it."""
        alike = []
        for other, values in columns.items():
            common = len(values & last[name]) / min(len(values), len(last[name]))
            named = 2 * (other.lower() == name.lower()) + looks_like_id(other) + looks_like_id(name)
            alike.append((4 * common + named, other))
        return max(alike, key=lambda each: each[0])

    best = max(last, key=lambda name: sum(closest(columns, name)[0] for columns in others))
    return [*(closest(columns, best)[1] for columns in others), best]


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
        hint = ""
        if name:
            counted = pc.value_counts(sample.columns[name])
            twice = shown(counted.field("values")[first_true(pc.greater(counted.field("counts"), 1))].as_py())
            times = "once" if repeated == 1 else f"{repeated:,} times"
            hint = f" ({name!r} repeats an earlier value {times}, as {twice})"
        raise DataError(f"{sample.path}: no column differs in every record{hint}, but a record needs an id of its own")
    return found


def _names_somebody(values: Any) -> bool:
    """Return whether each record has a value, and these are such as ids have."""
    return (is_text(value_type(values)) or pa.types.is_integer(value_type(values))) and not values.null_count


def guess_unit(sample: Sample, id_column: str, label: str) -> str | None:
    """Return the column that says whom a record is about: called as ids are, and some have several records."""
    known = ((name, values) for name, values in sample.columns.items() if name not in (id_column, label))
    named = ((name, values) for name, values in known if looks_like_id(name) and _names_somebody(values))
    return next((name for name, values in named if MOST_CLASSES < len(values.unique()) < sample.rows), None)


def looks_like_label(name: str) -> bool:
    """Return whether a column is called as labels are."""
    return _LABEL_NAME.search(name.lower()) is not None


def guess_label(sample: Sample, id_column: str, named: str | None = None) -> LabelGuess:
    """Return the label column, or the classes of the one that is `named`."""
    if named is not None:
        counts = _class_counts(sample, named)
        if (complaint := _no_label(sample, counts)) is not None:
            raise DataError(f"{sample.path}: column {named!r} {complaint}")
        return _ordered(named, counts)
    others = {name: _class_counts(sample, name) for name in sample.columns if name != id_column}
    if not others:
        raise DataError(f"{sample.path}: there is no column with labels beside the id {id_column!r}")
    fit = {name: counts for name, counts in others.items() if 2 <= len(counts) <= MOST_CLASSES}
    if not fit:
        name, counts = min(others.items(), key=lambda other: len(other[1]))
        raise DataError(f"{sample.path}: no column looks like a label; {name!r} {_no_label(sample, counts)}")
    order = list(fit)
    column = max(fit, key=lambda name: (looks_like_label(name), len(fit[name]) == 2, order.index(name)))
    return _ordered(column, fit[column])


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


def _no_label(sample: Sample, counts: dict[str, int]) -> str | None:
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


def _ordered(column: str, counts: dict[str, int]) -> LabelGuess:
    """Return the classes in order. It follows from the values alone, never from how many records have them."""
    if {value.lower() for value in counts} == {"false", "true"}:
        counts = {str(int(value.lower() == "true")): count for value, count in counts.items()}
    if set(counts) == set(map(str, range(len(counts)))):
        return LabelGuess(column, None, tuple(counts[str(number)] for number in range(len(counts))))
    are_numbers = not parsed_or_null(pa.array(list(counts)), pa.float64()).null_count
    order = sorted(counts, key=float if are_numbers else None)
    is_sure = are_numbers or len(order) > 2
    if len(order) == 2:
        pairs = (order, order[::-1])
        positive = next((each for each, other in pairs if each.lower() in _YES or other.lower() in _NO), None)
        is_sure = is_sure or positive is not None
        order.sort(key=lambda value: value == positive)
    return LabelGuess(column, tuple(order), tuple(counts[value] for value in order), is_sure)


_ROLES: dict[KindOfUse, str] = {"category": "categorical", "number": "numeric", "date": "dates"}


@dataclass(frozen=True)
class FileDraft:
    """A party's table: its id, what the other columns seem to be, and the label's if it has one."""

    party: str
    sample: Sample
    id: str
    columns: tuple[ColumnGuess, ...]
    label: LabelGuess | None = None
    unit: str | None = None

    @property
    def date_order(self) -> str:
        """The order of dates: of those in which all columns but ISO 8601 ones can be read, the first."""
        orders = [each.date_orders for each in self.columns if each.kind == "date" and each.date_orders != ("year",)]
        return next((order for order in ("day", "month") if orders and all(order in each for each in orders)), "year")

    @property
    def missing(self) -> list[str]:
        """Texts other than the empty one that stand for a missing value in a column that is used."""
        used = (text for column in self.columns if column.kind is not None for text in column.absent if text)
        return list(dict.fromkeys(used))

    def content(self, folder: Path | None) -> dict[str, Any]:
        """Return the file as a job in this folder has it, for the other side without one."""
        roles = {key: [each.name for each in self.columns if each.kind == kind] for kind, key in _ROLES.items()}
        found = {
            "party": self.party,
            "path": path_from(folder, self.sample.path),
            "id": self.id,
            "label": self.label and self.label.column,
            "unit": self.unit,
            **roles,
            "date_order": self.date_order if self.date_order != "year" else None,
            "missing": ["", *self.missing] if self.missing else None,
        }
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True)
class DataDraft:
    """The part `data` of a job, or as much of it as one side can describe; `other` is what the other side has sent."""

    features: tuple[FileDraft, ...]
    label: FileDraft | None
    other: Mapping[str, Any] = field(default_factory=dict)
    aligned: bool = False

    @property
    def files(self) -> tuple[FileDraft, ...]:
        """The tables that are here, the label party's last."""
        return (*self.features, *([] if self.label is None else [self.label]))

    @property
    def is_complete(self) -> bool:
        """Whether the tables of all parties are described."""
        return all(key in self.content(None) for key in ("features", LABEL))

    def content(self, folder: Path | None) -> dict[str, Any]:
        """Return the part in a job of this folder, for the other side without one; what is not here is left out."""
        found: dict[str, Any] = {"source": "table", "features": None, LABEL: None, **self.other}
        if self.features:
            found["features"] = [file.content(folder) for file in self.features]
        if self.label is not None and (label := self.label.label) is not None:
            found[LABEL] = self.label.content(folder)
            found |= {"classes": len(label.counts)} if len(label.counts) > 2 else {}
            found |= {"class_values": list(label.values)} if label.values is not None else {}
        found |= {"alignment": {"mode": "both"}} if self.aligned else {}
        return {key: value for key, value in found.items() if value is not None}


def path_from(folder: Path | None, path: Location) -> str:
    """Return where a table lies, as a file in this folder says it; without a folder, its name alone."""
    if folder is None:
        return path.name
    return os.path.relpath(path, folder) if isinstance(path, Path) else path.text


def draft_data(
    features: Sequence[Sample], label: Sample | None, ids: Sequence[str] = (), label_column: str | None = None
) -> DataDraft:
    """Describe the tables of the parties that are here; of `ids` each table takes the first that it has."""
    samples = [*features, *([] if label is None else [label])]
    present = list(dict.fromkeys(name for sample in samples for name in sample.columns))
    for name in (*ids, *([] if label_column is None else [label_column])):
        if name not in present:
            raise DataError(f"there is no column {name!r}; the columns are {', '.join(map(repr, present))}")
    guesses = [guess_columns(sample) for sample in samples]
    for sample in samples if ids else ():
        if not any(name in sample.columns for name in ids):
            raise DataError(f"{sample.path}: has no column {' or '.join(map(repr, ids))}; name its id too")
    id_columns = [next((name for name in ids if name in sample.columns), "") for sample in samples]
    id_columns = id_columns if ids else guess_ids(samples, guesses)
    at_label = None if label is None else _labels(label, guesses[-1], id_columns[-1], label_column)
    for known in guesses:  # one table may hold all
        if at_label is not None and at_label.label is not None and (name := at_label.label.column) in known:
            known[name] = replace(known[name], kind=None, reason="called as the label")
    names = ["feature"]
    if len(features) != 1:  # those of their files, where these differ
        stems = [re.sub(r"\W+", "-", sample.path.name.partition(".")[0]).strip("-").lower() for sample in features]
        usable = [stem and stem != LABEL and stems.count(stem) == 1 for stem in stems]
        names = [stem if usable[at] else f"feature-{at + 1}" for at, stem in enumerate(stems)]
    drafts = []
    for name, sample, known, id_column in zip(names, features, guesses, id_columns, strict=False):
        columns = tuple(column for column in known.values() if column.name != id_column)
        if not any(column.kind for column in columns):
            raise DataError(f"{sample.path}: no column can be learned from")
        drafts.append(FileDraft(name, sample, id_column, columns))
    return DataDraft(tuple(drafts), at_label)


def _labels(sample: Sample, guesses: dict[str, ColumnGuess], id_column: str, label_column: str | None) -> FileDraft:
    """Describe the label party's table: what it has beside labels is not used until somebody names it in the job.

    Such columns are often known only after the label, or made from it.
    """
    label = guess_label(sample, id_column, label_column)
    unlabelled = sample.rows - sum(label.counts)
    if unlabelled:
        raise DataError(
            f"{sample.path}: {unlabelled:,} of {sample.rows:,} records have no label in column {label.column!r}, and "
            "training needs one: remove these rows, and the job will train on the records that both tables have"
        )
    unit = guess_unit(sample, id_column, label.column)
    unused = [replace(guess, kind=None, reason="not used") for guess in guesses.values()]
    columns = tuple(column for column in unused if column.name not in (id_column, label.column, unit))
    return FileDraft(LABEL, sample, id_column, columns, label, unit)
