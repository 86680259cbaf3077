"""Parquet files that are whole or absent."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet

from tpsl.data.errors import DataError
from tpsl.files import make_private_folder, open_private


@contextmanager
def new_parquet(path: Path, schema: Any) -> Iterator[Any]:
    """Open a Parquet file for writing; it has its name only once it is complete."""
    try:
        make_private_folder(path.parent)
        unfinished = path.with_name(path.name + ".unfinished")
        try:
            with (
                open_private(unfinished, "wb") as file,
                pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer,
            ):
                yield writer
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error
