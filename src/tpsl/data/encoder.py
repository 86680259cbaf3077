"""From raw fields to `Features`, by what was learned from training rows only, and saved with a run.

Index: a field of v kept values takes v + 2 rows of the embedding table: row 0 for unseen and rare values, row 1 for a
missing value, then the values in order of their text. Hash: a field takes buckets + 1 rows: row 0 for a missing value,
row 1 + h(value) otherwise, where h is BLAKE2b with an 8-byte digest of the UTF-8 text, read as a little-endian integer,
modulo the number of buckets. Neither depends on the process, the platform or the order of the rows. A number is
standardised by mean and deviation; one that is missing becomes 0.

**Rules of evolution.** A saved state is read for ever, and gives the same numbers for ever. Allowed: a new kind of
column, of category or of number, under a new name; a new key with a default that keeps the old meaning. Never: another
meaning of a kind or key that exists, another hash, another order of vocabularies, fields or columns; each needs a new
version, beside the code that reads the old one. A version or kind that is not known is refused.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data import out_of_core
from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.data.out_of_core import ColumnStack, empty, mask_of, parts, taken
from tpsl.data.rawtable import RawTable, pieces_of
from tpsl.data.row_encoder import (
    FIRST_VALUE,
    MISSING,
    UNSEEN,
    VERSION,
    Content,
    Record,
    RowEncoder,
    Standard,
    stable_hash,
)
from tpsl.files import make_private_folder, read_plain, write_atomically
from tpsl.progress import Progress, no_progress
from tpsl.spill import Array, ArrowArray
from tpsl.tables import DataError

_AT_ONCE = 1 << 20
_LOW_BITS = 27  # of the 53 of a mantissa: sums of halves of a million mantissas are exact in float64
_LOWEST = -1073  # the exponent that `np.frexp` gives to the smallest number
_EXPONENTS = 1024 - _LOWEST + 1
_UNIT = 53 - _LOWEST  # every float is a multiple of 2**-_UNIT


class ExactSum:
    """The sum of finite numbers, and their mean: neither their order nor how they come in pieces changes a bit."""

    def __init__(self) -> None:
        self.count = 0
        self._high, self._low = np.zeros(_EXPONENTS, np.int64), np.zeros(_EXPONENTS, np.int64)

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Take in further numbers."""
        for start in range(0, len(values), _AT_ONCE):
            mantissas, exponents = np.frexp(values[start : start + _AT_ONCE])
            whole, places = (mantissas * 2.0**53).astype(np.int64), exponents - _LOWEST
            self._high += _sums(places, whole >> _LOW_BITS)
            self._low += _sums(places, whole & ((1 << _LOW_BITS) - 1))
        self.count += len(values)

    def mean(self) -> float:
        """Return the mean of all numbers so far, rounded once; 0 if there is none."""
        present = np.flatnonzero(self._high | self._low).tolist()
        total = sum(((int(self._high[at]) << _LOW_BITS) + int(self._low[at])) << at for at in present)
        return total / (self.count << _UNIT) if self.count else 0.0


