"""From raw columns to `Features`, learning from training rows only.

Index: a field of v kept values takes v + 2 rows of the embedding table: row 0 for unseen and rare values, row 1 for a
missing value, then the values in order of their text. Hash: a field takes buckets + 1 rows: row 0 for a missing value,
row 1 + h(value) otherwise, where h is BLAKE2b with an 8-byte digest of the UTF-8 text, read as a little-endian integer,
modulo the number of buckets. Neither depends on the process, the platform or the order of the rows.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.errors import DataError
from tpsl.data.features import Features
from tpsl.data.rawtable import RawTable
from tpsl.data.split import Rows

UNSEEN, MISSING, FIRST_VALUE = 0, 1, 2

# A training value is at most sqrt(rows) deviations from the mean, so this cuts none of up to 100 million; a test value
# further away is an accident that would overflow in the network.
MOST_DEVIATIONS = 1e4


@dataclass(frozen=True)
class IndexedCategories:
    """A vocabulary of the values that at least `min_count` training records have."""

    min_count: int = 1

    def rows(self, values: Any, train: Rows) -> tuple[npt.NDArray[np.int32], int]:
        """Return each record's row within the field, and the number of rows of the field."""
        codes, vocabulary = codes_and_values(values)
        counts = np.bincount(codes[train] + 1, minlength=len(vocabulary) + 1)[1:]
        by_text = pc.array_sort_indices(vocabulary).to_numpy()
        kept = by_text[counts[by_text] >= self.min_count]
        row_of_code = np.full(len(vocabulary) + 1, UNSEEN, dtype=np.int32)
        row_of_code[kept] = np.arange(FIRST_VALUE, FIRST_VALUE + len(kept), dtype=np.int32)
        row_of_code[-1] = MISSING  # code -1
        return row_of_code[codes], FIRST_VALUE + len(kept)


@dataclass(frozen=True)
class HashedCategories:
    """A fixed number of buckets for each field; needs no training data and no memory of values."""

    buckets: int

    def rows(self, values: Any, train: Rows) -> tuple[npt.NDArray[np.int32], int]:
        """Return each record's row within the field, and the number of rows of the field."""
        codes, vocabulary = codes_and_values(values)
        row_of_code = np.zeros(len(vocabulary) + 1, dtype=np.int32)
        row_of_code[:-1] = [1 + stable_hash(text) % self.buckets for text in vocabulary.to_pylist()]
        return row_of_code[codes], 1 + self.buckets


Categories = IndexedCategories | HashedCategories


def stable_hash(text: str) -> int:
    """Return the 64-bit hash that bucket numbers come from: the same in every process, version and language."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def encode(table: RawTable, train: Rows, categories: Categories) -> Features:
    """Encode a party's table; vocabularies, means and deviations come from the `train` rows alone."""
    categorical = np.empty((len(table), len(table.categorical)), dtype=np.int32)
    embedding_rows = 0
    for field, (name, values) in enumerate(table.categorical.items()):
        field_rows, size = categories.rows(values, train)
        if embedding_rows + size > np.iinfo(np.int32).max:
            raise DataError(f"{table.name}: with column {name!r} the embedding table has more than 2**31 rows")
        np.add(field_rows, np.int32(embedding_rows), out=categorical[:, field])
        embedding_rows += size
    numeric, numeric_fields = _numeric(table, train)
    return Features(categorical, numeric, embedding_rows, tuple(table.categorical), numeric_fields)


def codes_and_values(values: Any) -> tuple[npt.NDArray[np.int32], Any]:
    """Number the distinct values; a missing one gets -1."""
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), encoded.dictionary


@dataclass(frozen=True)
class Standard:
    """What standardises a numeric column: mean and deviation in training, and whether one was missing there."""

    mean: float
    deviation: float
    indicated: bool

    def column_names(self, name: str) -> tuple[str, ...]:
        """Return the names of the encoded columns that `name` becomes."""
        return (name, f"{name} missing") if self.indicated else (name,)

    def fill(self, encoded: npt.NDArray[np.float32], column: int, values: npt.NDArray[np.float64]) -> int:
        """Write the standardised values, and the indicator if there is one, from `column` on; return the next one."""
        missing = np.isnan(values)
        # A column that is constant up to rounding carries nothing: dividing by its deviation would only amplify dust.
        scale = self.deviation if self.deviation > 1e-12 * abs(self.mean) else 1.0
        standardised = np.clip((values - self.mean) / scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
        encoded[:, column] = np.where(missing, 0.0, standardised)
        if self.indicated:
            encoded[:, column + 1] = missing
        return column + 1 + self.indicated


def _numeric(table: RawTable, train: Rows) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    standards = {name: _standard(values[train]) for name, values in table.numeric.items()}
    names = tuple(column for name, standard in standards.items() for column in standard.column_names(name))
    encoded = np.empty((len(table), len(names)), dtype=np.float32)
    done = 0
    for name, standard in standards.items():
        done = standard.fill(encoded, done, table.numeric[name])
    return encoded, names


def _standard(values: npt.NDArray[np.float64]) -> Standard:
    missing = np.isnan(values)
    known = values[~missing]
    mean, deviation = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
    return Standard(mean, deviation, bool(missing.any()))
