"""Records into the vault: the first load, and what arrives later."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpsl.progress import Notice
from tpsl.vault import agreement, blocks, id_index, ledger
from tpsl.vault.blocks import Positions
from tpsl.vault.coverage import PositionSet, covered_by, masks
from tpsl.vault.errors import VaultError
from tpsl.vault.near_duplicates import NearDuplicates
from tpsl.vault.pairs import Pairs
from tpsl.vault.portions import Portion, Stretch, gathered, place_in
from tpsl.vault.store import Store
from tpsl.vault.texts import TextDigest, Texts

_ROWS = 1 << 18
"""Rows that are stored together, however small the files are that they come from."""
_ROWS_TO_LOOK_UP = 1 << 22
"""Rows that are looked up together in a vault that has records: each time much of its index is read."""


@dataclass(frozen=True)
class Added:
    """What an `add` did. A record whose label changed after its release keeps its release."""

    new: int
    unchanged: int
    changed: int
    changed_after_release: int


def add(store: Store, classes: int, portions: Iterable[Portion], notice: Notice) -> Added:
    """Append new records and update changed labels, inside the running transaction, with their ledger entry.

    Near-duplicate ids are told to `notice`.
    """
    with Pairs(store.folder) as new_ids:
        adding = _Adding(store, classes, new_ids)
        known = blocks.count_records(store)
        for portion in gathered(portions, _ROWS_TO_LOOK_UP if known else _ROWS):
            adding.take(portion)
        added = adding.finish()
        if sentence := adding.near_duplicates.sentence():
            notice(sentence)
        return added


def require_units(store: Store, positions: Positions, units: Texts) -> None:
    """Raise a `VaultError` that names the first record whose unit in the vault is another one."""
    stored = blocks.units_at(store, positions)
    others = np.flatnonzero(~stored.equal(units))
    if others.size:
        at = int(others[positions[others].argmin()])
        id = blocks.id_at(store, int(positions[at]))
        found = f"with unit {stored[at]!r}" if stored[at] else "without a unit"
        raise VaultError(
            f"the record {id!r} is in the vault {found}, not with {units[at]!r}; the unit of a record cannot change"
        )


@dataclass(frozen=True)
class _NewRows:
    """The new records of a portion: how many, which of its rows (None: all), and where these stand."""

    count: int
    packed: npt.NDArray[np.uint8] | None
    stretches: tuple[Stretch, ...]


class _Adding:
    """The running counts and digests of one `add`."""

    def __init__(self, store: Store, classes: int, new_ids: Pairs) -> None:
        self._store, self._classes, self._new_ids = store, classes, new_ids
        self._key = id_index.key_of(store)
        self._known = blocks.count_records(store)
        self._seen, self._changed = PositionSet(), PositionSet()
        self._ids, self._units = TextDigest(), TextDigest()
        self._has_units = blocks.has_units(store) if self._known else None
        self.near_duplicates = NearDuplicates(store)
        self._new_rows: list[_NewRows] = []

    def take(self, portion: Portion) -> None:
        """Take in the next rows of the input."""
        rows = portion.records
        if rows.units is not None and self._has_units is False:
            raise VaultError(
                f"{_place(portion)}: it comes with units, but the records before it have none; what a unit spends is "
                "known only if all records of a vault have one"
            )
        new = np.ones(len(rows), np.bool_)
        if self._known:
            new = self._is_new(portion)
            rows = rows.where(new)
        self._new_rows.append(_NewRows(len(rows), np.packbits(new) if self._known else None, portion.stretches))
        if rows.units is None and self._has_units and len(rows):
            raise VaultError(
                f"{_place(portion, int(new.argmax()))}: the record {rows.ids[0]!r} is new and has no unit, but the "
                "vault has units; name the column that says whom a record is about"
            )
        if len(rows):
            self._has_units = rows.units is not None
        first = self._known + self._new_ids.count
        self._ids.update(rows.ids)
        self.near_duplicates.take(rows.ids, first)
        if rows.units is not None:
            self._units.update(rows.units)
        self._new_ids.take(rows.ids.hashes(self._key), np.arange(first, first + len(rows)))
        blocks.append(self._store, self._classes, rows)
        agreement.note(self._store, rows.ids, rows.labels)

    def finish(self) -> Added:
        """Complete the index, write the ledger entry and return the counts.

        A vault with records gets an entry whatever the rows changed: the head of the ledger, which others see, must not
        tell whether a label was corrected. The random number in each entry hides its counts.
        """
        new, changed = self._new_ids.count, len(self._changed)
        twice = id_index.enter(self._store, self._new_ids) if new else None
        if twice is not None:
            raise VaultError(self._occurs_twice(*twice))
        after_release = sum(
            int((covered_by(masks(self._store, chunk)) & mask).sum()) for chunk, mask in self._changed.masks()
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
        agreement.settle(self._store)
        return added

    def _occurs_twice(self, first: int, second: int) -> str:
        id = blocks.id_at(self._store, first)
        (earlier, row), (source, later) = self._place_of(first), self._place_of(second)
        if source != earlier:
            return f"{source}, row {later}: the id {id!r} occurred before, in {earlier}, row {row}"
        if self._known:
            return f"{source}, row {later}: the id {id!r} occurred before"
        return f"{source}: the id {id!r} occurs more than once, for example in rows {row} and {later}"

    def _place_of(self, position: int) -> tuple[str, int]:
        """The source and the row in which a new record came."""
        left = position - self._known
        for new in self._new_rows:
            if left < new.count:
                at = left if new.packed is None else int(np.flatnonzero(np.unpackbits(new.packed))[left])
                return place_in(new.stretches, at)
            left -= new.count
        raise AssertionError("a position that is not new")

    def _is_new(self, portion: Portion) -> npt.NDArray[np.bool_]:
        """Say which rows are not in the vault yet, and account for the others."""
        rows = portion.records
        positions = id_index.find_positions(self._store, rows.ids)
        old = np.flatnonzero(positions >= 0)
        known = positions[old]
        again = self._seen.has_again(known)
        if again.any():
            at = int(old[again.argmax()])
            raise VaultError(f"{_place(portion, at)}: the id {rows.ids[at]!r} occurred before")
        self._seen.add(known)
        if rows.units is not None:
            self._check_units(portion, old, known)
        stored = blocks.labels_at(self._store, known)
        differ = stored != rows.labels[old]
        agreement.note(self._store, rows.ids.take(old[differ]), stored[differ], -1)
        agreement.note(self._store, rows.ids.take(old[differ]), rows.labels[old[differ]])
        self._changed.add(known[differ])
        blocks.set_labels(self._store, known[differ], rows.labels[old[differ]])
        new: npt.NDArray[np.bool_] = positions < 0
        return new

    def _check_units(self, portion: Portion, old: npt.NDArray[np.intp], known: Positions) -> None:
        """Raise a `VaultError` unless the records at these positions have the units that these rows give them."""
        units = portion.records.units
        assert units is not None
        stored, given = blocks.units_at(self._store, known), units.take(old)
        others = np.flatnonzero(~stored.equal(given))
        if others.size:
            at = int(others[0])
            row = int(old[at])
            raise VaultError(
                f"{_place(portion, row)}: the record {portion.records.ids[row]!r} is in the vault with "
                f"unit {stored[at]!r}, not {given[at]!r}; the unit of a record cannot change"
            )


def _place(portion: Portion, at: int = 0) -> str:
    source, row = place_in(portion.stretches, at)
    return f"{source}, row {row}"
