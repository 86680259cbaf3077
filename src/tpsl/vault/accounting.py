"""What has been spent: computed from what each record was really released under, not from a sum over ledger entries."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from tpsl.vault import coverage, ledger
from tpsl.vault.budget import times, total
from tpsl.vault.coverage import History
from tpsl.vault.ledger import Entry, LargestUnit, Ledger, Spent
from tpsl.vault.storage import CHUNK, count_records

_ROWS = 65_536
_Histories = npt.NDArray[np.uint32]


def account(connection: sqlite3.Connection) -> Ledger:
    """The ledger with its totals, from one state of the vault."""
    entries = ledger.read_entries(connection)
    releases = {entry.sequence: entry for entry in entries if entry.kind == "released"}
    records = count_records(connection)
    has_units = any(entry.details.get("units_digest") for entry in entries)
    history_of = np.zeros(records if has_units else 0, np.uint32)
    numbers: dict[History, int] = {(): 0}
    counts: Counter[History] = Counter()
    for chunk in range(coverage.chunk_count(records)):
        index, found = coverage.histories(coverage.masks(connection, chunk))
        for history, count in zip(found, np.bincount(index, minlength=len(found)).tolist(), strict=True):
            counts[history] += count
            numbers.setdefault(history, len(numbers))
        if has_units:
            part = history_of[chunk * CHUNK : (chunk + 1) * CHUNK]
            part[:] = np.array([numbers[history] for history in found], np.uint32)[index[: len(part)]]
    unit = _largest_unit(connection, history_of, list(numbers), releases) if has_units else None
    return Ledger(int(entries[0].details["classes"]), records, entries, _spent(counts, releases), unit)


def _spent(counts: Counter[History], releases: dict[int, Entry]) -> tuple[Spent, ...]:
    """Counts by what was released, so that records of several releases in one series appear together."""
    merged: dict[tuple[ledger.Series, ...], tuple[History, int]] = {}
    for history, count in counts.items():
        if history and count:
            series = tuple(sorted((releases[entry].series for entry in history), key=repr))
            first, before = merged.get(series, (history, 0))
            merged[series] = (first, before + count)
    spent = [ledger.spent_under((releases[entry] for entry in history), count) for history, count in merged.values()]
    return tuple(sorted(spent, key=lambda part: (-part.epsilon, -part.delta, part.released_under)))


def _largest_unit(
    connection: sqlite3.Connection,
    history_of: _Histories,
    numbered: list[History],
    releases: dict[int, Entry],
) -> LargestUnit:
    """Walk through the records unit by unit and find the unit that spent most.

    A record without a unit (older versions let both into one vault) counts as a unit of its own, and is never skipped.
    Sums are exact: the records of a unit are counted by history, and each history's total is multiplied. Units with the
    same counts spend the same, so the exact arithmetic is done once for all of them.
    """
    epsilons = [total(releases[entry].epsilon for entry in history) for history in numbered]
    deltas = [total(releases[entry].delta for entry in history) for history in numbered]
    alone = np.ones(len(history_of), np.bool_)
    kinds = {
        frozenset(Counter(history for _, history in records).items())
        for _, records in groupby(_units_and_histories(connection, history_of, alone), key=itemgetter(0))
    }
    kinds |= {frozenset({(history, 1)}) for history in np.unique(history_of[alone]).tolist()}
    units = (
        LargestUnit(
            total(times(epsilons[history], count) for history, count in counts),
            total(times(deltas[history], count) for history, count in counts),
            sum(count for _, count in counts),
        )
        for counts in kinds
    )
    return max(units, key=lambda unit: (unit.epsilon, unit.delta, unit.records))


def _units_and_histories(
    connection: sqlite3.Connection, history_of: _Histories, alone: coverage.Mask
) -> Iterator[tuple[str, int]]:
    """(unit, number of the history) of every record that has a unit, unit by unit; it is struck off `alone`."""
    cursor = connection.execute("SELECT unit, position FROM records WHERE unit IS NOT NULL ORDER BY unit")
    while rows := cursor.fetchmany(_ROWS):
        units, positions = zip(*rows, strict=True)
        at = np.array(positions)
        alone[at] = False
        yield from zip(units, history_of[at].tolist(), strict=True)
