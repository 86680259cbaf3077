"""CSV and Parquet files as a stream of (ids, labels, units) batches, in bounded memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tpsl.progress import Progress, no_progress
from tpsl.tables import DataError
from tpsl.tables.columns import Place, class_numbers
from tpsl.tables.reading import dialect_of, read_blocks
from tpsl.vault.errors import VaultError

Batch = tuple[Any, Any, Any]
"""(ids, labels, units or None): three columns of equal length."""


def batches_of_table(
    path: Path,
    *,
    id: str,
    label: str,
    unit: str | None = None,
    class_values: Sequence[str] | None = None,
    progress: Progress = no_progress,
) -> Iterator[Batch]:
    """Yield the named columns of a CSV, TSV or Parquet file, batch by batch; `class_values` names classes in order.

    CSV columns are read as text, so that "007" stays "007". Raises `VaultError` naming the file for a missing file,
    a missing column, a truncated or corrupt file.
    """
    columns = [id, label] + ([unit] if unit is not None else [])
    if len(set(columns)) < len(columns):
        raise VaultError(f"{path}: id, label and unit must be different columns, not {', '.join(columns)}")
    try:
        for block in read_blocks(path, columns, dialect_of(path), progress=progress):
            labels = block.columns[label]
            if class_values is not None:
                labels = class_numbers(labels, Place(str(path), label, block.first), tuple(class_values))
            yield block.columns[id], labels, block.columns.get(unit) if unit is not None else None
    except DataError as error:
        raise VaultError(str(error)) from error
