"""What is strange about one column: in one pass over its values, or by what an encoder has learned of it.

A category whose values hardly repeat, as ids do, teaches nothing, and may tell who a record is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.dataset import Dataset
from tpsl.data.encoder import Vocabulary
from tpsl.data.features import Features
from tpsl.data.row_encoder import UNSEEN
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide
from tpsl.metrics import auc
from tpsl.tables.columns import parsed_or_null

Hashes = npt.NDArray[np.int64]

ID_LIKE = 0.9
"""From this share of records with a value of their own on, a column is like an id."""
_MOST_COUNTED = 1 << 16
"""Distinct values that are counted of each column; of more it is known only that there are more."""
_FEW = 20
"""Fewer records say nothing about whether a category is an id."""
_MANY_NUMBERS = 50
_MOSTLY = 0.9
_TELLING = 0.99
_FEWEST_OF_A_CLASS = 10


def hashes_of(texts: Any) -> Hashes:
    """Return a number for each text, the same for the same text as long as this process runs."""
    return np.fromiter(map(hash, texts.to_pylist()), np.int64, len(texts))


class ColumnCheck:
    """Counts what a column holds: `add` takes the next values, as their kind reads them."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.records = self.missing = 0
        self._distinct: Hashes = np.empty(0, np.int64)
        self._counted = 0
        """Records among which all distinct values were counted."""
        self._some: Any = None
        self._lowest, self._highest = np.inf, -np.inf

    def add(self, values: Any) -> npt.NDArray[Any]:
        """Take in the next records; return a number for each, by which to predict its label; NaN or 0: missing."""
        self.records += len(values)
        if pa.types.is_dictionary(values.type):
            return self._add_categories(values)
        numbers = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
        found: npt.NDArray[np.float64] = numbers.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        known = found[~np.isnan(found)]
        self.missing += len(found) - len(known)
        if len(known):
            self._lowest, self._highest = min(self._lowest, known.min()), max(self._highest, known.max())
        return found

    def _add_categories(self, values: Any) -> Hashes:
        self.missing += values.null_count
        hashes = np.append(hashes_of(values.dictionary), 0)
        if len(self._distinct) < _MOST_COUNTED:
            self._distinct = np.union1d(self._distinct, hashes[:-1])
            self._counted = self.records
        if self._some is None:
            self._some = values.dictionary
        of_record: Hashes = hashes[values.indices.fill_null(len(hashes) - 1).to_numpy(zero_copy_only=False)]
        return of_record

    @property
    def distinct(self) -> int | None:
        """Number of distinct categories, at least; None for numbers and dates."""
        return None if self._some is None else len(self._distinct)

    def complaints(self) -> list[str]:
        """Return what is strange about the column, a sentence each that begins after its name."""
        found = []
        if self.missing == self.records:
            found.append("has no values, only missing ones")
        elif self.missing > _MOSTLY * self.records:
            found.append(f"is missing in {self.missing:,} of {self.records:,} records")
        elif self._is_constant():
            found.append("has the same value in every record")
        if self._some is not None and not found:
            found += self._about_categories()
        return found

    def _is_constant(self) -> bool:
        if self.missing:
            return False
        return len(self._distinct) == 1 if self._some is not None else bool(self._lowest == self._highest)

    def _about_categories(self) -> list[str]:
        if self._counted >= _FEW and len(self._distinct) >= ID_LIKE * self._counted:
            return [
                f"has {len(self._distinct):,} different values in {self._counted:,} records, as an id would: "
                "a category that hardly repeats teaches nothing, and may tell who a record is about"
            ]
        if self.kind != "category":
            return []
        texts = self._some.drop_null()
        if len(texts) > 1 and not parsed_or_null(texts, pa.timestamp("us")).null_count:
            return ["holds dates, which are read as categories: list it in `dates`"]
        are_codes = pc.any(pc.match_substring_regex(texts, "^0[0-9]")).as_py()
        if len(self._distinct) > _MANY_NUMBERS and not (are_codes or parsed_or_null(texts, pa.float64()).null_count):
            return [f"holds {len(self._distinct):,} different numbers, read as categories: is it `numeric`?"]
        return []


class LabelLeak:
    """Asks whether one column alone predicts the label almost perfectly, on a sample of records that follows from ids.

    Of the records with the smallest hashes, `MOST` at most are kept.
    """

    MOST = 1 << 15

    def __init__(self) -> None:
        self._bound = np.iinfo(np.int64).max
        self._kept: list[tuple[Hashes, npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]] = []

    def add(self, ids: Hashes, labels: npt.NDArray[np.int64], columns: dict[str, npt.NDArray[Any]]) -> None:
        """Take in the next records; those without a label (negative) are left out."""
        self._keep(ids, labels, columns, (ids < self._bound) & (labels >= 0))
        while sum(len(kept) for kept, _, _ in self._kept) > self.MOST:
            self._bound = int(np.median(np.concatenate([kept for kept, _, _ in self._kept])))
            before, self._kept = self._kept, []
            for some in before:
                self._keep(*some, some[0] < self._bound)

    def _keep(
        self,
        ids: Hashes,
        labels: npt.NDArray[np.int64],
        columns: dict[str, npt.NDArray[Any]],
        chosen: npt.NDArray[np.bool_],
    ) -> None:
        if chosen.any():
            taken = {name: values[chosen] for name, values in columns.items()}
            self._kept.append((ids[chosen], labels[chosen], taken))

    def complaints(self) -> dict[str, str]:
        """Return the columns that tell the label, with a sentence each."""
        if not self._kept:
            return {}
        labels = np.concatenate([labels for _, labels, _ in self._kept])
        classes = [number for number, count in enumerate(np.bincount(labels)) if count >= _FEWEST_OF_A_CLASS]
        if len(classes) < 2:
            return {}
        found = {}
        for name in self._kept[0][2]:
            values = np.concatenate([columns[name] for _, _, columns in self._kept])
            measure = _told_by_category if values.dtype == np.int64 else _told_by_number
            sure = measure(values, labels, classes)
            if sure > _TELLING:
                found[name] = (
                    f"alone tells the label almost perfectly ({sure:.3f} on {len(labels):,} records, 1 is perfect): "
                    "if it is made from the label, or known only after it, leave it out"
                )
        return found


def _told_by_number(values: npt.NDArray[Any], labels: npt.NDArray[np.int64], classes: list[int]) -> float:
    """Return the AUC of the number, or of its being missing, for the class it tells best from the others."""
    best, missing = 0.0, np.isnan(values)
    for number in classes:
        for scores, known in ((values, ~missing), (missing, np.ones(len(values), dtype=bool))):
            positive = labels[known] == number
            if min(positive.sum(), (~positive).sum()) >= max(_FEWEST_OF_A_CLASS, 0.1 * (labels == number).sum()):
                area = auc(scores[known], positive).value
                best = max(best, area, 1 - area)
    return best


def _told_by_category(values: Hashes, labels: npt.NDArray[np.int64], classes: list[int]) -> float:
    """Return the mean share of each class that is predicted right by the class most records of a value have.

    What a value means is learned from one half of the records and tried on the other.
    """
    half = len(values) // 2
    distinct, codes = np.unique(values, return_inverse=True)
    counts = np.zeros((len(distinct), labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (codes[:half], labels[:half]), 1)
    predicted = np.where(counts.any(axis=1), counts.argmax(axis=1), -1)[codes[half:]]
    return float(np.mean([(predicted[labels[half:] == number] == number).mean() for number in classes]))


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
