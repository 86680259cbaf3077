"""What the network reads of one party: encoded features of a table, in memory or on disk, or inputs of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tpsl.data.order import Rows
from tpsl.data.out_of_core import is_mapped, release_pages
from tpsl.spill import Array
from tpsl.tables import DataError

_ROWS_AT_ONCE = 1 << 18
# The system maps up to a megabyte around each row that is read, so a batch of a mapped array is gathered in pieces; and
# in ascending order, because then one such map serves several rows: measured on 4 million rows, in a fifth of the time.
_GATHERED_AT_ONCE = 1 << 8


@dataclass(frozen=True)
class Features:
    """Encoded records of one party: `categorical` int32 [n, F] and `numeric` float32 [n, M].

    All categorical fields share one embedding table of `embedding_rows` rows: an entry is the row number in that
    table, and the rows of two fields never overlap. Numeric columns are standardised with statistics of the
    training records; a missing number is 0 (the training mean), and a column with missing numbers in training is
    followed by a 0/1 indicator column of its own, called `"<name> missing"`. Construction checks shapes, types and
    ranges. Large arrays are memory-mapped.
    """

    categorical: npt.NDArray[np.int32]
    numeric: npt.NDArray[np.float32]
    embedding_rows: int
    categorical_fields: tuple[str, ...]
    numeric_fields: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.categorical.dtype != np.int32 or self.numeric.dtype != np.float32:
            raise TypeError(f"features are int32 and float32, not {self.categorical.dtype} and {self.numeric.dtype}")
        rows = len(self.categorical)
        expected = ((rows, len(self.categorical_fields)), (rows, len(self.numeric_fields)))
        if (self.categorical.shape, self.numeric.shape) != expected:
            raise ValueError(f"features of shapes {self.categorical.shape}, {self.numeric.shape} do not fit {expected}")
        for start in range(0, rows, _ROWS_AT_ONCE):
            part = self.categorical[start : start + _ROWS_AT_ONCE]
            if part.size and not 0 <= part.min() <= part.max() < self.embedding_rows:
                raise ValueError(f"a category lies outside the {self.embedding_rows} rows of the embedding table")
            self.release_pages()

    def __len__(self) -> int:
        return len(self.categorical)

    @property
    def is_mapped(self) -> bool:
        """Whether the arrays lie on disk."""
        return is_mapped(self.categorical) or is_mapped(self.numeric)

    def batch(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return categories and numbers of these rows; of mapped arrays next to nothing stays in memory."""
        found = (
            np.empty((len(rows), len(self.categorical_fields)), np.int32),
            np.empty((len(rows), len(self.numeric_fields)), np.float32),
        )
        ascending = np.argsort(rows)
        for start in range(0, len(rows), _GATHERED_AT_ONCE):
            part = ascending[start : start + _GATHERED_AT_ONCE]
            found[0][part], found[1][part] = self.categorical[rows[part]], self.numeric[rows[part]]
            self.release_pages()
        return found

    def take(self, rows: npt.NDArray[np.int64]) -> "Features":
        """Return the features of these row positions, in this order."""
        return replace(self, categorical=self.categorical[rows], numeric=self.numeric[rows])

    def release_pages(self) -> None:
        """Take what was read of memory-mapped arrays out of this process's memory; it is read again when needed."""
        release_pages(self.categorical)
        release_pages(self.numeric)


def joined_features(parties: Sequence[Features]) -> Features:
    """Return the features of several parties, which have the same records in the same order, as those of one."""
    starts = np.cumsum([0, *(held.embedding_rows for held in parties)])
    categorical = [held.categorical + np.int32(start) for held, start in zip(parties, starts, strict=False)]
    return Features(
        np.concatenate(categorical, axis=1),
        np.concatenate([held.numeric for held in parties], axis=1),
        int(starts[-1]),
        tuple(name for held in parties for name in held.categorical_fields),
        tuple(name for held in parties for name in held.numeric_fields),
    )


Arrays = tuple[Array, ...]


class Inputs(Protocol):
    """Records that a user brings, in the canonical order: anything that gives the arrays of some rows."""

    def __len__(self) -> int: ...

    def batch(self, rows: Rows) -> Arrays:
        """Return the inputs of these rows: arrays whose first dimension is that of `rows`."""


def table_features(inputs: Features | Inputs, wanted_by: str) -> Features:
    """Return the features of a table; inputs of a user's own are an error that names what needs a table."""
    if not isinstance(inputs, Features):
        raise DataError(f"{wanted_by} needs the features of a table, and these are inputs of a party's own")
    return inputs
