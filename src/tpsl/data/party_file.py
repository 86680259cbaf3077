"""One party's file, of any size: what its columns mean, and reading it into a raw table.

What is large does not stay in memory: ids, labels, times, units and the columns that features are made of go into
spill files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from os import cpu_count
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tpsl.data import out_of_core
from tpsl.data.data_frames import Frame, arrow_table
from tpsl.data.encoder import EncoderState
from tpsl.data.features import Features
from tpsl.data.out_of_core import COLUMNS, RowStack, TextStack, spill_file
from tpsl.data.rawtable import KINDS, Fields, RawTable, fields_of, recent_rows
from tpsl.data.sides import Relabelling, as_text
from tpsl.progress import Progress, no_progress
from tpsl.spill import ArrowArray, SpillFile
from tpsl.tables import DataError
from tpsl.tables.columns import (
    Place,
    Times,
    class_numbers,
    record_ids,
    times,
)
from tpsl.tables.locations import Location, files_of
from tpsl.tables.reading import PLAIN, Block, Dialect, dialect_of, one_array, read_blocks, read_foreign
from tpsl.tables.spelling import Spelling

_DATED, _TIMED = "\0date", "\0time"
"""The times of records, which may be a column of features besides, in other words."""
_PIECE_ROWS = 1 << 20
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
_NUMBERED_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Labels:
    """Which column has the labels, and the classes in the words of the file."""

    column: str
    classes: tuple[str, ...]
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

    def read(self, *, label: bool, progress: Progress = no_progress) -> RawTable:
        """Read and check the file in one pass, without labels where they are not asked for."""
        record_columns = [name for name in (self.id, self.time, self.unit) if name is not None]
        label_columns = [self.labels.column] if label and self.labels is not None else []
        ids, units, labels, moments = TextStack(), TextStack(), RowStack(np.int64, 1, COLUMNS), None
        typed, files = _TypedColumns(), files_of(self.path)
        for block in self.blocks([*record_columns, *label_columns, *self.columns], progress):
            ids.add(self.ids(block))
            if label:
                labels.add(self.class_numbers(block))
            if self.time is not None:
                found = self.times(block)
                moments = moments or RowStack(found.dtype, 1, COLUMNS)
                moments.add(found)
            if self.unit is not None:
                units.add(record_ids(block.columns[self.unit], Place.of(block, self.unit), "unit"))
            typed.add(side_by_side(partial(self.typed, block), self.columns))
        if files_of(self.path) != files:
            raise DataError(f"{self.path}: has changed while it was read; begin again when it is complete")
        in_time, place = (
            None if moments is None else moments.finish().reshape(-1),
            Place(str(self.path), self.time or ""),
        )
        is_recent = None if in_time is None or self.since is None else recent_rows(in_time, self.since, place)
        categorical, numeric = fields_of(self.columns, typed.finish())
        return RawTable(
            str(self.path),
            ids.finish(),
            categorical,
            numeric,
            labels.finish().reshape(-1) if label else None,
            in_time,
            is_recent,
            None if self.unit is None else units.finish(),
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

    def typed(self, block: Block, name: str) -> ArrowArray:
        """Return a column that features are made of, as its kind reads it."""
        return KINDS[self.columns[name]].read(block.columns[name], Place.of(block, name), self.spelling(name))

    def spelling(self, name: str) -> Spelling:
        """Return how a column is written: one object for all blocks, which a row that contradicts another fails."""
        decimal = "," if self.dialect.decimal_comma else self.decimal
        written = Spelling(frozenset(["", *self.missing]), decimal, self.styles.get(name, ""))
        return self._spellings.setdefault(name, written)

    def ids(self, block: Block) -> ArrowArray:
        """Return the id of each record of a block."""
        if self.id is None:
            return numbered_ids(block.first, block.first + block.rows)
        return record_ids(block.columns[self.id], Place.of(block, self.id))

    def times(self, block: Block) -> Times:
        """Return the time of each record of a block: a number, or microseconds of UTC."""
        assert self.time is not None
        column, place = block.columns[self.time], Place.of(block, self.time)
        if self.time_kind is not None:
            read = KINDS[self.time_kind].read(column, place, self._spellings.setdefault(_DATED, Spelling()))
            return times(read, place, self._spellings.setdefault(_TIMED, Spelling()))
        return times(column, place, self._spellings.setdefault(_TIMED, Spelling()))

    def class_numbers(self, block: Block) -> npt.NDArray[np.int64]:
        """Return the class of each record of a block."""
        if self.labels is None:
            raise ValueError(f"{self.path}: there is no label column")
        column = self.labels.column
        place = Place.of(block, column)
        return class_numbers(block.columns[column], place, self.labels.classes)


def encode_file(
    state: EncoderState, path: Location, id: str | None = "id", progress: Progress = no_progress
) -> Iterator[tuple[ArrowArray, Features]]:
    """Encode the records of a new file as `state` has learned to: yield their ids and features, block by block.

    The table is CSV or Parquet; other columns, and another order of columns, do not matter. Without an `id` column the
    number of a record is its id.
    """
    file = _as_encoded(state, path, id, dialect_of(path))
    for block in file.blocks([*([] if id is None else [id]), *state.columns], progress):
        yield _encoded(state, file, block)


def encode_frame(state: EncoderState, frame: Frame, id: str | None) -> tuple[ArrowArray, Features]:
    """Encode the records of a data frame as those of a file; without an `id` column there, a number is an id."""
    name = "the data frame"
    table = arrow_table(name, frame)
    file = _as_encoded(state, Path(name), id if id in table.column_names else None)
    missing = state.columns.keys() - set(table.column_names)
    if missing:
        raise DataError(f"{name}: there is no column {min(missing)!r}, which the encoder has learned from")
    wanted = [*([] if file.id is None else [file.id]), *state.columns]
    columns = {column: one_array(table[column]) for column in wanted}
    typeless = {column: values.cast(pa.string()) for column, values in columns.items() if pa.types.is_null(values.type)}
    return _encoded(state, file, Block(1, columns | typeless, table.num_rows, name, 0))


def _as_encoded(state: EncoderState, path: Location, id: str | None, dialect: Dialect = PLAIN) -> PartyFile:
    """Return a table whose columns mean what they meant when the encoder learned from them."""
    return PartyFile(
        path,
        state.columns,
        id,
        missing=state.missing,
        dialect=dialect,
        decimal=state.decimal,
        styles=state.styles,
    )


def _encoded(state: EncoderState, file: PartyFile, block: Block) -> tuple[ArrowArray, Features]:
    """Return ids and features of a block."""
    typed, ids = {name: file.typed(block, name) for name in state.columns}, file.ids(block)
    return ids, state.encode(RawTable(str(file.path), ids, *fields_of(state.columns, typed)))


def side_by_side(work: Callable[[str], ArrowArray], names: Mapping[str, str]) -> dict[str, ArrowArray]:
    """Return what `work` makes of each name; PyArrow and NumPy let other threads run while they work on one."""
    with ThreadPoolExecutor(cpu_count()) as pool:
        return dict(zip(names, pool.map(work, names), strict=True))


class _TypedColumns:
    """Columns as their kinds read them, block by block: in memory, or in a spill file once they are large."""

    def __init__(self) -> None:
        self._waiting: list[dict[str, ArrowArray]] = []
        self._bytes = 0
        self._spill: SpillFile | None = None

    def add(self, columns: dict[str, ArrowArray]) -> None:
        """Take in the next records."""
        self._waiting.append(columns)
        self._bytes += sum(values.nbytes for values in columns.values())
        if self._spill is None and self._bytes > out_of_core.LARGE_BYTES:
            self._spill = spill_file(len(columns))
        if self._spill is not None:
            for block in self._waiting:
                for number, values in enumerate(block.values()):
                    self._spill.write(_as_stream(values), number)
            self._waiting = [{name: values[:0] for name, values in columns.items()}]

    def finish(self) -> Fields:
        """Return the columns."""
        if self._spill is None:
            return {name: one_array([block[name] for block in self._waiting]) for name in self._waiting[0]}
        return {name: partial(_spilled, self._spill, number) for number, name in enumerate(self._waiting[0])}


def _as_stream(values: ArrowArray) -> memoryview:
    """Return an Arrow array as an Arrow stream."""
    batch, stream = pa.record_batch({"": values}), pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema, options=_COMPRESSED) as writer:
        writer.write_batch(batch)
    return memoryview(stream.getvalue())


def _spilled(spill: SpillFile, number: int) -> Iterator[ArrowArray]:
    """Yield a column from a spill file, piece by piece."""
    streams = map(pa.ipc.open_stream, spill.pieces(number))
    return _long_pieces(batch.column(0) for stream in streams for batch in stream)


def _long_pieces(blocks: Iterable[ArrowArray]) -> Iterator[ArrowArray]:
    """Yield a column, which comes in blocks of any size; a vocabulary is looked up once for each, so they are long."""
    waiting, rows = list[ArrowArray](), 0
    for block in blocks:
        waiting.append(block)
        rows += len(block)
        if rows >= _PIECE_ROWS:
            yield one_array(waiting)
            waiting, rows = [], 0
    if waiting:
        yield one_array(waiting)


def numbered_ids(first: int, stop: int) -> ArrowArray:
    """Return numbers as text of twelve digits, so that their order as text is their order."""
    # Arrow reserves four bytes a digit, and has no place for those of more than 44 million ids at once.
    starts = range(first, max(stop, first + 1), _NUMBERED_AT_ONCE)
    numbers = (pa.array(np.arange(start, min(start + _NUMBERED_AT_ONCE, stop))) for start in starts)
    return pa.concat_arrays([pc.utf8_lpad(part.cast(pa.string()), width=12, padding="0") for part in numbers])
