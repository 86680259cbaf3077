"""CSV and Parquet files as a stream of (ids, labels, units) batches, in bounded memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from tpsl.progress import Progress, no_progress
from tpsl.vault.canonical import labels_by_name
from tpsl.vault.errors import VaultError

Batch = tuple[Any, Any, Any]
"""(ids, labels, units or None): three columns of equal length."""

_ROWS = 65_536
_BLOCK_BYTES = 4 << 20


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
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        stream, total = (_parquet if is_parquet else _csv)(path, columns)
        done = 0
        for batch in stream:
            if batch.num_rows == 0:
                continue
            labels = batch.column(label)
            if class_values is not None:
                labels = labels_by_name(labels, class_values, first_row=done + 1, source=str(path))
            yield batch.column(id), labels, batch.column(unit) if unit is not None else None
            done += batch.num_rows
            progress(done, total, "reading records")
    except (OSError, pa.ArrowException, EOFError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:300]
        raise VaultError(f"{path} cannot be read: {reason}") from error


def _parquet(path: Path, columns: list[str]) -> tuple[Iterator[Any], int]:
    file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_BLOCK_BYTES)
    _need_columns(path, columns, file.schema_arrow.names)
    return file.iter_batches(batch_size=_ROWS, columns=columns), file.metadata.num_rows


def _csv(path: Path, columns: list[str]) -> tuple[Iterator[Any], int]:
    parse = pacsv.ParseOptions(
        delimiter="\t" if path.name.endswith((".tsv", ".tsv.gz")) else ",", newlines_in_values=True
    )
    read = pacsv.ReadOptions(block_size=_BLOCK_BYTES)

    def opened(convert: Any) -> Any:
        return pacsv.open_csv(path, read_options=read, parse_options=parse, convert_options=convert)

    # A first look with text everywhere only learns the header: the named columns must exist before types are given.
    with opened(pacsv.ConvertOptions(check_utf8=False)) as header:
        _need_columns(path, columns, header.schema.names)
    convert = pacsv.ConvertOptions(
        include_columns=columns, column_types=dict.fromkeys(columns, pa.string()), strings_can_be_null=False
    )
    return iter(opened(convert)), 0


def _need_columns(path: Path, wanted: list[str], present: list[str]) -> None:
    for name in wanted:
        if present.count(name) != 1:
            fault = "has no column" if name not in present else f"has {present.count(name)} columns called"
            raise VaultError(f"{path} {fault} {name!r}; its columns are {', '.join(present)}")
