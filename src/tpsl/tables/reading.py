"""Opening a table: CSV, plain or compressed, or Parquet; the columns that are asked for, block by block."""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tpsl.progress import Progress, no_progress
from tpsl.tables.errors import DataError
from tpsl.tables.lines import COMPRESSIONS, LineStream

BLOCK_BYTES = 1 << 22
BLOCK_ROWS = 1 << 16
"""How much is read at a time: bytes of text, or records of a Parquet file. PyArrow reads up to 32 blocks ahead."""

PARQUET_ENDINGS = (".parquet", ".pq")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
CSV_ENDINGS = tuple(kind + packed for kind in _DELIMITERS for packed in COMPRESSIONS)


@dataclass(frozen=True)
class Dialect:
    """How a text file is written.

    `names` are those of the columns where no header line has them. Where values are not `quoted`, every line is a
    record, and errors name lines; else a quoted value may hold line breaks, and errors name rows.
    """

    delimiter: str = ","
    names: tuple[str, ...] | None = None
    quoted: bool = True

    @property
    def header_lines(self) -> int:
        """Number of lines before the first record."""
        return 1 if self.names is None else 0

    def place(self, number: int) -> str:
        """Return where a record stands that is number `number` of the file, from 1."""
        return f"row {number}" if self.quoted else f"line {number + self.header_lines}"

    def fault(self, number: int, unfinished: int | None, sentence: str) -> str:
        """Return what is wrong with a record, after where it stands."""
        hint = " (and the line has no end: the file seems to be cut off)" if number == unfinished else ""
        return f"{self.place(number)}: {sentence}{hint}"


PLAIN = Dialect()


@dataclass(frozen=True)
class Block:
    """Consecutive records: the number of the first, counted from 1, and a `pa.Array` for each column.

    `unfinished` is the number of a record whose line has no end: the file may be cut off there.
    """

    first: int
    columns: dict[str, Any]
    rows: int
    unfinished: int | None = None


def dialect_of(path: Path) -> Dialect:
    """Return how a file is written, by its ending; any other ending than those of tables is an error."""
    name = path.name.lower()
    for ending in CSV_ENDINGS:
        if name.endswith(ending):
            return Dialect(_DELIMITERS[ending[:4]])
    if not name.endswith(PARQUET_ENDINGS):
        kinds = ", ".join((*CSV_ENDINGS, *PARQUET_ENDINGS))
        raise DataError(f"{path}: the ending of a file tells its kind, and must be one of {kinds}")
    return PLAIN


def is_parquet(path: Path) -> bool:
    """Return whether the ending is that of a Parquet file."""
    return path.name.lower().endswith(PARQUET_ENDINGS)


def rows_in_parquet(path: Path) -> int:
    """Return the number of records of a Parquet file."""
    with _readable(path), pyarrow.parquet.ParquetFile(path) as file:
        return int(file.metadata.num_rows)


def column_names(path: Path, dialect: Dialect = PLAIN) -> list[str]:
    """Return the names of a file's columns."""
    with _readable(path):
        if is_parquet(path):
            return list(pyarrow.parquet.read_schema(path).names)
        with LineStream(path) as stream:
            return list(dialect.names) if dialect.names is not None else _header(stream.peek(BLOCK_BYTES), dialect)


