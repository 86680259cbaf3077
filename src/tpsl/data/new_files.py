"""Parquet and CSV files that are whole or absent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet

from tpsl.files import make_private_folder, open_private
from tpsl.tables import DataError
from tpsl.tables.reading import PARQUET_ENDINGS, is_parquet


def new_parquet(path: Path, schema: Any) -> Any:
    """Open a Parquet file for writing; it has its name only once it is complete."""
    return _new(path, lambda file: pyarrow.parquet.ParquetWriter(file, schema, compression="zstd"))


def new_table(path: Path, schema: Any) -> Any:
    """Open a Parquet or CSV file for writing, as its ending says; it has its name only once it is complete."""
    if is_parquet(path.name):
        return new_parquet(path, schema)
    if path.suffix.lower() != ".csv":
        raise DataError(f"{path}: a table is written as one of {', '.join(('.csv', *PARQUET_ENDINGS))}")
    return _new(path, lambda file: pyarrow.csv.CSVWriter(file, schema))


@contextmanager
def _new(path: Path, make_writer: Callable[[Any], Any]) -> Iterator[Any]:
    try:
        make_private_folder(path.parent)
        unfinished = path.with_name(path.name + ".unfinished")
        try:
            with open_private(unfinished, "wb") as file, make_writer(file) as writer:
                yield writer
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error
