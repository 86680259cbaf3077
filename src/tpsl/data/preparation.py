"""From one party's raw table to its side of the data: ordered, split, encoded."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from tpsl.data import out_of_core
from tpsl.data.aligned import Alignment, alignment_of
from tpsl.data.config import LabelFile, TableData, TableFile, in_time
from tpsl.data.encoder import Categories, EncoderState, HashedCategories, IndexedCategories, learn
from tpsl.data.features import Features
from tpsl.data.order import Rows, split_rows
from tpsl.data.out_of_core import cached, is_kept, keep, mapped, taken, taken_texts
from tpsl.data.party_file import Labels, PartyFile
from tpsl.data.rawtable import RawTable, sorted_by_id
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide, OwnRecords, Relabelling
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.progress import Progress, no_progress
from tpsl.spill import ArrowArray
from tpsl.tables.locations import Location
from tpsl.tables.reading import column_names, dialect_of

Encoded = tuple[EncoderState, Features]

# Part of what encoded tables in the cache are found by; a new number for every change of the encoding.
_ENCODING = 1


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

    def load_feature_side(self, party: str, file: PartyFile, progress: Progress = no_progress) -> FeatureSide:
        """Read a feature party's file; encoded features that do not fit into memory are kept in the cache."""
        place = self._place(file)
        raw = file.read(label=False, features=not is_kept(place), progress=progress)
        self._require_unchanged(file, place)
        return self.feature_side(party, raw, place, progress)

    def load_label_side(self, file: PartyFile, class_names: tuple[str, ...], progress: Progress) -> LabelSide:
        """Read the label party's file; encoded features that do not fit into memory are kept in the cache."""
        place = self._place(file)
        raw = file.read(label=file.labels is not None, features=not is_kept(place), progress=progress)
        self._require_unchanged(file, place)
        side = self.label_side(raw, class_names, place, progress)
        return side if self.alignment is None or file.id is None else _with_own_ids(side, raw, self.alignment)

    def feature_side(
        self, party: str, raw: RawTable, place: Path | None = None, progress: Progress = no_progress
    ) -> FeatureSide:
        """Order, split and encode a feature party's table; `place` is where encoded features may be kept."""
        order, train, test = self._rows(raw)
        encoder, features = self._encoded(raw, order, train, place, progress)
        return FeatureSide(party, self._ids(raw, order), features, train, test, encoder)

    def label_side(
        self,
        raw: RawTable,
        class_names: tuple[str, ...],
        place: Path | None = None,
        progress: Progress = no_progress,
    ) -> LabelSide:
        """Order, split and encode the label party's table; `place` is where encoded features may be kept.

        Where an alignment makes new records, one record of each unit has its label, and the others count as unknown.
        """
        are_new = self.alignment is not None and self.alignment.makes_new_records
        if self.alignment is not None and are_new and raw.units is not None:
            one_each = self.alignment.with_one_record_for_each(raw.units)
            further = int((one_each.rows != self.alignment.rows).sum())
            counted = replace(self, alignment=one_each)
            side = counted.label_side(replace(raw, units=None), class_names, place, progress)
            return replace(side, records=replace(side.records, further_records=further))
        order, train, test = self._rows(raw)
        has_features = bool(raw.columns or raw.categorical or raw.numeric)
        encoder, features = self._encoded(raw, order, train, place, progress) if has_features else (None, None)
        ids, units = self._ids(raw, order), None if raw.units is None else _taken(raw.units, order)
        records = LabelRecords(ids, features, class_names, train, test, units, encoder, are_new)
        return LabelSide(records, TrueLabels(self._labels(raw, order), class_names))

    def _ids(self, raw: RawTable, order: Rows | None) -> ArrowArray:
        return _taken(raw.ids, order) if self.alignment is None else self.alignment.ids()

    def _labels(self, raw: RawTable, order: Rows | None) -> npt.NDArray[np.int64]:
        if self.alignment is not None:
            return self.alignment.labels(raw.labels)
        if raw.labels is None:
            raise ValueError(f"{raw.name}: the label party's table has no labels")
        return raw.labels if order is None else taken(raw.labels, order)

    def order(self, raw: RawTable) -> Rows | None:
        """Return which rows of a table are the records, and in which order; None: all, as they are."""
        return raw.canonical_order() if self.alignment is None else self.alignment.rows

    def _rows(self, raw: RawTable) -> tuple[Rows | None, Rows, Rows]:
        """Return the order of the records, and their split."""
        order = self.order(raw)
        records = len(raw) if order is None else len(order)
        return order, *split_rows(records, self.split, self.test_fraction, self.split_seed)

    def _encoded(
        self, raw: RawTable, order: Rows | None, train: Rows, place: Path | None, progress: Progress
    ) -> Encoded:
        def encoded(folder: Path | None) -> Encoded:
            if self.encoder is None:
                return learn(raw, self.categories, train, order, folder, progress)
            return self.encoder, self.encoder.encode(raw, order, folder, progress)

        if place is None or (not is_kept(place) and not self._is_large(raw)):
            return encoded(None)
        if not is_kept(place):
            keep(place, lambda folder: encoded(folder)[0].save(folder))
        state = EncoderState.load(place)
        return state, state.features(mapped(place / "categorical.npy"), mapped(place / "numeric.npy"))

    def _is_large(self, raw: RawTable) -> bool:
        return len(raw) * (len(raw.categorical) + len(raw.numeric)) * 4 > out_of_core.LARGE_BYTES

    def _place(self, file: PartyFile) -> Path:
        """Return the folder in the cache for the encoded features of this file."""
        encoder = self.encoder.digest() if self.encoder else None
        return cached(
            str(file.path), {**file.identity(), "encoding": _ENCODING, "preparation": repr(self), "encoder": encoder}
        )

    def _require_unchanged(self, file: PartyFile, place: Path) -> None:
        if self._place(file) != place:
            raise file.changed()


