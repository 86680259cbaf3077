"""From raw columns to ``Features``, learning from training rows only.

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
    """A vocabulary of the values that at least ``min_count`` training records have."""

    min_count: int = 1

    def rows(self, values: Any, train: Rows) -> tuple[npt.NDArray[np.int32], int]:
        """Return each record's row within the field, and the number of rows of the field."""
        codes, vocabulary = _codes(values)
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
        codes, vocabulary = _codes(values)
        row_of_code = np.zeros(len(vocabulary) + 1, dtype=np.int32)
        row_of_code[:-1] = [1 + stable_hash(text) % self.buckets for text in vocabulary.to_pylist()]
        return row_of_code[codes], 1 + self.buckets


Categories = IndexedCategories | HashedCategories


def stable_hash(text: str) -> int:
    """Return the 64-bit hash that bucket numbers come from: the same in every process, version and language."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def encode(table: RawTable, train: Rows, categories: Categories) -> Features:
    """Encode a party's table; vocabularies, means and deviations come from the ``train`` rows alone."""
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


def _codes(values: Any) -> tuple[npt.NDArray[np.int32], Any]:
    """Number the distinct values; a missing one gets -1."""
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), encoded.dictionary


def _numeric(table: RawTable, train: Rows) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    indicated = [name for name, values in table.numeric.items() if np.isnan(values[train]).any()]
    encoded = np.empty((len(table), len(table.numeric) + len(indicated)), dtype=np.float32)
    names: list[str] = []
    for name, values in table.numeric.items():
        missing = np.isnan(values)
        known = values[train][~missing[train]]
        mean, deviation = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
        # A column that is constant up to rounding carries nothing: dividing by its deviation would only amplify dust.
        scale = deviation if deviation > 1e-12 * abs(mean) else 1.0
        standardised = np.clip((values - mean) / scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
        encoded[:, len(names)] = np.where(missing, 0.0, standardised)
        names.append(name)
        if name in indicated:
            encoded[:, len(names)] = missing
            names.append(f"{name} missing")
    return encoded, tuple(names)
