"""What units spend, whom records are about: the sum over all records of each, exact, for the one that spends most."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

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
    connection: sqlite3.Connection, units: Any, positions: npt.NDArray[np.int64], planned: Planned | None = None
) -> LedgerTotal:
    """The most that any unit of some records has spent over all its records, or will have when `planned` is released.

    `units` are those of the records at `positions`, -1 for a record that is not in the vault yet.
    """
    encoded = pa.array(units, pa.string()).dictionary_encode()
    index_of, histories = releases_of_each(connection)
    parts = [total_of(history, 1) for history in histories]
    number_of, held = records_about(connection, encoded.dictionary.to_pylist())
    pairs = [number_of * (len(histories) + 1) + index_of[held]]
    if planned is not None:
        drawn = np.array([any(entry.series == planned.series for entry in history) for history in histories])
        new = (positions < 0) | ~drawn[index_of[positions]] if len(index_of) else np.ones(len(positions), np.bool_)
        asked = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)[new]
        pairs.append(asked * (len(histories) + 1) + len(histories))
        parts.append(total_of([planned], 1))
    found, counts = np.unique(np.concatenate(pairs), return_counts=True)
    if not len(found):
        return LedgerTotal(records=len(positions), by_unit=True)
    numbers, kinds_of = np.divmod(found, len(histories) + 1)
    rows = zip(numbers.tolist(), kinds_of.tolist(), counts.tolist(), strict=True)
    kinds = {frozenset((kind, count) for _, kind, count in group) for _, group in groupby(rows, key=itemgetter(0))}
    largest = largest_unit(kinds, parts)
    private = all(parts[kind].private for kind in np.unique(kinds_of).tolist())
    return LedgerTotal(largest.epsilon, largest.delta, private, len(positions), by_unit=True)


def units_at(connection: sqlite3.Connection, positions: npt.NDArray[np.int64]) -> list[str]:
    """Return the unit of each of these records; one without is an error."""
    rows = connection.execute(
        "SELECT records.id, unit FROM json_each(?) AS wanted JOIN records ON position = wanted.value ORDER BY key",
        (json.dumps(positions.tolist()),),
    ).fetchall()
    for id, unit in rows:
        if unit is None:
            raise VaultError(f"the record {id!r} has no unit, in a vault whose limits are those of units")
    return [unit for _, unit in rows]
