"""One party's file, of any size: what its columns mean, and reading it into a raw table.

What is large does not stay in memory: ids, labels, times and units go into spill files. Of the columns that features
are made of, those of text files and of object storage go into a spill file too, and those of Parquet files on this
machine stay where they are: each is read when it is needed.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from os import cpu_count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tpsl.data import out_of_core
from tpsl.data.encoder import EncoderState
from tpsl.data.features import Features
from tpsl.data.out_of_core import COLUMNS, RowStack, TextStack, empty, release_pages, spill_file
from tpsl.data.rawtable import KINDS, Fields, InPieces, RawTable, category_fields, number_fields
from tpsl.data.sides import Relabelling, as_text
from tpsl.progress import Progress, no_progress
from tpsl.tables import DataError
from tpsl.tables.columns import (
    Place,
    Times,
    class_numbers,
    recent_times,
    record_ids,
    require_recent,
    times,
)
from tpsl.tables.foreign import read_foreign
from tpsl.tables.locations import Location, files_of
from tpsl.tables.reading import PLAIN, Block, Dialect, dialect_of, one_array, read_blocks, rows_in_parquet
from tpsl.tables.spelling import Spelling

Typed = Mapping[str, Any]  # column -> `pa.Array` as its kind reads it

_DATED, _TIMED = "\0date", "\0time"
"""The times of records, which may be a column of features besides, in other words."""
_PIECE_ROWS = 1 << 20
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
_NUMBERED_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Labels:
    """Which column has the labels, and the classes in the words of the file; `late` ones may be missing."""

    column: str
    classes: tuple[str, ...]
    late: bool = False
    relabelling: Relabelling | None = None
    """Other labels from the beginning, whatever is read from the column."""


@dataclass(frozen=True)
class PartyFile:
    """Where a party's table lies, how it is written, and what its columns mean; `rows`: only the first ones.

    Without an `id` column the number of a record is its id, twelve digits, so that text order is file order. `labels`
    describe the label column also where it is not this party's business to read it, as long as it is in this file.
    """

    path: Location
    columns: Mapping[str, str]  # that features are made of -> kind
    id: str | None = "id"
    time: str | None = None
    time_kind: str | None = None
    since: str | None = None
    """Only records whose time is at or after this one are of interest."""
    unit: str | None = None
    labels: Labels | None = None
    missing: tuple[str, ...] = ("",)
    dialect: Dialect = PLAIN
    rows: int | None = None
    foreign: bool = False
    """Whether another party has made the file."""
    decimal: str = "."
    """The decimal sign in texts, unless semicolons separate the values: then it is a comma."""
    styles: Mapping[str, str] = field(default_factory=dict)
    """How columns are written, as an encoder has learned it (`Spelling.style`)."""
    _spellings: dict[str, Spelling] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read(self, *, label: bool, features: bool = True, progress: Progress = no_progress) -> RawTable:
        """Read and check the file in one pass, without labels or features where they are not asked for."""
        bytes_each = 8 * len(self.columns)
        large = features and (rows_in_parquet(self.path) or 0) * bytes_each > out_of_core.LARGE_BYTES
        streamed = {} if large or not features else self.columns
        record_columns = [name for name in (self.id, self.time, self.unit) if name is not None]
        label_columns = [self.labels.column] if label and self.labels is not None else []
        typed, records = _Collected(), _Records(self, label)
        for block in self.blocks([*record_columns, *label_columns, *streamed], progress):
            records.add(block)
            typed.add(side_by_side(partial(self.typed, block), streamed))
        columns = _Stored(self) if large else typed.finish()
        shown = self.columns if features else {}
        return RawTable(
            str(self.path),
            **records.finish(),
            categorical=Fields(category_fields(shown), columns),
            numeric=Fields(number_fields(shown), columns),
            columns=self.columns,
            missing=self.missing,
            dialect=self.dialect,
            spellings={name: self.spelling(name) for name in self.columns},
        )

    def blocks(self, columns: list[str], progress: Progress = no_progress) -> Iterator[Block]:
        """Yield these columns block by block, with other labels if a relabelling says so."""
        labels = self.labels
        wanted = list(dict.fromkeys(columns))
        if self.foreign:
            yield from read_foreign(self.path, wanted, self.dialect, progress=progress)
            return
        for block in read_blocks(self.path, wanted, self.dialect, rows=self.rows, progress=progress):
            if labels is not None and labels.relabelling is not None and labels.column in block.columns:
                before = self.class_numbers(block)
                after = labels.relabelling(before, len(labels.classes), block.first - 1)
                block.columns[labels.column] = as_text(after, labels.classes)
            yield block

    def typed(self, block: Block, name: str) -> Any:
        """Return a column that features are made of, as its kind reads it."""
        return KINDS[self.columns[name]].read(block.columns[name], self.place(block, name), self.spelling(name))

    def spelling(self, name: str) -> Spelling:
        """Return how a column is written: one object for all blocks, which a row that contradicts another fails."""
        decimal = "," if self.dialect.decimal_comma else self.decimal
        written = Spelling(frozenset(["", *self.missing]), decimal, self.styles.get(name, ""))
        return self._spellings.setdefault(name, written)

    def ids(self, block: Block) -> Any:
        """Return the id of each record of a block."""
        if self.id is None:
            return numbered_ids(block.first, block.first + block.rows)
        return record_ids(block.columns[self.id], self.place(block, self.id))

    def times(self, block: Block) -> Times:
        """Return the time of each record of a block: a number, or microseconds of UTC."""
        assert self.time is not None
        column, place = block.columns[self.time], self.place(block, self.time)
        if self.time_kind is not None:
            read = KINDS[self.time_kind].read(column, place, self._spellings.setdefault(_DATED, Spelling()))
            return times(read, place, self._spellings.setdefault(_TIMED, Spelling()))
        return times(column, place, self._spellings.setdefault(_TIMED, Spelling()))

    def recent(self, block: Block, moments: Times) -> npt.NDArray[np.bool_] | None:
        """Return which records of a block are of interest by their times; None: all."""
        if self.since is None or self.time is None:
            return None
        return recent_times(moments, self.place(block, self.time), self._spellings[_TIMED], self.since)

    def class_numbers(self, block: Block) -> Any:
        """Return the class of each record of a block."""
        if self.labels is None:
            raise ValueError(f"{self.path}: there is no label column")
        column = self.labels.column
        place = self.place(block, column)
        return class_numbers(block.columns[column], place, self.labels.classes, late=self.labels.late)

    def place(self, block: Block, name: str) -> Place:
        """Return where the values of a column stand."""
        return Place.of(block, name, self.dialect)

    def changed(self) -> DataError:
        """Return the error of a file that is another one than when it began to be read."""
        return DataError(f"{self.path}: has changed while it was read; begin again when it is complete")

    def identity(self) -> dict[str, Any]:
        """Return what tells the features of this file from all others, and from what it held at another time."""
        told = self.labels is not None and self.labels.column in self.columns and self.labels.relabelling
        return {
            "path": str(self.path),
            "files": [(file.name, file.size, file.modified) for file in files_of(self.path)],
            "columns": list(self.columns.items()),
            "missing": self.missing,
            "rows": self.rows,
            "time": self.time,
            "since": self.since,
            "id": self.id,
            "relabelling": told.seed if told else None,
        }


def encode_file(
    state: EncoderState, path: Location, id: str | None = "id", progress: Progress = no_progress
) -> Iterator[tuple[Any, Features]]:
    """Encode the records of a new file as `state` has learned to: yield their ids and features, block by block.

    The table is CSV or Parquet; other columns, and another order of columns, do not matter. Without an `id` column the
    number of a record is its id.
    """
    file = PartyFile(
        path,
        state.columns,
        id,
        missing=state.missing,
        dialect=dialect_of(path),
        decimal=state.decimal,
        styles=state.styles,
    )
    for block in file.blocks([*([] if id is None else [id]), *state.columns], progress):
        typed = {name: file.typed(block, name) for name in state.columns}
        ids = file.ids(block)
        fields = Fields(category_fields(state.columns), typed), Fields(number_fields(state.columns), typed)
        yield ids, state.encode(RawTable(str(path), ids, *fields))


def side_by_side(work: Callable[[str], Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return what `work` makes of each name; PyArrow and NumPy let other threads run while they work on one."""
    with ThreadPoolExecutor(cpu_count()) as pool:
        return dict(zip(names, pool.map(work, names), strict=True))


