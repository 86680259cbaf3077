"""Any CSV or Parquet tables, one for each party, as a few lines of schema describe them."""

from tpsl.data.columns import class_numbers, numbers, record_ids, texts, times
from tpsl.data.config import LabelFile, TableData, TableFile
from tpsl.data.encode import HashedCategories, IndexedCategories
from tpsl.data.preparation import Preparation
from tpsl.data.rawtable import RawTable
from tpsl.data.reading import read_columns
from tpsl.data.relabelling import Relabelling, as_text
from tpsl.data.sides import FeatureSide, LabelSide


def feature_side(config: TableData, party: str, relabelling: Relabelling | None = None) -> FeatureSide:
    """Load a feature party's side from its file."""
    file = next(file for file in config.features if file.party == party)
    return _preparation(config).feature_side(party, read_party(file, config, relabelling=relabelling))


def label_side(config: TableData, *, late_labels: bool = False, relabelling: Relabelling | None = None) -> LabelSide:
    """Load the label party's side from its file; `late_labels` may be missing."""
    raw = read_party(config.label, config, late_labels=late_labels, relabelling=relabelling)
    return _preparation(config).label_side(raw, _class_names(config))


def read_party(
    file: TableFile, config: TableData, *, late_labels: bool = False, relabelling: Relabelling | None = None
) -> RawTable:
    """Read and check one party's file; an error names the file, the column and the row (the first record is row 1).

    With a `relabelling` the label column has other labels from the beginning, whatever is read from it.
    """
    time = file.time if config.split == "chronological" else None
    label, unit = (file.label, file.unit) if isinstance(file, LabelFile) else (None, None)
    needed = [file.id, *file.categorical, *file.numeric, *(name for name in (label, time, unit) if name is not None)]
    columns = read_columns(file.path, list(dict.fromkeys(needed)))
    name, relabelled = str(file.path), config.label.label
    if relabelling is not None and file.path == config.label.path and relabelled in columns:
        before = class_numbers(columns[relabelled], name, relabelled, _class_names(config), late=late_labels)
        columns[relabelled] = as_text(relabelling(before, config.classes), _class_names(config))
    return RawTable(
        name,
        record_ids(columns[file.id], name, file.id),
        {column: texts(columns[column], name, column, file.missing) for column in file.categorical},
        {column: numbers(columns[column], name, column, file.missing) for column in file.numeric},
        None if label is None else class_numbers(columns[label], name, label, _class_names(config), late=late_labels),
        None if time is None else times(columns[time], name, time),
        None if unit is None else record_ids(columns[unit], name, unit, "unit"),
    )


def _class_names(config: TableData) -> tuple[str, ...]:
    return config.class_values or tuple(str(number) for number in range(config.classes))


def _preparation(config: TableData) -> Preparation:
    hashed = config.categories == "hash"
    categories = HashedCategories(config.hash_buckets) if hashed else IndexedCategories(config.min_count)
    return Preparation(config.split, config.test_fraction, config.split_seed, categories)
