"""Categories whose values hardly repeat, as ids do: they teach nothing, and may tell who a record is about."""

from __future__ import annotations

from collections.abc import Iterator

from tpsl.data.dataset import Dataset
from tpsl.data.encoder import Vocabulary
from tpsl.data.features import Features
from tpsl.data.row_encoder import UNSEEN
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide

ID_LIKE = 0.9
"""From this share of records with a value of their own on, a column is like an id."""
_ASKED = 4096


def id_warnings(records: Dataset | FeatureSide | LabelSide) -> Iterator[str]:
    """Yield a sentence for each such column among the training records, of which some thousands are asked."""
    if isinstance(records, Dataset):
        for side in records.feature_sides.values():
            yield from id_warnings(side)
        yield from id_warnings(records.label_side)
        return
    party, held = ("label", records.records) if isinstance(records, LabelSide) else (records.party, records)
    for name in _id_columns(held):
        yield (
            f"the column {name!r} of {party} hardly repeats a value, as an id would: it teaches nothing, and may tell "
            "who a record is about"
        )


def _id_columns(side: FeatureSide | LabelRecords) -> Iterator[str]:
    if side.encoder is None or not isinstance(side.features, Features):
        return
    asked, first = side.features.batch(side.train[:: -(-len(side.train) // _ASKED)])[0], 0
    for field, (name, part) in enumerate(side.encoder.categories.items()):
        if isinstance(part, Vocabulary):
            rare = (asked[:, field] == first + UNSEEN).mean()
            if max(rare, len(part.values) / len(side.train)) >= ID_LIKE:
                yield name
        first += part.size