class _Records:
    """What is known of each record besides its features: id, label, time, unit."""

    def __init__(self, file: PartyFile, label: bool) -> None:
        self._file, self._label = file, label
        self._ids, self._units = TextStack(), TextStack()
        self._labels = RowStack(np.int64, 1, COLUMNS)
        self._times, self._recent = TimeStack(), RowStack(np.bool_, 1, COLUMNS)

    def add(self, block: Block) -> None:
        """Take in the next records."""
        file = self._file
        self._ids.add(file.ids(block))
        if self._label:
            self._labels.add(file.class_numbers(block))
        if file.time is not None:
            moments = file.times(block)
            self._times.add(moments)
            recent = file.recent(block, moments)
            if recent is not None:
                self._recent.add(recent)
        if file.unit is not None:
            self._units.add(record_ids(block.columns[file.unit], file.place(block, file.unit), "unit"))

    def finish(self) -> dict[str, Any]:
        """Return all records' as parts of a raw table."""
        file = self._file
        in_time, recent = None, None
        if file.time is not None:
            in_time = self._times.finish()
            if file.since is not None:
                recent = require_recent(self._recent.finish().reshape(-1), Place(str(file.path), file.time), file.since)
        return {
            "ids": self._ids.finish(),
            "labels": self._labels.finish().reshape(-1) if self._label else None,
            "times": in_time,
            "recent": recent,
            "units": None if file.unit is None else self._units.finish(),
        }


