"""What has been spent: computed from what each record was really released under, not from a sum over ledger entries."""

from collections.abc import Iterable

import numpy as np

from tpsl.spill import RowParts
from tpsl.vault import ledger
from tpsl.vault.blocks import count_records, read_blocks
from tpsl.vault.ledger import LargestUnit, Ledger, Spent
from tpsl.vault.people import largest_person
from tpsl.vault.store import Store
from tpsl.vault.texts import HashKey, Texts
from tpsl.vault.totals import Releases, ReleasesOfEach, ways_out
from tpsl.vault.units import UnitKind, UnitRows, largest_unit

_RECORDS_AT_ONCE = 1 << 22


def account(store: Store) -> Ledger:
    """The ledger with its totals, from one state of the vault; time is linear in the records, memory bounded."""
    entries, records = ledger.read_entries(store), count_records(store)
    own = [entry for entry in entries if entry.details.get("label") == store.label]
    has_units = any(entry.details.get("units_digest") for entry in own)
    unit = _largest_unit(store, records) if has_units else None
    if own[0].details.get("counts_people") and records:
        unit = largest_person(store, records)
    spent = _spent(ways_out(store))
    return Ledger(store.label, int(own[0].details["classes"]), records, entries, spent, unit)


def _spent(ways: Iterable[tuple[Releases, int]]) -> tuple[Spent, ...]:
    """Counts by what was released, so that records of several releases in one series appear together."""
    merged: dict[tuple[ledger.Series, ...], tuple[Releases, int]] = {}
    for history, count in ways:
        if history:
            series = tuple(sorted((entry.series for entry in history), key=repr))
            first, before = merged.get(series, (history, 0))
            merged[series] = (first, before + count)
    spent = [ledger.spent_under(history, count) for history, count in merged.values()]
    return tuple(sorted(spent, key=lambda part: (-part.epsilon, -part.delta, part.released_under)))


def _largest_unit(store: Store, records: int) -> LargestUnit:
    """Find the unit that spent most; sums are exact: the records of a unit are counted by history.

    Units are taken in parts, by their hashes, so that memory is bounded.
    """
    kinds: set[UnitKind] = set()
    releases, key, parts = ReleasesOfEach(store), HashKey.random(), -(-records // _RECORDS_AT_ONCE)
    with RowParts(store.folder, parts) as whom:
        for block, index_of in zip(read_blocks(store), releases.by_chunk(), strict=True):
            history_of = index_of.astype(np.int64)
            given = Texts.empty(len(block)) if block.units is None else block.units
            whom.write(given.hashes(key) % np.uint64(parts), given.terminated, history_of)
        histories = releases.histories()
        for units, history_of in whom.parts():
            unit_of, count = Texts(units).numbered()
            counted = UnitRows.counted(unit_of, history_of, len(histories))
            kinds |= counted.kinds(np.zeros(count, np.int64)).get(0, set())
    return largest_unit(kinds, histories)
