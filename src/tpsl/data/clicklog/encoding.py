"""From typed columns of any length to encoded features, learning from training rows only, in bounded memory.

Learning goes over the numbers batch by batch and over the categories field by field; encoding goes batch by batch. A
number x becomes sign(x)·log(1 + |x|), standardised; a field takes rows of the embedding table as `tpsl.data.encode`
describes, with two differences because categories are 32-bit integers here: vocabularies are in order of value, and the
hash is the output function of SplitMix64 on the value, modulo the number of buckets.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.clicklog.columns import Columns
from tpsl.data.clicklog.layout import Layout
from tpsl.data.clicklog.threads import side_by_side
from tpsl.data.config import ClickData
from tpsl.data.encode import FIRST_VALUE, MISSING, UNSEEN, Standard, codes_and_values
from tpsl.data.errors import DataError
from tpsl.data.split import Rows

Encoded = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Vocabulary:
    """The values that enough training records have, ascending."""

    values: npt.NDArray[np.uint32]
    missing = MISSING

    @property
    def size(self) -> int:
        """Number of rows of the field."""
        return FIRST_VALUE + len(self.values)

    def rows(self, values: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the row of each value within the field."""
        at = np.searchsorted(self.values, values)
        known = at < len(self.values)
        known[known] = self.values[at[known]] == values[known]
        return np.where(known, FIRST_VALUE + at, UNSEEN)


@dataclass(frozen=True)
class Buckets:
    """A fixed number of buckets."""

    count: int
    missing = 0

    @property
    def size(self) -> int:
        """Number of rows of the field."""
        return 1 + self.count

    def rows(self, values: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the row of each value within the field."""
        return 1 + (split_mix(values) % np.uint64(self.count)).astype(np.int64)


def split_mix(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Return the 64-bit hash that bucket numbers come from: the same in every process, version and language."""
    state = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@dataclass(frozen=True)
class Encoder:
    """What was learned from the training rows, and what it makes of any rows."""

    fields: dict[str, Vocabulary | Buckets]
    numbers: dict[str, Standard]

    @property
    def embedding_rows(self) -> int:
        """Number of rows of the embedding table that all fields share."""
        return sum(field.size for field in self.fields.values())

    @property
    def numeric_fields(self) -> tuple[str, ...]:
        """Names of the numeric columns, indicators of missing numbers among them."""
        return tuple(column for name, standard in self.numbers.items() for column in standard.column_names(name))

    def encode(self, columns: Columns) -> Iterator[Encoded]:
        """Yield categorical [n, F] and numeric [n, M], batch by batch."""
        for batch in columns.batches((*self.fields, *self.numbers)):
            categorical = np.empty((batch.num_rows, len(self.fields)), dtype=np.int32)
            numeric = np.empty((batch.num_rows, len(self.numeric_fields)), dtype=np.float32)
            side_by_side(partial(self._encode_field, batch, categorical), range(len(self.fields)))
            side_by_side(partial(self._encode_number, batch, numeric), range(len(self.numbers)))
            yield categorical, numeric

    def _encode_field(self, batch: Any, categorical: npt.NDArray[np.int32], position: int) -> None:
        name, field = list(self.fields.items())[position]
        first_row = sum(before.size for before in list(self.fields.values())[:position])
        codes, distinct = codes_and_values(batch[name])
        row_of_code = first_row + np.append(field.rows(distinct.to_numpy()), field.missing)  # -1 is the code of missing
        categorical[:, position] = row_of_code.astype(np.int32)[codes]

    def _encode_number(self, batch: Any, numeric: npt.NDArray[np.float32], position: int) -> None:
        name, standard = list(self.numbers.items())[position]
        column = sum(1 + before.indicated for before in list(self.numbers.values())[:position])
        standard.fill(numeric, column, signed_logarithm(batch[name]))


def learn(layout: Layout, config: ClickData, columns: Columns, train: Rows) -> Encoder:
    """Learn vocabularies, means and deviations from the training rows alone."""
    fields: dict[str, Vocabulary | Buckets] = {}
    for name in layout.categorical_fields:
        if config.categories == "hash":
            fields[name] = Buckets(config.hash_buckets)
        else:
            fields[name] = _vocabulary(columns, name, train, config.min_count)
    encoder = Encoder(fields, _standards(columns, layout.numeric_fields, train))
    if encoder.embedding_rows > np.iinfo(np.int32).max:
        raise DataError(
            f"hash_buckets: {config.hash_buckets} for each of {len(fields)} fields "
            "makes an embedding table of more than 2**31 rows"
        )
    return encoder


def signed_logarithm(values: Any) -> npt.NDArray[np.float64]:
    """Return sign(x)·log(1 + |x|) of integers; NaN where there is none."""
    numbers = values.cast("float64", safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    return np.asarray(np.copysign(np.log1p(np.abs(numbers)), numbers))


def _vocabulary(columns: Columns, name: str, train: Rows, min_count: int) -> Vocabulary:
    parts = [batch[name].drop_null().to_numpy() for batch in _training_batches(columns, [name], train)]
    in_order = np.concatenate(parts)
    in_order.sort()
    ends = np.append(np.flatnonzero(in_order[1:] != in_order[:-1]) + 1, len(in_order))
    counts = np.diff(ends, prepend=0)
    return Vocabulary(in_order[ends[counts >= min_count] - 1])


def _standards(columns: Columns, names: tuple[str, ...], train: Rows) -> dict[str, Standard]:
    moments = {name: Moments() for name in names}
    for batch in _training_batches(columns, names, train) if names else ():
        for name in names:
            moments[name].add(signed_logarithm(batch[name]))
    return {name: found.standard() for name, found in moments.items()}


def _training_batches(columns: Columns, names: Iterable[str], train: Rows) -> Iterator[Any]:
    first = 0
    for batch in columns.batches(names):
        start, stop = np.searchsorted(train, [first, first + batch.num_rows])
        yield batch.take(pa.array(train[start:stop] - first))
        first += batch.num_rows


class Moments:
    """Mean and deviation of a stream, without the cancellation of a sum of squares (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self._count = self._missing = 0
        self._mean = self._squares = 0.0

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Add values; NaN counts as missing."""
        known = values[~np.isnan(values)]
        self._missing += len(values) - len(known)
        if not len(known):
            return
        mean = float(known.mean())
        total, apart = self._count + len(known), mean - self._mean
        self._squares += float(((known - mean) ** 2).sum()) + apart**2 * self._count * len(known) / total
        self._mean += apart * len(known) / total
        self._count = total

    def standard(self) -> Standard:
        """Return what standardises these values."""
        deviation = float(np.sqrt(self._squares / self._count)) if self._count else 0.0
        return Standard(self._mean, deviation, self._missing > 0)