class TimeStack:
    """Times, block by block, that become one array of numbers which ascend as they do."""

    def __init__(self) -> None:
        self._bits = RowStack(np.int64, 1, COLUMNS)
        self._blocks: list[tuple[int, np.dtype[Any]]] = []
        """Of each block the number of rows and the type, in which their 64 bits are to be read."""

    def add(self, moments: Times) -> None:
        """Take in the next times."""
        self._blocks.append((len(moments), moments.dtype))
        self._bits.add(moments.view(np.int64))

    def finish(self) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
        """Return all times: fractions if any is one, and moments in the coarsest unit of all files."""
        bits, kinds = self._bits.finish().reshape(-1), {kind for _, kind in self._blocks}
        if len(kinds) == 1:
            return bits.view(np.float64) if kinds == {np.dtype(np.float64)} else bits
        common = np.dtype(np.float64 if np.dtype(np.float64) in kinds else "M8[us]")
        found, done = empty(len(bits), np.int64), 0
        for rows, kind in self._blocks:
            found[done : done + rows] = bits[done : done + rows].view(kind).astype(common).view(np.int64)
            done += rows
        return found.view(np.float64) if common == np.float64 else found


class _Collected:
    """Typed columns, block by block: in memory, or in a spill file once they are large."""

    def __init__(self) -> None:
        self._waiting: list[dict[str, Any]] = []
        self._bytes = 0
        self._spilled: _Spilled | None = None

    def add(self, columns: dict[str, Any]) -> None:
        """Take in the next records."""
        self._waiting.append(columns)
        self._bytes += sum(values.nbytes for values in columns.values())
        if self._spilled is None and self._bytes > out_of_core.LARGE_BYTES:
            self._spilled = _Spilled(list(columns))
        if self._spilled is not None:
            for block in self._waiting:
                self._spilled.add(block)
            self._waiting = []

    def finish(self) -> Typed:
        """Return the columns."""
        if self._spilled is not None:
            return self._spilled
        return {name: one_array([block[name] for block in self._waiting]) for name in self._waiting[0]}


class _OnDisk(InPieces):
    """Columns on disk; each is read, piece by piece, when it is asked for, and not kept."""

    def __getitem__(self, name: str) -> Any:
        return one_array(list(self.pieces(name)))

    def pieces(self, name: str) -> Iterator[Any]:
        """Yield a column, piece by piece; a vocabulary is looked up once for each, so they are long."""
        waiting, rows = list[Any](), 0
        for block in self.blocks(name):
            waiting.append(block)
            rows += len(block)
            if rows >= _PIECE_ROWS:
                yield one_array(waiting)
                waiting, rows = [], 0
        if waiting:
            yield one_array(waiting)

    @abstractmethod
    def blocks(self, name: str) -> Iterator[Any]:
        """Yield a column in blocks of any size."""


class _Stored(_OnDisk):
    """Columns of a party's own Parquet files."""

    def __init__(self, file: PartyFile) -> None:
        self._file, self._identity = file, file.identity()

    def blocks(self, name: str) -> Iterator[Any]:
        """Yield a column in blocks; a file that has changed in the meantime is an error."""
        self._require_unchanged()
        yield from (self._file.typed(block, name) for block in self._file.blocks([name]))
        self._require_unchanged()

    def _require_unchanged(self) -> None:
        if self._file.identity() != self._identity:
            raise self._file.changed()

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.columns)

    def __len__(self) -> int:
        return len(self._file.columns)


class _Spilled(_OnDisk):
    """Typed columns in a spill file: of each block one Arrow stream after the other, one for each column."""

    def __init__(self, names: list[str]) -> None:
        self._spill, self._size = spill_file(), 0
        self._places: dict[str, list[slice]] = {name: [] for name in names}

    def add(self, columns: dict[str, Any]) -> None:
        """Write a block."""
        for name, values in columns.items():
            batch, stream = pa.record_batch({name: values}), pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, batch.schema, options=_COMPRESSED) as writer:
                writer.write_batch(batch)
            content = stream.getvalue()
            self._spill.write(content)
            self._places[name].append(slice(self._size, self._size + len(content)))
            self._size += len(content)

    @cached_property
    def _content(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._spill.mapped(), np.uint8)

    def blocks(self, name: str) -> Iterator[Any]:
        """Yield a column in blocks."""
        for place in self._places[name]:
            (batch,) = pa.ipc.open_stream(pa.py_buffer(self._content[place]))
            yield batch.column(0)
            release_pages(self._content)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def numbered_ids(first: int, stop: int) -> Any:
    """Return numbers as text of twelve digits, so that their order as text is their order."""
    # Arrow reserves four bytes a digit, and has no place for those of more than 44 million ids at once.
    starts = range(first, max(stop, first + 1), _NUMBERED_AT_ONCE)
    numbers = (pa.array(np.arange(start, min(start + _NUMBERED_AT_ONCE, stop))) for start in starts)
    return pa.concat_arrays([pc.utf8_lpad(part.cast(pa.string()), width=12, padding="0") for part in numbers])
