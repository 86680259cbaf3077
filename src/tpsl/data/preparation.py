"""From one party's raw table to its side of the data: ordered, split, encoded."""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tpsl.data.aligned import Alignment, alignment_of
from tpsl.data.config import LabelFile, TableData, TableFile, in_time
from tpsl.data.encoder import Categories, EncoderState, HashedCategories, IndexedCategories, learn
from tpsl.data.features import Features
from tpsl.data.order import Rows, split_rows
from tpsl.data.out_of_core import taken, taken_texts
from tpsl.data.party_file import Labels, PartyFile
from tpsl.data.rawtable import RawTable, sorted_by_id
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide, OwnRecords, Relabelling
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.progress import Progress, no_progress
from tpsl.spill import ArrowArray
from tpsl.tables.locations import Location
from tpsl.tables.reading import column_names, dialect_of

Encoded = tuple[EncoderState, Features]


@dataclass(frozen=True)
class Preparation:
    """What all parties do to their own raw tables, as the shared configuration says.

    Records are in the canonical order; with an `alignment` they are its records, in its order.
    """

    split: Literal["random", "chronological"]
    test_fraction: float
    split_seed: int
    categories: Categories
    alignment: Alignment | None = None
    encoder: EncoderState | None = field(default=None, repr=False)
    """What an earlier run has learned: it encodes these records too, and nothing is learned from them."""

    @classmethod
    def of(
        cls,
        config: TableData,
        alignment: Alignment | None = None,
        encoder: EncoderState | None = None,
    ) -> "Preparation":
        """Return what a configuration of tables says."""
        hashed = config.categories == "hash"
        categories = HashedCategories(config.hash_buckets) if hashed else IndexedCategories(config.min_count)
        split = config.split, config.test_fraction, config.split_seed
        return cls(*split, categories, alignment=alignment, encoder=encoder)

    def feature_side(self, party: str, table: PartyFile | RawTable, progress: Progress = no_progress) -> FeatureSide:
        """Order, split and encode a feature party's table."""
        raw = self._read(table, progress, label=False)
        order, train, test = self._rows(raw)
        encoder, features = self._encoded(raw, order, train, progress)
        return FeatureSide(party, self._ids(raw, order), features, train, test, encoder)

    def label_side(
        self, table: PartyFile | RawTable, class_names: tuple[str, ...], progress: Progress = no_progress
    ) -> LabelSide:
        """Order, split and encode the label party's table.

        Where an alignment makes new records, one record of each unit has its label, and the others count as unknown.
        """
        raw = self._read(table, progress, label=True)
        order, train, test = self._rows(raw)
        has_features = bool(raw.columns or raw.categorical or raw.numeric)
        encoder, features = self._encoded(raw, order, train, progress) if has_features else (None, None)
        records = LabelRecords(self._ids(raw, order), features, class_names, train, test, encoder=encoder)
        if self.alignment is not None:
            own_ids = isinstance(table, PartyFile) and table.id is not None
            return _aligned(records, raw, self.alignment, own_ids=own_ids)
        if raw.labels is None:
            raise ValueError(f"{raw.name}: the label party's table has no labels")
        labels = raw.labels if order is None else taken(raw.labels, order)
        units = None if raw.units is None else _taken(raw.units, order)
        return LabelSide(replace(records, units=units), TrueLabels(labels, class_names))

    def _read(self, table: PartyFile | RawTable, progress: Progress, *, label: bool) -> RawTable:
        if isinstance(table, RawTable):
            return table
        return table.read(label=label and table.labels is not None, progress=progress)

    def _ids(self, raw: RawTable, order: Rows | None) -> ArrowArray:
        return _taken(raw.ids, order) if self.alignment is None else self.alignment.ids()

    def order(self, raw: RawTable) -> Rows | None:
        """Return which rows of a table are the records, and in which order; None: all, as they are."""
        return raw.canonical_order() if self.alignment is None else self.alignment.rows

    def _rows(self, raw: RawTable) -> tuple[Rows | None, Rows, Rows]:
        """Return the order of the records, and their split."""
        order = self.order(raw)
        records = len(raw) if order is None else len(order)
        return order, *split_rows(records, self.split, self.test_fraction, self.split_seed)

    def _encoded(self, raw: RawTable, order: Rows | None, train: Rows, progress: Progress) -> Encoded:
        if self.encoder is None:
            return learn(raw, self.categories, train, order, progress)
        return self.encoder, self.encoder.encode(raw, order, progress)


