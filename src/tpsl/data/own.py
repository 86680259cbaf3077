"""A party's side of the data from a source that it brings itself (`tpsl.data.source`)."""

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.config import OwnData, in_time
from tpsl.data.errors import DataError
from tpsl.data.party_file import TimeStack
from tpsl.data.rawtable import RawTable
from tpsl.data.relabelling import Relabelling
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide
from tpsl.data.source import SourceInputs
from tpsl.data.split import Rows, split_rows
from tpsl.data.true_labels import TrueLabels
from tpsl.tables.columns import Place, class_numbers, recent_times, record_ids, require_recent, times
from tpsl.tables.spelling import Spelling


def feature_side(config: OwnData, party: str, given: Any) -> FeatureSide:
    """Return a feature party's side; `given` is its source, or a callable that makes it."""
    name, source = _made(party, given)
    ids, order = _in_canonical_order(config, name, source)
    train, test = split_rows(len(ids), config.split, config.test_fraction, config.split_seed)
    return FeatureSide(party, ids, SourceInputs(name, source, order), train, test)


def label_side(
    config: OwnData, given: Any, *, late_labels: bool = False, relabelling: Relabelling | None = None
) -> LabelSide:
    """Return the label party's side; a label that is None comes late."""
    name, source = _made("label", given)
    names = config.class_names
    labels = class_numbers(_column(name, source, "labels"), Place(name, "labels"), names, late=late_labels)
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


def source_ids(party: str, given: Any) -> Any:
    """Return the ids of all records of a party's source, in the source's own order."""
    name, source = _made(party, given)
    return record_ids(_column(name, source, "ids"), Place(name, "ids"))


def source_inputs(party: str, given: Any) -> SourceInputs:
    """Return the inputs of all records of a party's source, in the source's own order; it needs no labels."""
    name, source = _made(party, given)
    return SourceInputs(name, source, np.arange(len(source.ids), dtype=np.int64))


def _made(party: str, given: Any) -> tuple[str, Any]:
    """Return what errors call a source, and the source."""
    name = f"the inputs of {party!r}"
    if given is None:
        raise DataError(
            f"{name} are its own (data.source: own), and it brings none: "
            "name what makes them in its local file, as `inputs: package.module:name`"
        )
    makes_it = isinstance(given, type) or (callable(given) and not hasattr(given, "ids"))
    return name, given() if makes_it else given


def _in_canonical_order(config: OwnData, name: str, source: Any) -> tuple[Any, Rows]:
    """Return the ids in the canonical order, and where each record stands in the source."""
    ids = record_ids(_column(name, source, "ids"), Place(name, "ids"))
    stacked, recent = TimeStack(), None
    if in_time(config):
        place, written = Place(name, "times"), Spelling()
        moments = times(_column(name, source, "times"), place, written)
        stacked.add(moments)
        if config.since is not None:
            recent = require_recent(recent_times(moments, place, written, config.since), place, config.since)
    order = RawTable(name, ids, times=stacked.finish() if in_time(config) else None, recent=recent).canonical_order()
    order = np.arange(len(ids), dtype=np.int64) if order is None else order
    return ids.take(order), order


def _column(name: str, source: Any, attribute: str) -> Any:
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


def _with_other_labels(source: Any, labels: npt.NDArray[np.int64], class_values: tuple[str, ...] | None) -> Any:
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
