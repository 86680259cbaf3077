"""From one party's raw table to its side of the data: ordered, split, encoded."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tpsl.data import arrays
from tpsl.data.arrays import cached, keep, mapped
from tpsl.data.config import ClickData, TableData
from tpsl.data.encoder import Categories, EncoderState, HashedCategories, IndexedCategories, learn
from tpsl.data.errors import DataError
from tpsl.data.features import Features
from tpsl.data.party_file import PartyFile
from tpsl.data.rawtable import Order, RawTable, sorted_by_id
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide
from tpsl.data.split import Rows, split_rows
from tpsl.data.true_labels import TrueLabels
from tpsl.progress import Progress, no_progress

Encoded = tuple[EncoderState, Features]

# Part of what encoded tables in the cache are found by; a new number for every change of the encoding.
_ENCODING = 1


@dataclass(frozen=True)
class Preparation:
    """What all parties do to their own raw tables, as the shared configuration says.

    Records are in the canonical order, or in that of the file where all parties hold the same one (`in_file_order`);
    then a chronological split needs times that ascend.
    """

    split: Literal["random", "chronological"]
    test_fraction: float
    split_seed: int
    categories: Categories
    in_file_order: bool = False
    encoder: EncoderState | None = field(default=None, repr=False)
    """What an earlier run has learned: it encodes these records too, and nothing is learned from them."""

    @classmethod
    def of(
        cls, config: TableData | ClickData, in_file_order: bool = False, encoder: EncoderState | None = None
    ) -> "Preparation":
        """Return what a configuration of tables says."""
        hashed = config.categories == "hash"
        categories = HashedCategories(config.hash_buckets) if hashed else IndexedCategories(config.min_count)
        return cls(config.split, config.test_fraction, config.split_seed, categories, in_file_order, encoder)

    def load_feature_side(self, party: str, file: PartyFile, progress: Progress = no_progress) -> FeatureSide:
        """Read a feature party's file; encoded features that do not fit into memory are kept in the cache."""
        place = self._place(file)
        raw = file.read(label=False, features=not place.is_dir(), progress=progress)
        return self.feature_side(party, raw, place, progress)

    def load_label_side(self, file: PartyFile, class_names: tuple[str, ...], progress: Progress) -> LabelSide:
        """Read the label party's file; encoded features that do not fit into memory are kept in the cache."""
        place = self._place(file)
        raw = file.read(label=True, features=not place.is_dir(), progress=progress)
        return self.label_side(raw, class_names, place, progress)

    def feature_side(
        self, party: str, raw: RawTable, place: Path | None = None, progress: Progress = no_progress
    ) -> FeatureSide:
        """Order, split and encode a feature party's table; `place` is where encoded features may be kept."""
        order, train, test = self._rows(raw)
        encoder, features = self._encoded(raw, order, train, place, progress)
        return FeatureSide(party, _taken(raw.ids, order), features, train, test, encoder)

    def label_side(
        self,
        raw: RawTable,
        class_names: tuple[str, ...],
        place: Path | None = None,
        progress: Progress = no_progress,
    ) -> LabelSide:
        """Order, split and encode the label party's table; `place` is where encoded features may be kept."""
        if raw.labels is None:
            raise ValueError(f"{raw.name}: the label party's table has no labels")
        order, train, test = self._rows(raw)
        has_features = bool(raw.columns or raw.categorical or raw.numeric)
        encoder, features = self._encoded(raw, order, train, place, progress) if has_features else (None, None)
        ids, units = _taken(raw.ids, order), None if raw.units is None else _taken(raw.units, order)
        records = LabelRecords(ids, features, class_names, train, test, units, encoder)
        return LabelSide(records, TrueLabels(raw.labels if order is None else raw.labels[order], class_names))

    def _rows(self, raw: RawTable) -> tuple[Order | None, Rows, Rows]:
        order = None if self.in_file_order else raw.canonical_order()
        rows = len(raw) if order is None else len(order)
        train, test = split_rows(rows, self.split, self.test_fraction, self.split_seed)
        if not self.in_file_order:
            return order, train, test
        sorted_by_id(raw.name, raw.ids, raw.dialect)
        if raw.times is not None and (raw.times[1:] < raw.times[:-1]).any():
            record = int(np.argmax(raw.times[1:] < raw.times[:-1])) + 2
            raise DataError(
                f"{raw.name}: record {record} is earlier than the one before it, and a chronological split takes "
                "the records in their order: sort the file by time, or set data.split to random"
            )
        return None, train, test

    def _encoded(
        self, raw: RawTable, order: Order | None, train: Rows, place: Path | None, progress: Progress
    ) -> Encoded:
        def encoded(folder: Path | None) -> Encoded:
            if self.encoder is None:
                return learn(raw, self.categories, train, order, folder, progress)
            return self.encoder, self.encoder.encode(raw, order, folder, progress)

        if place is None or (not place.is_dir() and not self._is_large(raw)):
            return encoded(None)
        if not place.is_dir():
            keep(place, lambda folder: encoded(folder)[0].save(folder))
        state = EncoderState.load(place)
        return state, state.features(mapped(place / "categorical.npy"), mapped(place / "numeric.npy"))

    def _is_large(self, raw: RawTable) -> bool:
        return len(raw) * (len(raw.categorical) + len(raw.numeric)) * 4 > arrays.LARGE_BYTES

    def _place(self, file: PartyFile) -> Path:
        """Return the folder in the cache for the encoded features of this file."""
        encoder = self.encoder.digest() if self.encoder else None
        return cached({**file.identity(), "encoding": _ENCODING, "preparation": repr(self), "encoder": encoder})


def _taken(values: Any, order: Order | None) -> Any:
    return values if order is None else values.take(order)