def _aligned(records: LabelRecords, raw: RawTable, alignment: Alignment, *, own_ids: bool) -> LabelSide:
    """Return aligned records with their labels, and with what the label party's file calls them, if it names them.

    Where the alignment makes new records, these come with all records of the file instead.
    """
    names = records.class_names
    if not alignment.makes_new_records:
        units = None if raw.units is None else _taken(raw.units, alignment.rows)
        if own_ids:
            sorted_by_id(raw.name, raw.ids)  # or an error: there each is unique
            records = replace(records, own_ids=taken_texts(raw.ids, alignment.rows))
        return LabelSide(replace(records, units=units), TrueLabels(alignment.labels(raw.labels), names))
    known = alignment if raw.units is None else alignment.with_one_record_for_each(raw.units)
    records = replace(records, ids_are_new=True, further_records=int((known.rows != alignment.rows).sum()))
    side = LabelSide(records, TrueLabels(known.labels(raw.labels), names))
    labels = np.ones(len(raw), np.int64) if raw.labels is None else raw.labels  # or membership is the label
    return replace(side, in_file=OwnRecords(raw.ids, TrueLabels(labels, names))) if own_ids else side


def _taken(values: ArrowArray, order: Rows | None) -> ArrowArray:
    return values if order is None else taken_texts(values, order)


def feature_side(
    config: TableData,
    party: str,
    progress: Progress = no_progress,
    relabelling: Relabelling | None = None,
    encoder: EncoderState | None = None,
) -> FeatureSide:
    """Load a feature party's side from its file; an `encoder` of an earlier run encodes it, if there is one."""
    file = next(file for file in config.features if file.party == party)
    preparation = Preparation.of(config, alignment=alignment_of(config, file, progress), encoder=encoder)
    labels = label_column(config, relabelling)
    return preparation.feature_side(party, party_file(file, config, labels), progress)


def label_side(
    config: TableData,
    progress: Progress = no_progress,
    *,
    relabelling: Relabelling | None = None,
    encoder: EncoderState | None = None,
) -> LabelSide:
    """Load the label party's side from its file; `encoder` is that of an earlier run."""
    preparation = Preparation.of(config, alignment=alignment_of(config, config.label, progress), encoder=encoder)
    # Records that are not in the label party's file have a label too: there not all of them could be changed.
    in_file, afterwards = (None, relabelling) if config.makes_new_records else (relabelling, None)
    file = party_file(config.label, config, label_column(config, in_file))
    file = replace(file, id=id_column(config, config.label, file.path))
    side = preparation.label_side(file, config.class_names, progress)
    if afterwards is None:
        return side
    return replace(side, labels=TrueLabels(afterwards(reveal(side.labels), config.classes), config.class_names))


def party_file(file: TableFile, config: TableData, labels: Labels | None) -> PartyFile:
    """Return what a party's file holds; a relabelling changes the label column, whoever reads it.

    Aligned records take their ids and their order from the alignment.
    """
    columns = dict.fromkeys(file.categorical, "category") | dict.fromkeys(file.numeric, "number")
    aligned = config.alignment is not None
    return PartyFile(
        file.path,
        columns | dict.fromkeys(file.dates, file.date_kind),
        None if aligned else file.id,
        file.time if in_time(config) and not aligned else None,
        file.time_kind,
        since=config.since,
        unit=file.unit if isinstance(file, LabelFile) else None,
        labels=labels if file.path == config.label.path else None,
        missing=file.missing,
        dialect=dialect_of(file.path),
    )


def id_column(config: TableData, file: TableFile, path: Location) -> str | None:
    """Return the column of a party's own ids; aligned records need none, and are called by their row then."""
    is_needed = config.alignment is None or file.id in column_names(path, dialect_of(path))
    return file.id if is_needed else None


def label_column(config: TableData, relabelling: Relabelling | None = None) -> Labels | None:
    """Return the label column; None where membership is the label."""
    column = config.label.label
    return None if column is None else Labels(column, config.class_names, relabelling)
