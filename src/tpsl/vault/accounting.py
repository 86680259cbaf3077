"""What has been spent: computed from what each record was really released under, not from a sum over ledger entries."""

import sqlite3
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tpsl.vault import ledger
from tpsl.vault.blocks import CHUNK, count_records, read_blocks
from tpsl.vault.ledger import LargestUnit, Ledger, Spent
from tpsl.vault.people import largest_person
from tpsl.vault.texts import Texts
from tpsl.vault.totals import Releases, releases_of_each
from tpsl.vault.units import UnitKind, UnitRows, largest_unit

_RECORDS_AT_ONCE = 1 << 22
_Indices = npt.NDArray[np.uint32]


def account(connection: sqlite3.Connection) -> Ledger:
    """The ledger with its totals, from one state of the vault."""
    entries = ledger.read_entries(connection)
    records = count_records(connection)
    index_of, histories = releases_of_each(connection)
    counts = np.zeros(len(histories), np.int64)
    for start in range(0, records, CHUNK):
        counts += np.bincount(index_of[start : start + CHUNK], minlength=len(histories))
    has_units = any(entry.details.get("units_digest") for entry in entries)
    unit = _largest_unit(connection, index_of, histories) if has_units else None
    if entries[0].details.get("counts_people") and records:
        unit = largest_person(connection, records)
    return Ledger(int(entries[0].details["classes"]), records, entries, _spent(histories, counts.tolist()), unit)


def _spent(histories: Sequence[Releases], counts: Sequence[int]) -> tuple[Spent, ...]:
    """Counts by what was released, so that records of several releases in one series appear together."""
    merged: dict[tuple[ledger.Series, ...], tuple[Releases, int]] = {}
    for history, count in zip(histories, counts, strict=True):
        if history and count:
            series = tuple(sorted((entry.series for entry in history), key=repr))
            first, before = merged.get(series, (history, 0))
            merged[series] = (first, before + count)
    spent = [ledger.spent_under(history, count) for history, count in merged.values()]
    return tuple(sorted(spent, key=lambda part: (-part.epsilon, -part.delta, part.released_under)))


def _largest_unit(connection: sqlite3.Connection, index_of: _Indices, histories: Sequence[Releases]) -> LargestUnit:
    """Find the unit that spent most; sums are exact: the records of a unit are counted by history.

    A record without a unit (older versions let both into one vault) counts as a unit of its own, and is never skipped.
    Units are taken in parts, by their hashes, so that memory is bounded.
    """
    kinds: set[UnitKind] = set()
    parts = -(-len(index_of) // _RECORDS_AT_ONCE)
    for part in range(parts):
        units, of = [], [np.zeros(0, np.int64)]
        for chunk, block in enumerate(read_blocks(connection)):
            history_of = index_of[chunk * CHUNK : chunk * CHUNK + len(block)].astype(np.int64)
            given = Texts.empty(len(block)) if block.units is None else block.units
            alone = given.equal(Texts.empty(len(block)))
            kinds |= {frozenset({(history, 1)}) for history in np.unique(history_of[alone]).tolist()}
            mine = ~alone & (given.hashes() % np.uint64(parts) == part)
            units.append(given.take(mine))
            of.append(history_of[mine])
        unit_of, count = Texts.joined(units).numbered()
        rows = UnitRows.counted(unit_of, np.concatenate(of), len(histories))
        kinds |= rows.kinds(np.zeros(count, np.int64)).get(0, set())
    return largest_unit(kinds, histories)