def _sums(places: npt.NDArray[np.int32], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.bincount(places, weights=numbers, minlength=_EXPONENTS).astype(np.int64)


_STATE, _MOST_BYTES = "encoder.json", 1 << 32

FieldRows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Pieces = Callable[[], Iterator[npt.NDArray[np.float64]]]
"""A field of numbers, piece by piece, as often as it is asked for."""


@dataclass(frozen=True)
class Vocabulary:
    """The values that enough training records have, in order of their text."""

    values: ArrowArray  # of text

    @property
    def size(self) -> int:
        """Number of rows of the field."""
        return FIRST_VALUE + len(self.values)

    def rows(self, values: ArrowArray) -> FieldRows:
        """Return each record's row within the field."""
        codes, distinct = codes_and_values(values)
        known = pc.index_in(distinct, value_set=self.values.cast(distinct.type)).fill_null(UNSEEN - FIRST_VALUE)
        row_of_code = np.append(FIRST_VALUE + known.to_numpy(zero_copy_only=False), MISSING)  # code -1
        return row_of_code.astype(np.int32)[codes]


@dataclass(frozen=True)
class IndexedCategories:
    """A vocabulary of the values that at least `min_count` training records have."""

    min_count: int = 1

    def learn(self, pieces: Iterable[ArrowArray], training: Mask) -> Vocabulary:
        """Learn from a field, piece by piece; `training` says of which rows."""
        counted, start = list[ArrowArray](), 0
        for values in pieces:
            codes, distinct = codes_and_values(values)
            chosen = codes[training[start : start + len(codes)]]
            counts = np.bincount(chosen + 1, minlength=len(distinct) + 1)[1:]
            occur = pa.array(counts > 0)
            table = pa.table({"value": distinct.filter(occur), "count": pa.array(counts).filter(occur)})
            counted, start = [_added_up([*counted, table])], start + len(codes)
        (total,) = counted
        frequent = total["value"].filter(pc.greater_equal(total["count"], self.min_count)).combine_chunks()
        return Vocabulary(frequent.take(pc.array_sort_indices(frequent)))


def _added_up(counted: list[ArrowArray]) -> ArrowArray:
    """Return how often each text occurs, by tables of texts and counts."""
    together = pa.concat_tables(counted, promote_options="permissive").group_by("value")
    return together.aggregate([("count", "sum")]).rename_columns(["value", "count"])


@dataclass(frozen=True)
class HashedCategories:
    """A fixed number of buckets for each field; needs no training data and no memory of values."""

    buckets: int

    def learn(self, pieces: Iterable[ArrowArray], training: Mask) -> "HashedCategories":
        """Learn nothing."""
        return self

    @property
    def size(self) -> int:
        """Number of rows of the field."""
        return 1 + self.buckets

    def rows(self, values: ArrowArray) -> FieldRows:
        """Return each record's row within the field."""
        codes, distinct = codes_and_values(values)
        row_of_code = np.zeros(len(distinct) + 1, dtype=np.int32)
        row_of_code[:-1] = [1 + stable_hash(text) % self.buckets for text in distinct.to_pylist()]
        return row_of_code[codes]


Categories = IndexedCategories | HashedCategories


@dataclass(frozen=True)
class EncoderState:
    """All that was learned from one party's training rows: enough to encode any record as they were encoded.

    `columns` says of which kind (`tpsl.data.rawtable`) the columns of the party's file are; `missing`, `decimal` and
    `styles` say how they are written (`tpsl.tables.spelling.Spelling`). Fields are in the order of the columns.
    """

    categories: Mapping[str, Vocabulary | HashedCategories]
    numbers: Mapping[str, Standard]
    columns: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    decimal: str = "."
    styles: Mapping[str, str] = field(default_factory=dict)

    @property
    def embedding_rows(self) -> int:
        """Number of rows of the embedding table that all fields share."""
        return sum(field.size for field in self.categories.values())

    @property
    def numeric_fields(self) -> tuple[str, ...]:
        """Names of the encoded numbers, indicators of missing ones among them."""
        return tuple(column for name, standard in self.numbers.items() for column in standard.column_names(name))

    def encode(self, table: RawTable, order: Rows | None = None, progress: Progress = no_progress) -> Features:
        """Return the features of a table, whose fields may be in another order and more than were learned from.

        `order` chooses rows and puts them into order.
        """
        absent = [*(set(self.categories) - set(table.categorical)), *(set(self.numbers) - set(table.numeric))]
        if absent:
            raise DataError(f"{table.name}: there is no column {min(absent)!r}, which the encoder has learned from")
        encoding = _Encoding(table, order, len(self.categories) + len(self.numbers), progress)
        return self.features(encoding.categories(self.categories.items()), encoding.numbers(self.numbers.items()))

    def encode_records(self, records: Sequence[Record]) -> Features:
        """Return the features of a few records, mappings from column to value: bit for bit those of a table of them.

        A record that lacks a column, or has a value that cannot be read, is an error.
        """
        try:
            return self.features(*self._row_encoder.encode(records))
        except ValueError as error:
            raise DataError(str(error)) from None

    @cached_property
    def _row_encoder(self) -> RowEncoder:
        return RowEncoder(self.plain())

    def digest(self) -> str:
        """Return a SHA-256 that is equal for two states exactly if they encode alike."""
        return hashlib.sha256(json.dumps(self.plain()).encode()).hexdigest()

    def features(self, categorical: npt.NDArray[np.int32], numeric: npt.NDArray[np.float32]) -> Features:
        """Return arrays that this state has encoded as features."""
        return Features(categorical, numeric, self.embedding_rows, tuple(self.categories), self.numeric_fields)

    def plain(self) -> Content:
        """Return the state as `encoder.json` holds it, for a `RowEncoder` too."""
        return {
            "version": VERSION,
            "columns": dict(self.columns),
            "missing": list(self.missing),
            "decimal": self.decimal,
            "styles": dict(self.styles),
            "categories": {
                name: {"values": part.values.to_pylist()} if isinstance(part, Vocabulary) else asdict(part)
                for name, part in self.categories.items()
            },
            "numbers": {name: asdict(standard) for name, standard in self.numbers.items()},
        }

    def save(self, folder: Path) -> None:
        """Write the state into a folder, for its owner only."""
        make_private_folder(folder)
        write_atomically(folder / _STATE, json.dumps(self.plain(), indent=1, ensure_ascii=False).encode())

    @classmethod
    def load(cls, folder: Path) -> "EncoderState":
        """Read a saved state; one that is damaged, or of a version or kind that is not known, is an error."""
        path = folder / _STATE
        try:
            content = json.loads(read_plain(path, _MOST_BYTES))
            RowEncoder(content)  # or an error
            categories = {
                name: Vocabulary(pa.array(part["values"], pa.string()))
                if "values" in part
                else HashedCategories(**part)
                for name, part in content["categories"].items()
            }
            numbers = {name: Standard(**standard) for name, standard in content["numbers"].items()}
            written = tuple(content["missing"]), content["decimal"], content["styles"]
            return cls(categories, numbers, content["columns"], *written)
        except (OSError, ValueError, pa.ArrowException, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: cannot be read, it is no saved encoder ({error})") from error


def learn(
    table: RawTable,
    categories: Categories,
    train: Rows,
    order: Rows | None = None,
    progress: Progress = no_progress,
) -> tuple[EncoderState, Features]:
    """Learn from the `train` rows of a table and encode all of it, field by field, each in pieces.

    `order` chooses rows and puts them into order first; `train` counts in that order. Large arrays go to disk, and
    memory does not grow with the number of rows.
    """
    training = mask_of(len(table), train if order is None else taken(order, train))
    learned, standards = dict[str, Vocabulary | HashedCategories](), dict[str, Standard]()

    def learned_categories() -> Iterator[tuple[str, Vocabulary | HashedCategories]]:
        for name, values in table.categorical.items():
            learned[name] = categories.learn(pieces_of(values), training)
            if sum(part.size for part in learned.values()) > np.iinfo(np.int32).max:
                raise DataError(f"{table.name}: with column {name!r} the embedding table has more than 2**31 rows")
            yield name, learned[name]

    def learned_numbers() -> Iterator[tuple[str, Standard]]:
        for name, values in table.numeric.items():
            standards[name] = _standard(partial(pieces_of, values), training)
            yield name, standards[name]

    encoding = _Encoding(table, order, len(table.categorical) + len(table.numeric), progress)
    arrays = encoding.categories(learned_categories()), encoding.numbers(learned_numbers())
    columns = table.columns or dict.fromkeys(learned, "category") | dict.fromkeys(standards, "number")
    decimal = "," if table.dialect.decimal_comma else "."
    styles = {name: written.style for name, written in table.spellings.items() if written.style}
    state = EncoderState(learned, standards, columns, table.missing, decimal, styles)
    return state, state.features(*arrays)


def _standard(pieces: Pieces, training: Mask) -> Standard:
    """Learn what standardises a number from its training rows; sums are exact, so the order of rows does not matter."""

    def known() -> Iterator[npt.NDArray[np.float64]]:
        start = 0
        for values in pieces():
            chosen = values[training[start : start + len(values)]]
            yield chosen[~np.isnan(chosen)]
            start += len(values)

    values, squares = ExactSum(), ExactSum()
    for piece in known():
        values.add(piece)
    mean = values.mean()
    for piece in known():
        squares.add((piece - mean) ** 2)
    return Standard(mean, math.sqrt(squares.mean()), values.count < int(np.count_nonzero(training)))


@dataclass
class _Encoding:
    """The encoding of a table, field by field, into arrays in memory or on disk."""

    table: RawTable
    order: Rows | None
    fields: int
    progress: Progress
    added: int = 0

    def categories(self, parts: Iterable[tuple[str, Vocabulary | HashedCategories]]) -> npt.NDArray[np.int32]:
        """Return the fields of categories, which take the rows of the embedding table one after the other."""
        stack, first = self._stack(np.int32), np.int32(0)
        for name, part in parts:
            stack.add(self._chosen(np.int32, (part.rows(v) + first for v in pieces_of(self.table.categorical[name]))))
            first += np.int32(part.size)
            self._tell()
        return stack.finish()

    def numbers(self, parts: Iterable[tuple[str, Standard]]) -> npt.NDArray[np.float32]:
        """Return the fields of numbers, each with its indicator, if it has one."""
        stack = self._stack(np.float32)
        for name, part in parts:
            for at in range(len(part.column_names(name))):
                encoded = (part.columns(values)[at] for values in pieces_of(self.table.numeric[name]))
                stack.add(self._chosen(np.float32, encoded))
            self._tell()
        return stack.finish()

    def _stack(self, dtype: npt.DTypeLike) -> ColumnStack:
        rows = len(self.table if self.order is None else self.order)
        return ColumnStack(dtype, rows, large=4 * rows * self.fields > out_of_core.LARGE_BYTES)

    def _chosen(self, dtype: npt.DTypeLike, encoded: Iterator[Array]) -> Iterator[Array]:
        """Yield the rows that were chosen, in their order."""
        if self.order is None:
            yield from encoded
            return
        column, done = empty(len(self.table), dtype), 0
        for piece in encoded:
            column[done : done + len(piece)] = piece
            done += len(piece)
        for part in parts(len(self.order)):
            yield column[self.order[part]]

    def _tell(self) -> None:
        self.added += 1
        self.progress(self.added, self.fields, f"encoding {Path(self.table.name).name}")


def codes_and_values(values: ArrowArray) -> tuple[npt.NDArray[np.int32], ArrowArray]:
    """Number the distinct values; a missing one gets -1."""
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), encoded.dictionary
