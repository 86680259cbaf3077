"""What `encode` learns from the training rows, kept: rows that come later are encoded as the training rows were."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tpsl.data.encode import FIRST_VALUE, MISSING, UNSEEN, Standard, _standard, codes_and_values
from tpsl.data.features import Features
from tpsl.data.rawtable import RawTable


@dataclass(frozen=True)
class FittedEncoding:
    """Vocabularies of the categories, means and deviations of the numbers.

    Guarantee: with the rows it was learned from as `train`, `tpsl.data.encode.encode` with `IndexedCategories` gives
    every row of a table the same numbers.
    """

    vocabularies: dict[str, Any]  # column -> pa.Array of text, ascending
    standards: dict[str, Standard]

    @classmethod
    def learn(cls, table: RawTable, min_count: int) -> "FittedEncoding":
        """Learn from all rows of a table; a category that fewer than `min_count` of them have counts as unseen."""
        vocabularies = {name: _vocabulary(values, min_count) for name, values in table.categorical.items()}
        return cls(vocabularies, {name: _standard(values) for name, values in table.numeric.items()})

    @property
    def embedding_rows(self) -> int:
        """Number of rows of the embedding table that all fields share."""
        return sum(FIRST_VALUE + len(vocabulary) for vocabulary in self.vocabularies.values())

    def encode(self, table: RawTable) -> Features:
        """Return the features of a table with the columns that were learned from."""
        categorical = np.empty((len(table), len(self.vocabularies)), dtype=np.int32)
        first_row = 0
        for field, (name, vocabulary) in enumerate(self.vocabularies.items()):
            codes, distinct = codes_and_values(table.categorical[name])
            known = pc.index_in(distinct, value_set=vocabulary).fill_null(UNSEEN - FIRST_VALUE)
            row_of_code = np.append(FIRST_VALUE + known.to_numpy(zero_copy_only=False), MISSING)  # code -1
            categorical[:, field] = first_row + row_of_code[codes]
            first_row += FIRST_VALUE + len(vocabulary)
        names = tuple(column for name, standard in self.standards.items() for column in standard.column_names(name))
        numeric = np.empty((len(table), len(names)), dtype=np.float32)
        done = 0
        for name, standard in self.standards.items():
            done = standard.fill(numeric, done, table.numeric[name])
        return Features(categorical, numeric, self.embedding_rows, tuple(self.vocabularies), names)


def _vocabulary(values: Any, min_count: int) -> Any:
    codes, distinct = codes_and_values(values)
    counts = np.bincount(codes + 1, minlength=len(distinct) + 1)[1:]
    by_text = pc.array_sort_indices(distinct)
    return distinct.take(by_text.filter(counts[by_text.to_numpy()] >= min_count))
