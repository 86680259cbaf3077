"""Reading and writing tables: CSV, plain or compressed, or Parquet, in one file or many; a column comes in blocks."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tpsl.files import make_private_folder, open_durably, replaced
from tpsl.progress import Progress, no_progress
from tpsl.tables import ArrowArray, ArrowObject, DataError
from tpsl.tables.locations import Location, StoredFile, files_of, is_there
from tpsl.tables.pages import BLOCK_ROWS, require_small_footer, rows_at_once

Item = TypeVar("Item")
_Piece = tuple[ArrowObject, int]
"""A `pa.Table`; bytes of the file that were read."""

BLOCK_BYTES = 1 << 22
"""Bytes of text that are read at a time. PyArrow reads up to 32 blocks ahead."""
_BUFFER_HERE, _BUFFER_ELSEWHERE = 1 << 20, 1 << 22
"""Bytes of a column of a Parquet file that are asked for at a time."""
MOST_EXPANSION = 256
"""How many times the size of another party's files their contents may have. Ids differ and noise is random: two million
numbers one after the other, behind 40 letters that they share, have 61 times the size of their file."""
SMALL_BYTES = 1 << 27
"""What the contents of another party's files may have in any case."""
MOST_ID_BYTES = 1024
"""What the id of a record or unit has at most, as UTF-8."""
_ROW_BYTES = 8

PARQUET_ENDINGS = (".parquet", ".pq")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_CODECS = {".gz": "gzip", ".zst": "zstd"}
CSV_ENDINGS = tuple(kind + packed for kind in _DELIMITERS for packed in ("", *_CODECS))
_SPREADSHEET_ENDINGS = (".xlsx", ".xls", ".ods", ".numbers")
_SAVE_AS_UTF_8 = "save it as CSV in UTF-8 (spreadsheets call it 'CSV UTF-8')"
_OF_CSV = ",;\t|"
"""What may separate the values of a .csv file; where two would do, the first of them."""
_HEADER_BYTES = 1 << 20
_QUOTED = re.compile(rb'"[^"]*"')


@dataclass(frozen=True)
class Dialect:
    """How a text file is written.

    `names` are those of the columns where no header line has them.
    """

    delimiter: str = ","
    names: tuple[str, ...] | None = None

    @property
    def decimal_comma(self) -> bool:
        """Whether 1,5 is a number: where semicolons separate values, as spreadsheets of many countries write them."""
        return self.delimiter == ";"


PLAIN = Dialect()


@dataclass(frozen=True)
class Block:
    """Consecutive records of one file: the number of the first, counted from 1 over all files of a table, and a column
    each by its name.

    `before` records are in files before this one.
    """

    first: int
    columns: dict[str, ArrowArray]
    rows: int
    file: str
    before: int


# ---- what a table is, by its endings and the first of its files


def dialect_of(location: Location) -> Dialect:
    """Return how a table is written, by the ending of its files; any other ending than those of tables is an error.

    Values of a .csv file are separated by what cuts the header line of the first one into the most columns. Of a table
    that is not there nothing more is known than the ending says: it is plain.
    """
    own = str(location)
    names = [own] if "." in location.name else []
    if not own.lower().endswith((*CSV_ENDINGS, *PARQUET_ENDINGS)) and is_there(location):
        names = [file.name for file in files_of(location)]
    kinds = {_kind(name): name for name in names}
    if len(kinds) > 1:
        raise DataError(f"{location}: the files of a table are of one kind, not {' and '.join(kinds.values())}")
    delimiter = next(iter(kinds), None) or ","
    return Dialect(_delimiter_in(location) if delimiter == "," and is_there(location) else delimiter)


def _delimiter_in(location: Location) -> str:
    """Return what separates the values of .csv files; a comma also where they cannot be read: reading them will say."""
    first = files_of(location)[0]
    with suppress(DataError), _readable(first.name):
        header = _QUOTED.sub(b"", _beginning(first, _HEADER_BYTES)).partition(b"\n")[0].decode(errors="replace")
        return max(_OF_CSV, key=header.count)
    return ","


def _kind(name: str) -> str | None:
    """Return what separates the values of a text file, by its ending; None for Parquet."""
    for ending in CSV_ENDINGS:
        if name.lower().endswith(ending):
            return _DELIMITERS[ending[:4]]
    if not is_parquet(name):
        kinds = ", ".join((*CSV_ENDINGS, *PARQUET_ENDINGS))
        spreadsheet = f"; {_SAVE_AS_UTF_8}" if name.lower().endswith(_SPREADSHEET_ENDINGS) else ""
        raise DataError(f"{name}: the ending of a file tells its kind, and must be one of {kinds}{spreadsheet}")
    return None


def is_parquet(name: str) -> bool:
    """Return whether the ending is that of a Parquet file."""
    return name.lower().endswith(PARQUET_ENDINGS)


def column_names(location: Location, dialect: Dialect = PLAIN) -> list[str]:
    """Return the names of the columns of a table's first file."""
    first = files_of(location)[0]
    with _readable(first.name):
        if is_parquet(first.name):
            with _parquet(first) as content:
                return list(content.schema_arrow.names)
        return _header(first, dialect)


