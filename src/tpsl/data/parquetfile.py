"""Parquet files that are whole or absent."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet

from tpsl.data.errors import DataError


@contextmanager
def new_parquet(path: Path, schema: Any) -> Iterator[Any]:
    """Open a Parquet file for writing; it has its name only once it is complete."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".unfinished")
        try:
            with pyarrow.parquet.ParquetWriter(unfinished, schema, compression="zstd") as writer:
                yield writer
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error
