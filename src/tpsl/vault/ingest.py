"""Records into the vault: files or batches are read, made canonical, and appended inside one transaction."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tpsl.progress import Notice, Progress, no_progress
from tpsl.tables.columns import Place
from tpsl.tables.locations import Location
from tpsl.tables.reading import dialect_of, read_blocks
from tpsl.vault import blocks, id_index, ledger, same_labels
from tpsl.vault.blocks import Block, Positions
from tpsl.vault.canonical import INPUT, as_vault_error, ids_as_text, labels_as_integers, names_of_classes
from tpsl.vault.coverage import PositionSet, is_covered, read_chunk
from tpsl.vault.errors import VaultError
from tpsl.vault.near_duplicates import NearDuplicates
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

Batch = tuple[Any, Any, Any]
"""(ids, labels, units or None): three columns of equal length."""

_ROWS = 1 << 18
"""Rows that are stored together, however small the files or batches are that they come from."""
_ROWS_TO_LOOK_UP = 1 << 22
"""Rows that are looked up together in a vault that has records: each time much of its index is read."""


class RowRange(NamedTuple):
    """Consecutive rows of one source: its name, the number of the first row from 1, and how many there are."""

    source: str
    first: int
    rows: int


class SourceBatch(NamedTuple):
    """Records in canonical form, and the rows of the input that they are."""

    records: Block
    ranges: tuple[RowRange, ...]

    def row(self, at: int = 0) -> str:
        """Name the source and the row of a record of the batch, counted from 0."""
        source, row = located(self.ranges, at)
        return f"{source}, row {row}"


def located(ranges: Iterable[RowRange], at: int) -> tuple[str, int]:
    """The source and the row of a record: number 3 of rows 1 and 2 of a file and rows 1 to 9 of the next is row 2."""
    for part in ranges:
        if at < part.rows:
            return part.source, part.first + at
        at -= part.rows
    raise AssertionError("a record that is in none of the rows")


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """A CSV, TSV or Parquet table, in one file or many: its columns of ids, labels and, where there is one, units.

    CSV columns are read as text, so that "007" stays "007". A missing file or column, and a truncated or corrupt file
    are a `VaultError` that names the file.
    """

    path: Location
    id: str
    label: str
    unit: str | None = None
    class_values: Sequence[str] | None = None
    """The texts that stand for the classes, in order, where labels are not 0..classes-1."""
    progress: Progress = no_progress

    def batches(self, classes: int) -> Iterator[SourceBatch]:
        """The records in the order of the files."""
        values = names_of_classes(classes) if self.class_values is None else tuple(self.class_values)
        if not len(set(values)) == len(values) == classes:
            raise VaultError(f"{classes} classes need as many different class values, not {', '.join(values)}")
        columns = [self.id, self.label, *([] if self.unit is None else [self.unit])]
        if len(set(columns)) < len(columns):
            raise VaultError(f"{self.path}: id, label and unit must be different columns, not {', '.join(columns)}")
        with as_vault_error():
            dialect = dialect_of(self.path)
            for block in read_blocks(self.path, columns, dialect, progress=self.progress):
                ids, labels, units = (
                    (None, None) if name is None else (block.columns[name], Place.of(block, name))
                    for name in (self.id, self.label, self.unit)
                )
                rows = RowRange(block.file, block.first - block.before, block.rows)
                yield SourceBatch(_records(ids, labels, units, values), (rows,))


_Placed = tuple[Any, Place | None]
"""A column, and the place that errors name; None for a column that there is not."""


def _records(ids: _Placed, labels: _Placed, units: _Placed, class_values: tuple[str, ...]) -> Block:
    """Columns in canonical form."""
    return Block(
        ids_as_text(ids[0], place=ids[1]),
        labels_as_integers(labels[0], class_values, place=labels[1]),
        None if units[0] is None else ids_as_text(units[0], what="unit", place=units[1]),
    )


def source_batches(given: Iterable[Batch | LabelTable] | LabelTable, classes: int) -> Iterator[SourceBatch]:
    """All records that were given; what cannot be read is a `VaultError` that names the source and the row."""
    row = 1
    for item in [given] if isinstance(given, LabelTable) else given:
        if isinstance(item, LabelTable):
            yield from item.batches(classes)
            continue
        ids, labels, units = item
        if len(ids) != len(labels) or (units is not None and len(ids) != len(units)):
            raise VaultError(f"{INPUT}: a batch has {len(ids)} ids but another number of labels or units")
        for start in range(0, len(ids), _ROWS):
            ids_part, labels_part, units_part = (
                (None if column is None else column[start : start + _ROWS], Place(INPUT, name, row))
                for name, column in (("id", ids), ("label", labels), ("unit", units))
            )
            records = _records(ids_part, labels_part, units_part, names_of_classes(classes))
            yield SourceBatch(records, (RowRange(INPUT, row, len(records)),))
            row += len(records)


def rebatched(batches: Iterable[SourceBatch], rows: int) -> Iterator[SourceBatch]:
    """The same records in batches of at least this number of rows, but for the last, and where units begin or end."""
    waiting, count = list[SourceBatch](), 0
    for batch in batches:
        if waiting and (waiting[0].records.units is None) != (batch.records.units is None):
            yield _joined(waiting)
            waiting, count = [], 0
        waiting.append(batch)
        count += len(batch.records)
        if count >= rows:
            yield _joined(waiting)
            waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[SourceBatch]) -> SourceBatch:
    ranges = tuple(part for batch in batches for part in batch.ranges)
    return SourceBatch(Block.joined([batch.records for batch in batches]), ranges)


@dataclass(frozen=True)
class Added:
    """What an `add` did. A record whose label changed after its release keeps its release."""

    new: int
    unchanged: int
    changed: int
    changed_after_release: int


def add(store: Store, classes: int, given: Iterable[Batch | LabelTable] | LabelTable, notice: Notice) -> Added:
    """Append new records and update changed labels, inside the running transaction, with their ledger entry.

    Near-duplicate ids are told to `notice`.
    """
    near_duplicates = NearDuplicates(store)
    adding = _Adding(store, classes, near_duplicates)
    known = blocks.count_records(store)
    for batch in rebatched(source_batches(given, classes), _ROWS_TO_LOOK_UP if known else _ROWS):
        adding.take(batch)
    added = adding.finish()
    if sentence := near_duplicates.sentence():
        notice(sentence)
    return added


def require_units(store: Store, positions: Positions, units: Texts, row: Callable[[int], str] = lambda at: "") -> None:
    """Raise a `VaultError` that names the first record whose unit in the vault is another one, and its `row`."""
    stored = blocks.units_at(store, positions)
    others = np.flatnonzero(~stored.equal(units))
    if others.size:
        at = int(others[positions[others].argmin()])
        found = f"with unit {stored[at]!r}" if stored[at] else "without a unit"
        raise VaultError(
            f"{row(at)}the record {blocks.id_at(store, int(positions[at]))!r} is in the vault {found}, not "
            f"with {units[at]!r}; the unit of a record cannot change"
        )


class _Adding:
    """The running counts and digests of one `add`."""

    def __init__(self, store: Store, classes: int, near_duplicates: NearDuplicates) -> None:
        self._store, self._classes, self._near_duplicates = store, classes, near_duplicates
        self._known, self._new = blocks.count_records(store), 0
        self._seen, self._changed = PositionSet(), PositionSet()
        self._ids, self._units = sha256(), sha256()
        self._has_units = blocks.has_units(store) if self._known else None
        self._new_rows: list[tuple[int, npt.NDArray[np.uint8], tuple[RowRange, ...]]] = []
        """For each batch how many of its records are new, which of them (a bit each), and the rows they are."""

    def take(self, batch: SourceBatch) -> None:
        """Take in the next rows of the input."""
        rows = batch.records
        if rows.units is not None and self._has_units is False:
            raise VaultError(
                f"{batch.row()}: it comes with units, but the records before it have none; what a unit spends is "
                "known only if all records of a vault have one"
            )
        new = self._is_new(batch) if self._known else np.ones(len(rows), np.bool_)
        rows = rows.where(new)
        self._new_rows.append((len(rows), np.packbits(new), batch.ranges))
        if rows.units is None and self._has_units and len(rows):
            raise VaultError(
                f"{batch.row(int(new.argmax()))}: the record {rows.ids[0]!r} is new and has no unit, but the vault has "
                "units; name the column that says whom a record is about"
            )
        if len(rows):
            self._has_units = rows.units is not None
        self._ids.update(rows.ids.to_bytes())
        if rows.units is not None:
            self._units.update(rows.units.to_bytes())
        self._near_duplicates.take(rows.ids, self._known + self._new + np.arange(len(rows)))
        self._new += len(rows)
        blocks.append(self._store, self._classes, rows)

    def finish(self) -> Added:
        """Complete the index, write the ledger entry and return the counts.

        A vault with records gets an entry whatever the rows changed: the head of the ledger, which others see, must not
        tell whether a label was corrected. The random number in each entry hides its counts.
        """
        new, changed = self._new, len(self._changed)
        twice = id_index.enter(self._store, self._known) if new else None
        if twice is not None:
            raise VaultError(self._occurs_twice(*twice))
        after_release = sum(
            int((is_covered(read_chunk(self._store, chunk)) & mask).sum()) for chunk, mask in self._changed.masks()
        )
        added = Added(new, len(self._seen) - changed, changed, after_release)
        if new or self._known:
            details = {
                "records": new,
                "ids_digest": self._ids.hexdigest(),
                "units_digest": self._units.hexdigest() if new and self._has_units else None,
                "labels_changed": changed,
                "labels_changed_after_release": after_release,
            }
            ledger.append(self._store, "added", details)
        same_labels.settle(self._store)
        return added

    def _occurs_twice(self, first: int, second: int) -> str:
        id = blocks.id_at(self._store, first)
        (earlier, row), (source, later) = self._located(first), self._located(second)
        return f"{source}, row {later}: the id {id!r} occurred before, in {earlier}, row {row}"

    def _located(self, position: int) -> tuple[str, int]:
        """The source and the row in which a new record came."""
        left = position - self._known
        for count, packed, ranges in self._new_rows:
            if left < count:
                return located(ranges, int(np.flatnonzero(np.unpackbits(packed))[left]))
            left -= count
        raise AssertionError("a position that is not new")

    def _is_new(self, batch: SourceBatch) -> npt.NDArray[np.bool_]:
        """Say which rows are not in the vault yet, and account for the others."""
        rows = batch.records
        positions = id_index.find_positions(self._store, rows.ids, self._known)
        old = np.flatnonzero(positions >= 0)
        known = positions[old]
        again = self._seen.has_again(known)
        if again.any():
            at = int(old[again.argmax()])
            raise VaultError(f"{batch.row(at)}: the id {rows.ids[at]!r} occurred before")
        self._seen.add(known)
        if rows.units is not None:
            units = rows.units.take(old)
            require_units(self._store, known, units, lambda at: f"{batch.row(int(old[at]))}: ")
        differ = blocks.labels_at(self._store, known) != rows.labels[old]
        self._changed.add(known[differ])
        blocks.set_labels(self._store, known[differ], rows.labels[old[differ]])
        new: npt.NDArray[np.bool_] = positions < 0
        return new
