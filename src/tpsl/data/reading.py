"""Opening a party's file: CSV or Parquet, only the columns that are asked for."""

import csv
import gzip
import io
import zlib
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tpsl.data.errors import DataError

CSV_ENDINGS = (".csv", ".csv.gz")
PARQUET_ENDINGS = (".parquet", ".pq")


def read_columns(path: Path, columns: list[str]) -> dict[str, Any]:
    """Return column name -> `pa.Array`.

    CSV columns are returned as text, so that an id such as `007` keeps its zeros; `tpsl.data.columns` gives them
    their types. A file that does not exist, is of no known kind, cannot be read, has no records or lacks a column is a
    `DataError`.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    ending = path.name.lower()
    if not ending.endswith((*CSV_ENDINGS, *PARQUET_ENDINGS)):
        kinds = ", ".join((*CSV_ENDINGS, *PARQUET_ENDINGS))
        raise DataError(f"{path}: the ending of a file tells its kind, and must be one of {kinds}")
    try:
        found = _parquet(path, columns) if ending.endswith(PARQUET_ENDINGS) else _csv(path, columns)
    except (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: cannot be read, it is damaged or not what its ending says ({reason})") from error
    if found.num_rows == 0:
        raise DataError(f"{path}: the file has no records")
    return {column: _one_array(path, column, found[column]) for column in columns}


def _parquet(path: Path, columns: list[str]) -> Any:
    with pyarrow.parquet.ParquetFile(path) as file:
        _all_present(path, columns, list(file.schema_arrow.names))
        return file.read(columns=columns)


def _csv(path: Path, columns: list[str]) -> Any:
    with _opened(path) as content:
        header = next(csv.reader(io.TextIOWrapper(content, encoding="utf-8-sig", newline="")), [])
    _all_present(path, columns, header)
    convert = pyarrow.csv.ConvertOptions(
        include_columns=columns, column_types=dict.fromkeys(columns, pa.string()), null_values=[]
    )
    # A quoted text may span lines; the parser then works in one piece, which is worth the time it takes.
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.name.lower().endswith(".gz") else path.open("rb")


def _all_present(path: Path, columns: list[str], present: list[str]) -> None:
    for column in columns:
        if column not in present:
            names = ", ".join(repr(name) for name in present[:40]) + (", ..." if len(present) > 40 else "")
            raise DataError(f"{path}: there is no column {column!r}; the columns are {names or 'none'}")
        if present.count(column) > 1:
            raise DataError(f"{path}: there are {present.count(column)} columns called {column!r}")


def _one_array(path: Path, column: str, values: Any) -> Any:
    combined = values.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        if combined.num_chunks != 1:
            raise DataError(f"{path}: column {column!r} holds more than 2 GiB of text, which is too much for one table")
        combined = combined.chunk(0)
    return combined
