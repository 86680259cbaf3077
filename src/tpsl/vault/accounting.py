"""What has been spent: computed from what each record was really released under, not from a sum over ledger entries."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from tpsl.vault import coverage, ledger
from tpsl.vault.ledger import LargestUnit, Ledger, Spent
from tpsl.vault.people import largest_person
from tpsl.vault.storage import CHUNK, count_records
from tpsl.vault.totals import Releases, releases_of_each
from tpsl.vault.units import largest_unit

_ROWS = 65_536
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
    """Walk through the records unit by unit and find the unit that spent most.

    A record without a unit (older versions let both into one vault) counts as a unit of its own, and is never skipped.
    Sums are exact: the records of a unit are counted by history.
    """
    alone = np.ones(len(index_of), np.bool_)
    kinds = {
        frozenset(Counter(history for _, history in records).items())
        for _, records in groupby(_units_and_histories(connection, index_of, alone), key=itemgetter(0))
    }
    kinds |= {frozenset({(history, 1)}) for history in np.unique(index_of[alone]).tolist()}
    return largest_unit(kinds, histories)


def _units_and_histories(
    connection: sqlite3.Connection, index_of: _Indices, alone: coverage.Mask
) -> Iterator[tuple[str, int]]:
    """(unit, number of the history) of every record that has a unit, unit by unit; it is struck off `alone`."""
    cursor = connection.execute("SELECT unit, position FROM records WHERE unit IS NOT NULL ORDER BY unit")
    while rows := cursor.fetchmany(_ROWS):
        units, positions = zip(*rows, strict=True)
        at = np.array(positions)
        alone[at] = False
        yield from zip(units, index_of[at].tolist(), strict=True)
