"""Records into the vault: the first load, and what arrives later."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpsl.vault import coverage, ledger, lookalikes
from tpsl.vault.canonical import ids_as_text, labels_as_integers
from tpsl.vault.errors import VaultError
from tpsl.vault.storage import count_records, find_positions
from tpsl.vault.tables import Batch, LabelTable

_ROWS = 65_536


@dataclass(frozen=True)
class Added:
    """What an `add` did. A record whose label changed after its release keeps its release."""

    new: int
    unchanged: int
    changed: int
    changed_after_release: int


@dataclass(frozen=True)
class _Rows:
    first_row: int
    ids: list[str]
    labels: npt.NDArray[np.int64]
    units: list[str] | None


def add(connection: sqlite3.Connection, classes: int, batches: Iterable[Batch]) -> Added:
    """Append new records and update changed labels, inside the running transaction, with their ledger entry."""
    source = "the input"
    if isinstance(batches, LabelTable):
        batches.check_class_values(classes)
        source = str(batches.path)
    adding = _Adding(connection, count_records(connection), source)
    for part in _canonical_rows(batches, classes, source):
        adding.take(part)
    return adding.finish()


def has_units(connection: sqlite3.Connection) -> bool:
    """Say whether records of the vault have a unit; then every new one needs one."""
    return connection.execute("SELECT 1 FROM records WHERE unit IS NOT NULL LIMIT 1").fetchone() is not None


def require_units(connection: sqlite3.Connection, positions: npt.NDArray[np.int64], units: Sequence[str]) -> None:
    """Raise a `VaultError` that names the first record whose unit in the vault is another one."""
    unit_of = dict(zip(positions.tolist(), units, strict=True))
    stored = connection.execute(
        "SELECT records.id, position, unit FROM json_each(?) AS known JOIN records ON position = known.value"
        " ORDER BY position",
        (json.dumps(positions.tolist()),),
    )
    for id, position, unit in stored:
        if unit != unit_of[position]:
            found = "without a unit" if unit is None else f"with unit {unit!r}"
            raise VaultError(
                f"the record {id!r} is in the vault {found}, not with {unit_of[position]!r}; the unit of a record "
                "cannot change"
            )


class _Adding:
    """The running counts and digests of one `add`."""

    def __init__(self, connection: sqlite3.Connection, known: int, source: str) -> None:
        self._connection = connection
        self._source = source
        self._known = self._count = known
        self._seen = np.zeros(known, np.bool_)
        self._changed = np.zeros(known, np.bool_)
        self._ids, self._units = coverage.TextDigest(), coverage.TextDigest()
        self._has_units = has_units(connection) if known else None
        self._styles = lookalikes.known_styles(connection)

    def take(self, rows: _Rows) -> None:
        """Take in the next rows of the input."""
        if rows.units is not None and self._has_units is False:
            raise VaultError(
                f"{self._source}, row {rows.first_row}: it comes with units, but the records before it have none; what "
                "a unit spends is known only if all records of a vault have one"
            )
        if self._known:
            rows = self._without_known(rows)
        if rows.units is None and self._has_units and rows.ids:
            raise VaultError(
                f"{self._source}: the record {rows.ids[0]!r} is new and has no unit, but the vault has units; name the "
                "column that says whom a record is about"
            )
        if rows.ids:
            self._has_units = rows.units is not None
        first = self._count
        self._count += len(rows.ids)
        self._ids.update(rows.ids)
        if self._styles.records == first:  # not so in a vault of an older version
            self._styles = self._styles.joined(rows.ids)
        self._units.update(rows.units or [""] * len(rows.ids))
        units: Sequence[str | None] = rows.units or [None] * len(rows.ids)
        self._connection.executemany(
            "INSERT INTO records VALUES (?, ?, ?, ?)",
            zip(range(first, self._count), rows.ids, rows.labels.tolist(), units, strict=True),
        )

    def finish(self) -> Added:
        """Build the indices after a first load, write the ledger entry and return the counts."""
        new, changed = self._count - self._known, int(self._changed.sum())
        if not self._known and new:
            self._index()
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

    def _index(self) -> None:
        """Index ids and units: sorting all of a first load at once is far faster than inserting in random order."""
        try:
            self._connection.execute("CREATE UNIQUE INDEX records_by_id ON records (id)")
        except sqlite3.IntegrityError as error:
            id, first, last = self._connection.execute(
                "SELECT id, MIN(position), MAX(position) FROM records GROUP BY id HAVING COUNT(*) > 1 LIMIT 1"
            ).fetchone()
            raise VaultError(
                f"{self._source}: the id {id!r} occurs more than once, for example in rows {first + 1} and {last + 1}"
            ) from error
        self._connection.execute("CREATE INDEX records_by_unit ON records (unit) WHERE unit IS NOT NULL")

    def _without_known(self, rows: _Rows) -> _Rows:
        """Account for the rows whose id the vault knows, and return the others."""
        positions = find_positions(self._connection, rows.ids)
        first_of_id = dict(zip(reversed(rows.ids), range(len(rows.ids) - 1, -1, -1), strict=True))
        again = (positions >= self._known) | ((positions >= 0) & self._seen[np.minimum(positions, self._known - 1)])
        if len(first_of_id) < len(rows.ids):
            again |= np.array([first_of_id[id] for id in rows.ids]) != np.arange(len(rows.ids))
        if again.any():
            at = int(again.argmax())
            raise VaultError(f"{self._source}, row {rows.first_row + at}: the id {rows.ids[at]!r} occurred before")
        old = np.flatnonzero(positions >= 0)
        self._seen[positions[old]] = True
        self._update(rows, dict(zip(positions[old].tolist(), old.tolist(), strict=True)))
        fresh = np.flatnonzero(positions < 0).tolist()
        return _Rows(
            rows.first_row,
            [rows.ids[at] for at in fresh],
            rows.labels[fresh],
            None if rows.units is None else [rows.units[at] for at in fresh],
        )

    def _update(self, rows: _Rows, row_of: dict[int, int]) -> None:
        """Compare the rows at these positions with what the vault holds, and store the labels that changed."""
        stored = self._connection.execute(
            "SELECT position, label, unit FROM json_each(?) AS known JOIN records ON position = known.value",
            (json.dumps(sorted(row_of)),),
        ).fetchall()
        changed = []
        for position, label, unit in stored:
            at = row_of[position]
            if rows.units is not None and rows.units[at] != unit:
                raise VaultError(
                    f"{self._source}, row {rows.first_row + at}: the record {rows.ids[at]!r} is in the vault with unit "
                    f"{unit!r}, not {rows.units[at]!r}; the unit of a record cannot change"
                )
            if label != rows.labels[at]:
                self._changed[position] = True
                changed.append((int(rows.labels[at]), position))
        self._connection.executemany("UPDATE records SET label = ? WHERE position = ?", changed)


def _canonical_rows(batches: Iterable[Batch], classes: int, source: str) -> Iterator[_Rows]:
    first_row = 1
    for ids, labels, units in batches:
        if len(ids) != len(labels) or (units is not None and len(ids) != len(units)):
            raise VaultError(f"{source}: a batch has {len(ids)} ids but another number of labels or units")
        for start in range(0, len(ids), _ROWS):
            part = slice(start, start + _ROWS)
            row = first_row + start
            yield _Rows(
                row,
                ids_as_text(ids[part], first_row=row, source=source),
                labels_as_integers(labels[part], classes, first_row=row, source=source),
                None if units is None else ids_as_text(units[part], what="unit", first_row=row, source=source),
            )
        first_row += len(ids)