def read_blocks(
    path: Path,
    columns: list[str],
    dialect: Dialect = PLAIN,
    *,
    rows: int | None = None,
    progress: Progress = no_progress,
) -> Iterator[Block]:
    """Yield these columns, and the number of records also where there are none, in memory bounded by a block.

    CSV columns are text, so that an id such as `007` keeps its zeros; `tpsl.tables.columns` gives them their types.
    `rows` takes the first records only, and what stands after them is not looked at. Progress is told in bytes of the
    file as it lies on disk. A file that does not exist, cannot be read, has no records, lacks a column or has a record
    of another length is a `DataError`.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    done = 0
    blocks = _parquet_blocks if is_parquet(path) else _text_blocks
    with _readable(path):
        for found, position, unfinished in blocks(path, columns, dialect, rows):
            found = found if rows is None else found[: rows - done]
            if len(found):
                yield Block(done + 1, {name: _one_array(found[name]) for name in columns}, len(found), unfinished)
            done += len(found)
            progress(*position, f"reading {path.name}")
            if done == rows:
                break
    if done == 0:
        raise DataError(f"{path}: the file has no records")
    if rows is not None and done < rows:
        raise DataError(f"{path}: rows: {rows} records were asked for, there are {done}")


_Piece = tuple[Any, tuple[int, int], int | None]
"""A `pa.Table`; bytes that were read, and all of them; the record whose line has no end."""


def _parquet_blocks(path: Path, columns: list[str], dialect: Dialect, rows: int | None) -> Iterator[_Piece]:
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        _all_present(path, columns, list(file.schema_arrow.names))
        size, done = path.stat().st_size, 0
        for batch in file.iter_batches(BLOCK_ROWS, columns=columns or file.schema_arrow.names[:1]):
            done += batch.num_rows
            yield pa.Table.from_batches([batch]), (size * done // file.metadata.num_rows, size), None


def _text_blocks(path: Path, columns: list[str], dialect: Dialect, rows: int | None) -> Iterator[_Piece]:
    with LineStream(path, strict_lines=not dialect.quoted) as stream:
        text = stream.peek(BLOCK_BYTES)
        if not text:
            stream.finish()
        names = list(dialect.names) if dialect.names is not None else _header(text, dialect)
        _all_present(path, columns, names)
        if text:
            faults = _Faults(dialect, rows, stream)
            try:
                for batch in _parser(stream, columns or names[:1], dialect, faults):
                    yield pa.Table.from_batches([batch]), (stream.position, stream.size), faults.unfinished
            except pa.ArrowInvalid as error:
                raise faults.named(error) from error
        stream.finish()


def _header(text: bytes, dialect: Dialect) -> list[str]:
    content = io.TextIOWrapper(io.BytesIO(text), encoding="utf-8-sig", newline="")
    return next(csv.reader(content, delimiter=dialect.delimiter), [])


class _Faults:
    """Records of a wrong length: the first is remembered, those after the wanted records do not count."""

    def __init__(self, dialect: Dialect, rows: int | None, stream: LineStream) -> None:
        self._dialect, self._rows, self._stream = dialect, rows, stream
        self._found: tuple[int, str] | None = None

    def __call__(self, row: Any) -> str:
        number = row.number - self._dialect.header_lines
        if self._rows is not None and number > self._rows:
            return "skip"
        self._found = number, f"{row.actual_columns} columns instead of {row.expected_columns}"
        return "error"

    @property
    def unfinished(self) -> int | None:
        """The number of the record whose line has no end; nobody knows where a record may hold line ends."""
        line = self._stream.unfinished_line
        return None if line is None or self._dialect.quoted else line - self._dialect.header_lines

    def named(self, error: Exception) -> Exception:
        """Return what to raise: the record at fault, if that is what went wrong."""
        if self._found is None:
            return error
        number, sentence = self._found
        fault = self._dialect.fault(number, self.unfinished, sentence)
        return DataError(f"{self._stream.path}: cannot be read, {fault}")


def _parser(content: Any, columns: list[str], dialect: Dialect, faults: _Faults) -> Any:
    # One thread: it is no slower for text, and knows the number of a record at fault.
    return pyarrow.csv.open_csv(
        pa.PythonFile(content, mode="r"),
        pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False, column_names=dialect.names),
        pyarrow.csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char='"' if dialect.quoted else False,
            newlines_in_values=dialect.quoted,
            invalid_row_handler=faults,
        ),
        pyarrow.csv.ConvertOptions(
            include_columns=columns, column_types=dict.fromkeys(columns, pa.string()), null_values=[]
        ),
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: cannot be read, it is damaged or not what its ending says ({reason})") from error


def _all_present(path: Path, columns: list[str], present: list[str]) -> None:
    for column in columns:
        if column not in present:
            names = ", ".join(repr(name) for name in present[:40]) + (", ..." if len(present) > 40 else "")
            raise DataError(f"{path}: there is no column {column!r}; the columns are {names or 'none'}")
        if present.count(column) > 1:
            raise DataError(f"{path}: there are {present.count(column)} columns called {column!r}")


def _one_array(values: Any) -> Any:
    combined = values.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