# ---- reading


def read_blocks(
    location: Location,
    columns: list[str],
    dialect: Dialect = PLAIN,
    *,
    rows: int | None = None,
    progress: Progress = no_progress,
    may_be_empty: bool = False,
) -> Iterator[Block]:
    """Yield these columns, and the number of records also where there are none, in memory bounded by a few blocks.

    CSV columns are text, so that an id such as `007` keeps its zeros; `tpsl.tables.columns` gives them their types.
    Files come in the order of their names, and the next block is read beside the work on one. `rows` takes the first
    records only, and what stands after them is not looked at. Progress is told in bytes of the files as they lie on
    disk. A table that does not exist, cannot be read, lacks a column or has a record of another length is a
    `DataError`; so is one that has no records, unless it may be empty.
    """
    files, done = files_of(location), 0
    sizes = [file.size for file in files]
    for file, earlier in zip(files, accumulate(sizes, initial=0), strict=False):
        before = done
        if is_parquet(file.name):
            pieces = _parquet_blocks(file, columns)
        else:
            pieces = _text_blocks(file, columns, dialect, None if rows is None else rows - before)
        with _readable(file.name):
            for found, position in _read_ahead(pieces):
                found = found if rows is None else found[: rows - done]
                if len(found):
                    arrays = {name: one_array(found[name]) for name in columns}
                    yield Block(done + 1, arrays, len(found), file.name, before)
                done += len(found)
                progress(earlier + position, sum(sizes), f"reading {location.name}")
                if done == rows:
                    return
    if done == 0 and not may_be_empty:
        raise DataError(f"{location}: the file has no records")
    if rows is not None and done < rows:
        raise DataError(f"{location}: rows: {rows} records were asked for, there are {done}")


def read_foreign(
    location: Location, columns: list[str], dialect: Dialect = PLAIN, *, progress: Progress = no_progress
) -> Iterator[Block]:
    """Yield the blocks of a table that another party has made: handed-over labels, a list of records, scores.

    Everything in it is the other side's word, also how large it is. Guarantee: all blocks together have at most
    `MOST_EXPANSION` times the bytes of the files, or `SMALL_BYTES`, and no text has more than `MOST_ID_BYTES`; anything
    else is a `DataError` of one sentence.
    """
    files = files_of(location)
    for file in files:
        if is_parquet(file.name):
            require_small_footer(file)
    size = sum(file.size for file in files)
    left = most = max(SMALL_BYTES, MOST_EXPANSION * size)
    for block in read_blocks(location, columns, dialect, progress=progress):
        found = {name: _short(column, f"{block.file}: column {name!r}") for name, column in block.columns.items()}
        left -= sum((column.nbytes for column in found.values()), start=_ROW_BYTES * block.rows)
        if left < 0:
            raise DataError(f"{location}: has {size:,} bytes and unpacks to more than {most:,}")
        yield replace(block, columns=found)


def foreign_schema(path: Path) -> ArrowObject:
    """Return the `pa.Schema` of a Parquet file that another party has made, whose description is within bounds."""
    (file,) = files_of(path)
    require_small_footer(file)
    return pyarrow.parquet.read_schema(path)


def _short(column: ArrowArray, place: str) -> ArrowArray:
    """Return a column, its values themselves where it has a dictionary of them; long texts are a `DataError`."""
    values = plain(column)
    if not is_text(values.type):
        return values
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest > MOST_ID_BYTES:
        raise DataError(f"{place} has a text of {longest:,} bytes, and {MOST_ID_BYTES:,} are allowed")
    return values.cast(pa.string())


