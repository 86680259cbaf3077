"""Records that a user brings: images, sequences, anything that the user's own network reads.

A source is an object with

    ids             a unique text or integer for each record, the same at every party;
    batch(rows)     the inputs of these records: one array or tensor, or a tuple of them, whose first dimension is that
                    of `rows`. Instead of it a source may be a map-style dataset, as PyTorch knows it: what
                    `__getitem__` gives for each row is stacked;
    times           for a chronological split: a number, date or timestamp for each record;
    labels, units   the label party's: the label of each record, and maybe whom it is about.

The label party's source needs `batch` only where it has features of its own. `rows` are positions in the source's own
order, in any order. What is given for a row must not depend on the other rows, nor change from call to call.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.config import OwnData, in_time
from tpsl.data.features import Arrays
from tpsl.data.order import Rows, split_rows
from tpsl.data.rawtable import RawTable, recent_rows
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide, Relabelling
from tpsl.data.true_labels import TrueLabels
from tpsl.spill import Array, ArrowArray
from tpsl.tables import DataError
from tpsl.tables.columns import Place, class_numbers, record_ids, times
from tpsl.tables.spelling import Spelling

Source: TypeAlias = Any
"""A source as described above, a callable that makes it, or what it gives: an object of the user."""


class SourceInputs:
    """The inputs of a user's source in the canonical order; `name` is what errors call it.

    Guarantee: each batch has a row for each record asked for, numbers that are finite, and the types and shapes of the
    first one.
    """

    def __init__(self, name: str, source: Source, order: Rows) -> None:
        self._name, self._order = name, order
        self._give = _giver(name, source)
        self._kinds: list[tuple[np.dtype[np.generic], tuple[int, ...]]] | None = None
        self.batch(np.arange(min(2, len(order))))

    def __len__(self) -> int:
        return len(self._order)

    def batch(self, rows: Rows) -> Arrays:
        """Return the inputs of these rows."""
        try:
            given = self._give(self._order[rows])
            arrays = tuple(np.asarray(part) for part in (given if isinstance(given, tuple | list) else (given,)))
        except Exception as error:
            reason = " ".join(str(error).split()) or "no reason given"
            raise DataError(f"{self._name}: fails to give a batch ({type(error).__name__}: {reason})") from error
        for array in arrays:
            if array.ndim == 0 or len(array) != len(rows):
                raise DataError(f"{self._name}: gives an array of shape {array.shape} for a batch of {len(rows)} rows")
            if array.dtype.kind not in "biuf":
                raise DataError(f"{self._name}: gives {array.dtype} in a batch, and inputs must be numbers")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(f"{self._name}: gives numbers in a batch that are not finite")
        kinds = [(array.dtype, array.shape[1:]) for array in arrays]
        if self._kinds is None:
            self._kinds = kinds
        if kinds != self._kinds:
            raise DataError(f"{self._name}: gives {_words(kinds)} in a batch, and gave {_words(self._kinds)} before")
        return arrays


def _giver(name: str, source: Source) -> Callable[[Rows], Source]:
    if callable(getattr(source, "batch", None)):
        return source.batch  # type: ignore[no-any-return]
    if hasattr(source, "__getitem__"):
        return lambda rows: _stacked([source[int(row)] for row in rows])
    raise DataError(f"{name}: has neither batch(rows) nor __getitem__")


def _stacked(items: Sequence[Source]) -> Array | tuple[Array, ...]:
    if isinstance(items[0], tuple | list):
        return tuple(np.stack([np.asarray(part) for part in parts]) for parts in zip(*items, strict=True))
    return np.stack([np.asarray(item) for item in items])


def _words(kinds: Sequence[tuple[np.dtype[np.generic], tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype} of shape {('rows', *shape)}" for dtype, shape in kinds).replace("'", "")


def feature_side(config: OwnData, party: str, given: Source) -> FeatureSide:
    """Return a feature party's side; `given` is its source, or a callable that makes it."""
    name, source = _made(party, given)
    ids, order = _in_canonical_order(config, name, source)
    train, test = split_rows(len(ids), config.split, config.test_fraction, config.split_seed)
    return FeatureSide(party, ids, SourceInputs(name, source, order), train, test)


