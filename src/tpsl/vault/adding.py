"""Records into the vault: the first load, and what arrives later."""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.vault import blocks, coverage, id_index, ledger, lookalikes
from tpsl.vault.blocks import Block, Positions
from tpsl.vault.canonical import ids_as_text, labels_as_integers
from tpsl.vault.errors import VaultError
from tpsl.vault.tables import Batch, LabelTable
from tpsl.vault.texts import TextDigest, Texts

_ROWS = 1 << 19


@dataclass(frozen=True)
class Added:
    """What an `add` did. A record whose label changed after its release keeps its release."""

    new: int
    unchanged: int
    changed: int
    changed_after_release: int


def add(connection: sqlite3.Connection, folder: Path, classes: int, batches: Iterable[Batch]) -> Added:
    """Append new records and update changed labels, inside the running transaction, with their ledger entry."""
    source = "the input"
    if isinstance(batches, LabelTable):
        batches.check_class_values(classes)
        source = str(batches.path)
    with id_index.NewIds(folder) as new_ids:
        adding = _Adding(connection, classes, source, new_ids)
        for first_row, rows in _canonical_rows(batches, classes, source):
            adding.take(first_row, rows)
        return adding.finish(folder)


def require_units(connection: sqlite3.Connection, positions: Positions, units: Texts) -> None:
    """Raise a `VaultError` that names the first record whose unit in the vault is another one."""
    stored = blocks.units_at(connection, positions)
    others = np.flatnonzero(~stored.equal(units))
    if others.size:
        at = int(others[positions[others].argmin()])
        id = blocks.id_at(connection, int(positions[at]))
        found = f"with unit {stored[at]!r}" if stored[at] else "without a unit"
        raise VaultError(
            f"the record {id!r} is in the vault {found}, not with {units[at]!r}; the unit of a record cannot change"
        )


class _Adding:
    """The running counts and digests of one `add`."""

    def __init__(self, connection: sqlite3.Connection, classes: int, source: str, new_ids: id_index.NewIds) -> None:
        self._connection, self._classes, self._source, self._new_ids = connection, classes, source, new_ids
        self._known = blocks.count_records(connection)
        self._seen = np.zeros(self._known, np.bool_)
        self._changed = np.zeros(self._known, np.bool_)
        self._ids, self._units = TextDigest(), TextDigest()
        self._has_units = blocks.has_units(connection) if self._known else None
        self._styles = lookalikes.known_styles(connection)
        self._new_rows: list[tuple[int, int, npt.NDArray[np.uint8]]] = []

    def take(self, first_row: int, rows: Block) -> None:
        """Take in the next rows of the input."""
        if rows.units is not None and self._has_units is False:
            raise VaultError(
                f"{self._source}, row {first_row}: it comes with units, but the records before it have none; what a "
                "unit spends is known only if all records of a vault have one"
            )
        if self._known:
            new = self._is_new(first_row, rows)
            self._new_rows.append((first_row, int(new.sum()), np.packbits(new)))
            units = None if rows.units is None else rows.units.take(new)
            rows = Block(rows.ids.take(new), rows.labels[new], units)
        if rows.units is None and self._has_units and len(rows):
            raise VaultError(
                f"{self._source}: the record {rows.ids[0]!r} is new and has no unit, but the vault has units; name the "
                "column that says whom a record is about"
            )
        if len(rows):
            self._has_units = rows.units is not None
        first = self._known + self._new_ids.count
        self._ids.update(rows.ids)
        if self._styles.records == first:  # not so in a vault of an older version
            self._styles = self._styles.joined(rows.ids)
        if rows.units is not None:
            self._units.update(rows.units)
        self._new_ids.take(rows.ids.hashes(), first)
        blocks.append(self._connection, self._classes, rows)

    def finish(self, folder: Path) -> Added:
        """Complete the index, write the ledger entry and return the counts."""
        new, changed = self._new_ids.count, int(self._changed.sum())
        twice = id_index.enter(self._connection, self._new_ids, folder) if new else None
        if twice is not None:
            raise VaultError(self._occurs_twice(*twice))
        after_release = coverage.count_covered(self._connection, np.flatnonzero(self._changed))
        added = Added(new, int(self._seen.sum()) - changed, changed, after_release)
        if new or changed:
            details = {
                "records": new,
                "ids_digest": self._ids.hexdigest(),
                "units_digest": self._units.hexdigest() if new and self._has_units else None,
                "labels_changed": changed,
                "labels_changed_after_release": after_release,
            }
            ledger.append(self._connection, "added", details)
            lookalikes.examine(self._connection, self._styles)
        return added

    def _occurs_twice(self, first: int, second: int) -> str:
        id = blocks.id_at(self._connection, first)
        if not self._known:
            return (
                f"{self._source}: the id {id!r} occurs more than once, for example in rows {first + 1} and {second + 1}"
            )
        return f"{self._source}, row {self._row_of(second)}: the id {id!r} occurred before"

    def _row_of(self, position: int) -> int:
        """The row of the input in which a new record came."""
        left = position - self._known
        for first_row, count, packed in self._new_rows:
            if left < count:
                return first_row + int(np.flatnonzero(np.unpackbits(packed))[left])
            left -= count
        raise AssertionError("a position that is not new")

    def _is_new(self, first_row: int, rows: Block) -> npt.NDArray[np.bool_]:
        """Say which rows are not in the vault yet, and account for the others."""
        positions = id_index.find_positions(self._connection, rows.ids)
        old = np.flatnonzero(positions >= 0)
        known = positions[old]
        again = self._seen[known]
        again[np.setdiff1d(np.arange(len(known)), np.unique(known, return_index=True)[1])] = True
        if again.any():
            at = int(old[again.argmax()])
            raise VaultError(f"{self._source}, row {first_row + at}: the id {rows.ids[at]!r} occurred before")
        self._seen[known] = True
        if rows.units is not None:
            self._check_units(first_row, old, known, rows)
        differ = blocks.labels_at(self._connection, known) != rows.labels[old]
        self._changed[known[differ]] = True
        blocks.set_labels(self._connection, known[differ], rows.labels[old[differ]])
        new: npt.NDArray[np.bool_] = positions < 0
        return new

    def _check_units(self, first_row: int, old: npt.NDArray[np.intp], known: Positions, rows: Block) -> None:
        """Raise a `VaultError` unless the records at these positions have the units that these rows give them."""
        assert rows.units is not None
        stored, given = blocks.units_at(self._connection, known), rows.units.take(old)
        others = np.flatnonzero(~stored.equal(given))
        if others.size:
            at = int(others[0])
            row = int(old[at])
            raise VaultError(
                f"{self._source}, row {first_row + row}: the record {rows.ids[row]!r} is in the vault with "
                f"unit {stored[at]!r}, not {given[at]!r}; the unit of a record cannot change"
            )


def _canonical_rows(batches: Iterable[Batch], classes: int, source: str) -> Iterator[tuple[int, Block]]:
    """(number of the first row, rows): all batches in portions."""
    first_row = 1
    for ids, labels, units in batches:
        if len(ids) != len(labels) or (units is not None and len(ids) != len(units)):
            raise VaultError(f"{source}: a batch has {len(ids)} ids but another number of labels or units")
        for start in range(0, len(ids), _ROWS):
            part = slice(start, start + _ROWS)
            row = first_row + start
            yield (
                row,
                Block(
                    ids_as_text(ids[part], first_row=row, source=source),
                    labels_as_integers(labels[part], classes, first_row=row, source=source),
                    None if units is None else ids_as_text(units[part], what="unit", first_row=row, source=source),
                ),
            )
        first_row += len(ids)