def _read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield items; a thread makes the next one in the meantime."""
    with ThreadPoolExecutor(1, "reads ahead") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in reason:
            raise DataError(f"{name}: cannot be read, it is not UTF-8 text; {_SAVE_AS_UTF_8}") from error
        raise DataError(f"{name}: cannot be read, it is damaged or not what its ending says ({reason})") from error


def _all_present(file: str, columns: list[str], present: list[str]) -> None:
    for column in columns:
        if column not in present:
            names = ", ".join(repr(name) for name in present[:40]) + (", ..." if len(present) > 40 else "")
            raise DataError(f"{file}: there is no column {column!r}; the columns are {names or 'none'}")
        if present.count(column) > 1:
            raise DataError(f"{file}: there are {present.count(column)} columns called {column!r}")


def one_array(values: ArrowArray | list[ArrowArray]) -> ArrowArray:
    """Return a column in chunks, or a list of its pieces, as one array.

    Text beyond what one array of `pa.string` holds is `pa.large_string`.
    """
    if isinstance(values, pa.Array):
        return values
    chunked = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array(values)
    if pa.types.is_string(chunked.type) and chunked.nbytes > np.iinfo(np.int32).max:
        chunked = chunked.cast(pa.large_string())
    if pa.types.is_null(chunked.type):  # without a value there is no type
        chunked = chunked.cast(pa.string())
    whole = chunked.unify_dictionaries().combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole


def plain(column: ArrowArray) -> ArrowArray:
    """Return a column's values themselves, where it holds a dictionary of them."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def is_text(kind: ArrowObject) -> bool:
    """Return whether a type is one of those of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


# ---- Parquet files


def _parquet(file: StoredFile) -> ArrowObject:
    buffer_size = _BUFFER_HERE if file.is_local else _BUFFER_ELSEWHERE
    return pyarrow.parquet.ParquetFile(file.open(), pre_buffer=False, buffer_size=buffer_size)


def _parquet_blocks(file: StoredFile, columns: list[str]) -> Iterator[_Piece]:
    with _parquet(file) as content:
        names, done = list(content.schema_arrow.names), 0
        _all_present(file.name, columns, names)
        columns, groups = columns or names[:1], range(content.metadata.num_row_groups)
        # What lies elsewhere is the party's own; the pages of such files would be asked for one by one.
        at_once = rows_at_once(file, content, columns) if file.is_local else [BLOCK_ROWS] * len(groups)
        for rows, alike in groupby(groups, at_once.__getitem__):
            for batch in content.iter_batches(rows, row_groups=list(alike), columns=columns):
                done += batch.num_rows
                position = min(file.size, file.size * done // max(1, content.metadata.num_rows))
                yield pa.Table.from_batches([batch]), position


# ---- text files


@contextmanager
def _text(file: StoredFile) -> Iterator[tuple[ArrowObject, ArrowObject]]:
    """Open a text file; give its content, and the file itself, which knows how far it was read."""
    codec = _CODECS.get(file.name[file.name.rfind(".") :].lower())
    with ExitStack() as stack:
        content = stored = stack.enter_context(file.open())
        if codec is not None:
            content = stack.enter_context(pa.CompressedInputStream(stored, codec))
        yield content, stored


def _beginning(file: StoredFile, size: int) -> bytes:
    """Return the first bytes of the text in a file."""
    with _text(file) as (content, _):
        return bytes(content.read(size))


def _header(file: StoredFile, dialect: Dialect) -> list[str]:
    """Return the names of the columns of a text file."""
    if dialect.names is not None:
        return list(dialect.names)
    text = io.TextIOWrapper(io.BytesIO(_beginning(file, BLOCK_BYTES)), encoding="utf-8-sig", newline="")
    return next(csv.reader(text, delimiter=dialect.delimiter), [])


def _text_blocks(file: StoredFile, columns: list[str], dialect: Dialect, rows: int | None) -> Iterator[_Piece]:
    """Yield the blocks of a text file; records of a wrong length after the first `rows` do not count."""
    names = _header(file, dialect)
    _all_present(file.name, columns, names)
    faults: list[str] = []

    def refuse(row: ArrowObject) -> str:
        number = row.number - (dialect.names is None)  # without the header line
        if rows is not None and number > rows:
            return "skip"
        faults.append(f"row {number}: {row.actual_columns} columns instead of {row.expected_columns}")
        return "error"

    with _text(file) as (content, stored):
        if not file.size:
            return
        try:
            for batch in _parser(content, columns or names[:1], dialect, refuse):
                yield pa.Table.from_batches([batch]), stored.tell()
        except pa.ArrowInvalid as error:
            if not faults:
                raise
            raise DataError(f"{file.name}: cannot be read, {faults[0]}") from error


def _parser(
    content: ArrowObject, columns: list[str], dialect: Dialect, refuse: Callable[[ArrowObject], str]
) -> ArrowObject:
    # One thread: it is no slower for text, and knows the number of a record at fault.
    return pyarrow.csv.open_csv(
        content,
        pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False, column_names=dialect.names),
        pyarrow.csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True, invalid_row_handler=refuse),
        pyarrow.csv.ConvertOptions(
            include_columns=columns, column_types=dict.fromkeys(columns, pa.string()), null_values=[]
        ),
    )


# ---- writing: files that are whole or absent


def new_parquet(path: Path, schema: ArrowObject) -> ArrowObject:
    """Open a Parquet file for writing; it has its name only once it is complete."""
    return _new(path, lambda file: pyarrow.parquet.ParquetWriter(file, schema, compression="zstd"))


def new_table(path: Path, schema: ArrowObject) -> ArrowObject:
    """Open a Parquet or CSV file for writing, as its ending says; it has its name only once it is complete."""
    if is_parquet(path.name):
        return new_parquet(path, schema)
    if path.suffix.lower() != ".csv":
        raise DataError(f"{path}: a table is written as one of {', '.join(('.csv', *PARQUET_ENDINGS))}")
    return _new(path, lambda file: pyarrow.csv.CSVWriter(file, schema))


@contextmanager
def _new(path: Path, make_writer: Callable[[ArrowObject], ArrowObject]) -> Iterator[ArrowObject]:
    try:
        make_private_folder(path.parent)
        with replaced(path) as draft, open_durably(draft, "wb") as file, make_writer(file) as writer:
            yield writer
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error
