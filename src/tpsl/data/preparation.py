"""From one party's raw table to its side of the data: ordered, split, encoded."""

from dataclasses import dataclass
from typing import Literal

from tpsl.data.encode import Categories, encode
from tpsl.data.rawtable import RawTable
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide
from tpsl.data.split import split_rows
from tpsl.data.true_labels import TrueLabels


@dataclass(frozen=True)
class Preparation:
    """What both parties do to their own raw table, as the shared configuration says."""

    split: Literal["random", "chronological"]
    test_fraction: float
    split_seed: int
    categories: Categories

    def feature_side(self, party: str, raw: RawTable) -> FeatureSide:
        """Order, split and encode a feature party's table."""
        raw = raw.in_canonical_order()
        train, test = split_rows(len(raw), self.split, self.test_fraction, self.split_seed)
        return FeatureSide(party, raw.ids, encode(raw, train, self.categories), train, test)

    def label_side(self, raw: RawTable, class_names: tuple[str, ...]) -> LabelSide:
        """Order, split and encode the label party's table."""
        raw = raw.in_canonical_order()
        if raw.labels is None:
            raise ValueError(f"{raw.name}: the label party's table has no labels")
        train, test = split_rows(len(raw), self.split, self.test_fraction, self.split_seed)
        features = encode(raw, train, self.categories) if raw.categorical or raw.numeric else None
        records = LabelRecords(raw.ids, features, class_names, train, test, raw.units)
        return LabelSide(records, TrueLabels(raw.labels, class_names))
