"""What units spend, whom records are about: the sum over all records of each, exact, for the one that spends most."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.vault.budget import times, total
from tpsl.vault.errors import VaultError
from tpsl.vault.ledger import LargestUnit
from tpsl.vault.planned import Planned
from tpsl.vault.totals import LedgerTotal, releases_of_each, total_of

UnitKind = frozenset[tuple[int, int]]
"""What a unit's records were part of: (number of a history, how many of its records have it). Units of a kind spend
the same, so exact arithmetic is done once for all of them."""

_UNITS_AT_ONCE = 1 << 18


class Cost(Protocol):
    """What each record with a history has spent."""

    @property
    def epsilon(self) -> float:
        """ε."""

    @property
    def delta(self) -> float:
        """δ."""


def largest_unit(kinds: Iterable[UnitKind], costs: Sequence[Cost]) -> LargestUnit:
    """Return what the unit of one of these kinds spends that spends most; `costs` are those of each history."""
    units = (
        LargestUnit(
            total(times(costs[history].epsilon, count) for history, count in kind),
            total(times(costs[history].delta, count) for history, count in kind),
            sum(count for _, count in kind),
        )
        for kind in kinds
    )
    return max(units, key=lambda unit: (unit.epsilon, unit.delta, unit.records))


def records_about(connection: sqlite3.Connection, units: Sequence[str]) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the records about any of these different units: the number of the unit and the position of each."""
    numbers, positions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, len(units), _UNITS_AT_ONCE):
        wanted = json.dumps(list(units[start : start + _UNITS_AT_ONCE]))
        rows = connection.execute(
            "SELECT wanted.key, position FROM json_each(?) AS wanted JOIN records ON unit = wanted.value", (wanted,)
        ).fetchall()
        found = np.array(rows, np.int64).reshape(-1, 2)
        numbers.append(found[:, 0] + start)
        positions.append(found[:, 1])
    return np.concatenate(numbers), np.concatenate(positions)


def total_of_units(
    connection: sqlite3.Connection,
    positions: npt.NDArray[np.int64],
    planned: Planned | None = None,
    new: Sequence[str] | pa.Array = (),
) -> LedgerTotal:
    """The most that any unit of some records has spent over all its records, or will have when `planned` is released.

    The records are those at `positions`, and `new` ones, by their units, that are not in the vault yet.
    """
    index_of, histories = releases_of_each(connection)
    units = pa.concat_arrays([_units(connection), pa.array(new, pa.string())]).dictionary_encode()
    unit_of = units.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    parts = [total_of(history, 1) for history in histories]
    asked = np.concatenate([positions, np.arange(len(index_of), len(unit_of))])
    concerned = np.zeros(len(units.dictionary), np.bool_)
    concerned[unit_of[asked]] = True
    held = np.flatnonzero(concerned[unit_of[: len(index_of)]])
    pairs = [unit_of[held] * (len(parts) + 1) + index_of[held]]
    if planned is not None:
        drawn = np.array([any(entry.series == planned.series for entry in history) for history in histories])
        has_drawn = np.concatenate([drawn[index_of], np.zeros(len(unit_of) - len(index_of), np.bool_)])
        pairs.append(unit_of[asked[~has_drawn[asked]]] * (len(parts) + 1) + len(parts))
        parts = [*parts, total_of([planned], 1)]
    found, counts = np.unique(np.concatenate(pairs), return_counts=True)
    if not len(found):
        return LedgerTotal(by_unit=True)
    numbers, kind_of = np.divmod(found, len(histories) + 1)
    rows = zip(numbers.tolist(), kind_of.tolist(), counts.tolist(), strict=True)
    kinds = {frozenset((kind, count) for _, kind, count in group) for _, group in groupby(rows, key=itemgetter(0))}
    largest = largest_unit(kinds, parts)
    private = all(parts[kind].private for kind in np.unique(kind_of).tolist())
    return LedgerTotal(largest.epsilon, largest.delta, private, len(asked), by_unit=True)


def _units(connection: sqlite3.Connection) -> pa.Array:
    """Return the unit of each record, by position; one without is an error."""
    cursor = connection.execute("SELECT unit FROM records ORDER BY position")
    parts = [pa.array([], pa.string())]
    while rows := cursor.fetchmany(_UNITS_AT_ONCE):
        parts.append(pa.array([unit for (unit,) in rows], pa.string()))
    units = pa.concat_arrays(parts)
    if units.null_count:
        raise VaultError(f"{units.null_count:,} records have no unit, in a vault whose limits are those of units")
    return units
