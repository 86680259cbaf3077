"""CSV and Parquet files as a stream of (ids, labels, units) batches, in bounded memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tpsl.progress import Progress, no_progress
from tpsl.tables import DataError
from tpsl.tables.columns import Place, class_numbers
from tpsl.tables.locations import Location
from tpsl.tables.reading import dialect_of, read_blocks
from tpsl.vault.errors import VaultError

Batch = tuple[Any, Any, Any]
"""(ids, labels, units or None): three columns of equal length."""


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """The batches of a CSV, TSV or Parquet file: its columns of ids, labels and, where there is one, units.

    CSV columns are read as text, so that "007" stays "007". Raises `VaultError` naming the file for a missing file,
    a missing column, a truncated or corrupt file.
    """

    path: Location
    id: str
    label: str
    unit: str | None = None
    class_values: Sequence[str] | None = None
    """The texts that stand for the classes, in order, where labels are not 0..classes-1."""
    may_be_empty: bool = False
    """Whether no records are no error, as of one file of many."""
    progress: Progress = no_progress

    def check_class_values(self, classes: int) -> None:
        """Raise a `VaultError` unless every class has a value, where there are any."""
        values = self.class_values
        if values is not None and not len(set(values)) == len(values) == classes:
            raise VaultError(f"{classes} classes need as many different class values, not {', '.join(values)}")

    def __iter__(self) -> Iterator[Batch]:
        columns = [self.id, self.label] + ([self.unit] if self.unit is not None else [])
        if len(set(columns)) < len(columns):
            raise VaultError(f"{self.path}: id, label and unit must be different columns, not {', '.join(columns)}")
        try:
            dialect = dialect_of(self.path)
            for block in read_blocks(
                self.path, columns, dialect, progress=self.progress, may_be_empty=self.may_be_empty
            ):
                labels = block.columns[self.label]
                if self.class_values is not None:
                    place = Place.of(block, self.label)
                    labels = class_numbers(labels, place, tuple(self.class_values))
                units = block.columns[self.unit] if self.unit is not None else None
                yield block.columns[self.id], labels, units
        except DataError as error:
            raise VaultError(str(error)) from error