def label_side(config: OwnData, given: Source, *, relabelling: Relabelling | None = None) -> LabelSide:
    """Return the label party's side."""
    name, source = _made("label", given)
    names = config.class_names
    labels = class_numbers(_column(name, source, "labels"), Place(name, "labels"), names)
    if relabelling is not None:
        labels = relabelling(labels, config.classes)
        source = _with_other_labels(source, labels, config.class_values)
    ids, order = _in_canonical_order(config, name, source)
    train, test = split_rows(len(ids), config.split, config.test_fraction, config.split_seed)
    features = SourceInputs(name, source, order) if config.label_features else None
    units = None
    if getattr(source, "units", None) is not None:
        units = record_ids(_column(name, source, "units"), Place(name, "units"), "unit").take(pa.array(order))
    records = LabelRecords(ids, features, names, train, test, units)
    return LabelSide(records, TrueLabels(labels[order], names))


def source_ids(party: str, given: Source) -> ArrowArray:
    """Return the ids of all records of a party's source, in the source's own order."""
    name, source = _made(party, given)
    return record_ids(_column(name, source, "ids"), Place(name, "ids"))


def source_inputs(party: str, given: Source) -> SourceInputs:
    """Return the inputs of all records of a party's source, in the source's own order; it needs no labels."""
    name, source = _made(party, given)
    return SourceInputs(name, source, np.arange(len(source.ids), dtype=np.int64))


def _made(party: str, given: Source) -> tuple[str, Source]:
    """Return what errors call a source, and the source."""
    name = f"the inputs of {party!r}"
    if given is None:
        raise DataError(
            f"{name} are its own (data.source: own), and it brings none: "
            "name what makes them in its local file, as `inputs: package.module:name`"
        )
    makes_it = isinstance(given, type) or (callable(given) and not hasattr(given, "ids"))
    return name, given() if makes_it else given


def _in_canonical_order(config: OwnData, name: str, source: Source) -> tuple[ArrowArray, Rows]:
    """Return the ids in the canonical order, and where each record stands in the source."""
    ids = record_ids(_column(name, source, "ids"), Place(name, "ids"))
    moments = recent = None
    if in_time(config):
        place = Place(name, "times")
        moments = times(_column(name, source, "times"), place, Spelling())
        recent = None if config.since is None else recent_rows(moments, config.since, place)
    order = RawTable(name, ids, times=moments, recent=recent).canonical_order()
    order = np.arange(len(ids), dtype=np.int64) if order is None else order
    return ids.take(order), order


def _column(name: str, source: Source, attribute: str) -> ArrowArray:
    """Return what a source has for each record as a column."""
    values = getattr(source, attribute, None)
    if values is None:
        raise DataError(f"{name}: has no `{attribute}`")
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    try:
        column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{name}: `{attribute}` are not all of one type ({error})") from error
    if len(column) != len(source.ids):
        raise DataError(f"{name}: has {len(source.ids)} ids and {len(column)} {attribute}")
    return column


def _with_other_labels(source: Source, labels: npt.NDArray[np.int64], class_values: tuple[str, ...] | None) -> Source:
    """Return a source that has other labels itself, so that inputs which it derives from them change with them.

    Where the source's labels cannot be replaced, they are others only for whoever reads them from here.
    """
    changed, held = copy.copy(source), copy.deepcopy(source.labels)
    try:
        for row, label in enumerate(labels.tolist()):
            if label >= 0:
                held[row] = label if class_values is None else class_values[label]
        changed.labels = held
    except (AttributeError, TypeError, ValueError):
        return source
    return changed
