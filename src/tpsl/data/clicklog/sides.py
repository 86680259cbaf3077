"""Each party's side of a click log: all features at the feature party, the labels at the label party.

From the publisher's file everything is held in memory. From a converted folder the encoded records are computed once
for each configuration, kept in the folder beside the Parquet files, and memory-mapped. Records stay in file order.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tpsl.data.clicklog.arrays import NewArray, NewTexts, kept, mapped, mapped_texts
from tpsl.data.clicklog.columns import Columns, InMemory, InParquet
from tpsl.data.clicklog.converting import (
    converted_features,
    converted_labels,
    converted_tables,
    first_too_early,
    layout_of,
)
from tpsl.data.clicklog.encoding import Encoded, Encoder, learn
from tpsl.data.clicklog.reading import ID, LABEL, TimeOrder, read_blocks
from tpsl.data.config import ClickData
from tpsl.data.errors import DataError
from tpsl.data.features import Features
from tpsl.data.relabelling import Relabelling
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide
from tpsl.data.split import Rows, split_rows
from tpsl.data.true_labels import TrueLabels
from tpsl.files import write_durably
from tpsl.progress import Progress

FEATURE_PARTY = "feature"
CLASS_NAMES = ("0", "1")

# Part of what kept arrays are found by; a new number for every change of the encoding.
_ENCODING = 1


def feature_side(config: ClickData, progress: Progress | None = None) -> FeatureSide:
    """Load the feature party's side; in a converted folder, from its own file alone."""
    if config.path.is_dir():
        return _mapped_feature_side(config, progress)
    return _feature_side(config, _read(config, features=True, labels=False, progress=progress), progress)


def label_side(config: ClickData, progress: Progress | None = None) -> LabelSide:
    """Load the label party's side; in a converted folder, from its own file alone."""
    if config.path.is_dir():
        return _mapped_label_side(config)
    return _label_side(config, _read(config, features=False, labels=True, progress=progress))


def both_sides(
    config: ClickData, progress: Progress | None = None, relabelling: Relabelling | None = None
) -> tuple[FeatureSide, LabelSide]:
    """Load both sides, reading the publisher's file once.

    With a `relabelling` nothing that a converted folder keeps is used, or kept: all is in memory.
    """
    if config.path.is_dir() and relabelling is None:
        return _mapped_feature_side(config, progress), _mapped_label_side(config)
    columns = (
        _read(config, features=True, labels=True, progress=progress)
        if relabelling is None
        else _relabelled(config, relabelling, progress)
    )
    return _feature_side(config, columns, progress), _label_side(config, columns)


def _read(config: ClickData, *, features: bool, labels: bool, progress: Progress | None) -> InMemory:
    layout, order = layout_of(config), TimeOrder()
    read = InMemory(
        read_blocks(layout, config.path, config.rows, features=features, labels=labels, progress=progress, order=order)
    )
    if config.split == "chronological":
        _check_order(config, order.first_too_early)
    return read


def _check_converted(config: ClickData, columns: InParquet) -> None:
    if config.split == "chronological":
        _check_order(config, first_too_early(config, columns))


def _check_order(config: ClickData, too_early: int | None) -> None:
    """Refuse to call a split chronological whose records are not in order of time."""
    if too_early is not None and too_early < (config.rows or too_early + 1):
        raise DataError(
            f"{config.path}: record {too_early + 1} is earlier than the one before it, and a chronological split takes "
            "the records in their order: sort the file by time, or set data.split to random"
        )


def _relabelled(config: ClickData, relabelling: Relabelling, progress: Progress | None) -> InMemory:
    if config.path.is_dir():
        blocks = converted_tables(config)
    else:
        blocks = read_blocks(layout_of(config), config.path, config.rows, progress=progress)
    return InMemory(_with_other_labels(blocks, relabelling))


def _with_other_labels(blocks: Iterator[Any], relabelling: Relabelling) -> Iterator[Any]:
    done = 0
    for block in blocks:
        labels = relabelling(block[LABEL].to_numpy(), len(CLASS_NAMES), done)
        yield block.set_column(block.column_names.index(LABEL), LABEL, pa.array(labels, pa.int8()))
        done += len(block)


