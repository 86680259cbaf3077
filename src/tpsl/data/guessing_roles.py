"""Which columns of the parties' tables seem to be the id, the label, the time, and whom a record is about."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.errors import DataError
from tpsl.data.guessing import ABSENT, ColumnGuess, Sample, looks_like_id
from tpsl.tables.columns import Place, first_true, is_text, label_texts, parsed_or_null, value_type
from tpsl.tables.spelling import shown

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
        is_usable = is_text(value_type(values)) or pa.types.is_integer(value_type(values))
        if not is_usable or values.null_count or guesses[name].kind == "date":
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
    for name, values in sample.columns.items():
        usable = is_text(value_type(values)) or pa.types.is_integer(value_type(values))
        if usable and name not in (id_column, label) and looks_like_id(name) and not values.null_count:
            distinct = len(values.unique())
            if MOST_CLASSES < distinct < sample.rows:
                return name
    return None


def common_dates(tables: Sequence[Mapping[str, ColumnGuess]]) -> list[str]:
    """Return the columns with dates that every table has, under one name."""
    dates = [{name for name, column in table.items() if column.kind == "date"} for table in tables]
    return [name for name in tables[0] if all(name in each for each in dates)]
