"""Typed columns of a click log: in memory, or in one party's Parquet file."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from tpsl.data.errors import DataError

# What is learned must not depend on where the columns lie: sums are taken over batches of this many rows everywhere.
BATCH_ROWS = 1 << 17


class InMemory:
    """Columns of tables that were read whole."""

    def __init__(self, tables: Iterable[Any]) -> None:
        self._table = pa.concat_tables(tables).combine_chunks()

    def __len__(self) -> int:
        return len(self._table)

    def column(self, name: str) -> Any:
        """Return one column whole, as a `pa.Array`."""
        return self._table[name].chunk(0)

    def batches(self, names: Iterable[str]) -> Iterator[Any]:
        """Yield these columns as `pa.RecordBatch`es of `BATCH_ROWS` rows, the last of fewer."""
        yield from self._table.select(list(names)).to_batches(BATCH_ROWS)


class InParquet:
    """Columns of a Parquet file in row groups of `BATCH_ROWS`; one is read when it is asked for, and not kept."""

    def __init__(self, path: Path, schema: Any, rows: int | None) -> None:
        if not path.is_file():
            raise DataError(f"{path}: there is no such file")
        self.path = path
        with _readable(path):
            self._file = pyarrow.parquet.ParquetFile(path)
        if not self._file.schema_arrow.equals(schema):
            raise DataError(f"{path}: the columns are not those that converting a click log of this source writes")
        available = self._file.metadata.num_rows
        if rows is not None and rows > available:
            raise DataError(f"{path}: rows: {rows} records were asked for, there are {available}")
        self._rows = available if rows is None else rows

    def __len__(self) -> int:
        return self._rows

    def note(self, name: bytes) -> str | None:
        """Return what the writer of the file has noted under this name."""
        found: bytes | None = (self._file.metadata.metadata or {}).get(name)
        return None if found is None else found.decode()

    def batches(self, names: Iterable[str]) -> Iterator[Any]:
        """Yield these columns as `pa.RecordBatch`es of `BATCH_ROWS` rows, the last of fewer."""
        columns = list(names)
        for group in range(-(-self._rows // BATCH_ROWS)):
            with _readable(self.path):
                table = self._file.read_row_group(group, columns=columns)
            yield from table[: self._rows - group * BATCH_ROWS].combine_chunks().to_batches()


Columns = InMemory | InParquet


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read, it is damaged ({' '.join(str(error).split())})") from error