def _feature_side(config: ClickData, columns: InMemory, progress: Progress | None) -> FeatureSide:
    train, test = _split(config, columns)
    encoder = learn(layout_of(config), config, columns, train)
    categorical = np.empty((len(columns), len(encoder.fields)), dtype=np.int32)
    numeric = np.empty((len(columns), len(encoder.numeric_fields)), dtype=np.float32)
    done = 0
    for batch_categorical, batch_numeric in _encoded(config, encoder, columns, progress):
        rows = slice(done, done + len(batch_categorical))
        categorical[rows], numeric[rows] = batch_categorical, batch_numeric
        done = rows.stop
    features = Features(categorical, numeric, encoder.embedding_rows, tuple(encoder.fields), encoder.numeric_fields)
    return FeatureSide(FEATURE_PARTY, columns.column(ID), features, train, test)


def _label_side(config: ClickData, columns: InMemory) -> LabelSide:
    train, test = _split(config, columns)
    labels = columns.column(LABEL).to_numpy().astype(np.int64)
    records = LabelRecords(columns.column(ID), None, CLASS_NAMES, train, test)
    return LabelSide(records, TrueLabels(labels, CLASS_NAMES))


def _mapped_feature_side(config: ClickData, progress: Progress | None) -> FeatureSide:
    columns = converted_features(config)
    _check_converted(config, columns)
    train, test = _split(config, columns)
    key = {**_identity(columns), "encoding": _ENCODING, **config.model_dump(mode="json", exclude={"path"})}
    folder = kept(config.path, "feature", key, partial(_write_features, config, columns, train, progress))
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    features = Features(
        mapped(folder / "categorical.npy"),
        mapped(folder / "numeric.npy"),
        about["embedding_rows"],
        tuple(about["categorical_fields"]),
        tuple(about["numeric_fields"]),
    )
    return FeatureSide(FEATURE_PARTY, _mapped_ids(config, columns), features, train, test)


def _mapped_label_side(config: ClickData) -> LabelSide:
    columns = converted_labels(config)
    _check_converted(config, columns)
    train, test = _split(config, columns)
    key = {**_identity(columns), "rows": config.rows}
    labels = mapped(kept(config.path, "label", key, partial(_write_labels, columns)) / "labels.npy")
    records = LabelRecords(_mapped_ids(config, columns), None, CLASS_NAMES, train, test)
    return LabelSide(records, TrueLabels(labels, CLASS_NAMES))


def _mapped_ids(config: ClickData, columns: InParquet) -> Any:
    name = f"{columns.path.stem}-ids"
    key = {**_identity(columns), "rows": config.rows}
    return mapped_texts(kept(config.path, name, key, partial(_write_ids, columns)), "id")


def _write_features(
    config: ClickData, columns: InParquet, train: Rows, progress: Progress | None, folder: Path
) -> None:
    encoder = learn(layout_of(config), config, columns, train)
    about = {
        "embedding_rows": encoder.embedding_rows,
        "categorical_fields": list(encoder.fields),
        "numeric_fields": list(encoder.numeric_fields),
    }
    write_durably(folder / "about.json", json.dumps(about, indent=1).encode())
    with (
        NewArray(folder / "categorical.npy", np.int32, len(encoder.fields)) as categorical,
        NewArray(folder / "numeric.npy", np.float32, len(encoder.numeric_fields)) as numeric,
    ):
        for batch_categorical, batch_numeric in _encoded(config, encoder, columns, progress):
            categorical.append(batch_categorical)
            numeric.append(batch_numeric)


def _write_labels(columns: InParquet, folder: Path) -> None:
    with NewArray(folder / "labels.npy", np.int64) as labels:
        for batch in columns.batches([LABEL]):
            labels.append(batch[LABEL].to_numpy())


def _write_ids(columns: InParquet, folder: Path) -> None:
    with NewTexts(folder, "id") as ids:
        for batch in columns.batches([ID]):
            ids.append(batch[ID])


def _encoded(config: ClickData, encoder: Encoder, columns: Columns, progress: Progress | None) -> Iterator[Encoded]:
    done = 0
    for categorical, numeric in encoder.encode(columns):
        yield categorical, numeric
        done += len(categorical)
        if progress is not None:
            progress(done, len(columns), f"encoding {config.path.name}")


def _split(config: ClickData, columns: Columns) -> tuple[Rows, Rows]:
    return split_rows(len(columns), config.split, config.test_fraction, config.split_seed)


def _identity(columns: InParquet) -> dict[str, Any]:
    """Return what tells a converted file from one that was converted into its place later."""
    status = columns.path.stat()
    return {"bytes": status.st_size, "modified": status.st_mtime_ns}