def _with_own_ids(side: LabelSide, raw: RawTable, alignment: Alignment) -> LabelSide:
    """Return aligned records with what the label party's file calls them, or with all its records if they are new."""
    if not alignment.makes_new_records:
        sorted_by_id(raw.name, raw.ids, raw.dialect)  # or an error: there each is unique
        return replace(side, records=replace(side.records, own_ids=taken_texts(raw.ids, alignment.rows)))
    labels = np.ones(len(raw), np.int64) if raw.labels is None else raw.labels  # or membership is the label
    return replace(side, in_file=OwnRecords(raw.ids, TrueLabels(labels, side.labels.class_names)))


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
    labels = label_column(config, relabelling=relabelling)
    return preparation.load_feature_side(party, party_file(file, config, labels), progress)


def label_side(
    config: TableData,
    progress: Progress = no_progress,
    *,
    late_labels: bool = False,
    relabelling: Relabelling | None = None,
    encoder: EncoderState | None = None,
) -> LabelSide:
    """Load the label party's side from its file; `late_labels` may be missing, `encoder` is that of an earlier run."""
    preparation = Preparation.of(config, alignment=alignment_of(config, config.label, progress), encoder=encoder)
    # Records that are not in the label party's file have a label too: there not all of them could be changed.
    in_file, afterwards = (None, relabelling) if config.makes_new_records else (relabelling, None)
    file = party_file(config.label, config, label_column(config, late_labels, in_file))
    file = replace(file, id=id_column(config, config.label, file.path))
    side = preparation.load_label_side(file, config.class_names, progress)
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


def label_column(config: TableData, late: bool = False, relabelling: Relabelling | None = None) -> Labels | None:
    """Return the label column; None where membership is the label."""
    column = config.label.label
    return None if column is None else Labels(column, config.class_names, late, relabelling)
