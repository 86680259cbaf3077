"""Which records releases cover, and the outcomes they gave them, chunk by chunk.

A row holds what one release did in a chunk of 65,536 positions: which of them it covers, and the outcomes of these in
order, draw after draw. A statistic has no outcomes. Rows are never changed; the ledger has the digest of the outcomes
of each entry. The number of a series is the first entry of it in the label.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism
from tpsl.vault.blocks import CHUNK, Positions, by_chunk, chunk_count
from tpsl.vault.errors import VaultError
from tpsl.vault.store import Store

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]
"""Positions within a chunk."""
History = tuple[int, ...]
"""The sequence numbers of the releases that a record was part of, ascending."""

SCHEMA = """CREATE TABLE outcomes (
    label INTEGER NOT NULL, chunk INTEGER NOT NULL, entry INTEGER NOT NULL, series INTEGER NOT NULL,
    covered BLOB NOT NULL, outcomes BLOB NOT NULL, UNIQUE (label, chunk, entry)
)"""

_MOST_COUNTED = 1 << 22


@dataclass(frozen=True)
class Covered:
    """What one release did in a chunk."""

    entry: int
    series: int
    places: Places
    """The positions that it covers, ascending."""
    outcomes: bytes

    def decoded(self, mechanism: Mechanism, draws: int) -> npt.NDArray[Any]:
        """The outcomes as an array [draws, places, *outcome_shape]."""
        dtype, shape = mechanism.outcome_dtype, (draws, len(self.places), *mechanism.outcome_shape)
        if len(self.outcomes) != int(np.prod(shape)) * dtype.itemsize:
            raise VaultError("the outcomes of a release have the wrong length; run verify on the vault")
        return np.frombuffer(self.outcomes, dtype.newbyteorder("<")).reshape(shape)


def encode_outcomes(outcomes: npt.NDArray[Any]) -> bytes:
    """Outcomes [draws, records, …] as they are stored, and as the digest of a ledger entry runs over them."""
    return outcomes.astype(outcomes.dtype.newbyteorder("<"), copy=False).tobytes()


def read_chunk(store: Store, chunk: int, *, outcomes: bool = False) -> list[Covered]:
    """What each release did in a chunk, oldest first; with the outcomes if they are asked for."""
    columns = f"entry, series, covered, {'outcomes' if outcomes else 'NULL'}"
    query = f"SELECT {columns} FROM outcomes WHERE label = ? AND chunk = ? ORDER BY entry"  # noqa: S608
    return [_row(*row) for row in store.execute(query, (store.label, chunk))]


def outcomes_of_chunk(
    store: Store, chunk: int, series: int | None, mechanism: Mechanism, draws: int
) -> tuple[Mask, npt.NDArray[Any]]:
    """Which positions of a chunk a series covers, and outcomes `[draws, 65,536, …]`, which mean nothing at the others.

    None: no series.
    """
    covered = np.zeros(CHUNK, np.bool_)
    found = np.zeros((draws, CHUNK, *mechanism.outcome_shape), mechanism.outcome_dtype)
    query = "SELECT entry, series, covered, outcomes FROM outcomes WHERE label = ? AND chunk = ? AND series = ?"
    for columns in store.execute(query, (store.label, chunk, series)):
        row = _row(*columns)
        covered[row.places] = True
        found[:, row.places] = row.decoded(mechanism, draws)
    return covered, found


def series_numbers(store: Store) -> list[int]:
    """The numbers of the series that have released anything of the label."""
    rows = store.execute("SELECT DISTINCT series FROM outcomes WHERE label = ?", (store.label,))
    return [number for (number,) in rows]


def add_release(
    store: Store, chunk: int, entry: int, series: int, mask: Mask, outcomes: npt.NDArray[Any] | None = None
) -> None:
    """Store that a release covers these positions of a chunk, with these outcomes [draws, positions, …]."""
    if any(mask[row.places].any() for row in read_chunk(store, chunk) if row.series == series):
        raise VaultError("a record is released already in this series; run verify on the vault")
    covered = zlib.compress(np.diff(np.flatnonzero(mask), prepend=0).astype("<u2").tobytes(), 1)
    store.execute(
        "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?)",
        (store.label, chunk, entry, series, covered, b"" if outcomes is None else encode_outcomes(outcomes)),
    )


def _row(entry: int, series: int, covered: bytes, outcomes: bytes | None) -> Covered:
    """Read a row; the places 0, 1 and 7 are stored as 0, 1 and 6, how far each is from the one before."""
    try:
        steps = np.frombuffer(zlib.decompress(covered), "<u2").astype(np.intp)
    except (zlib.error, ValueError, TypeError):
        steps = np.zeros(0, np.intp)
    if not len(steps) or steps.sum() >= CHUNK or (steps[1:] == 0).any():
        raise VaultError(f"what release {entry} covers is damaged; run verify on the vault")
    return Covered(entry, series, np.cumsum(steps), outcomes or b"")


def chunk_histories(store: Store, chunk: int) -> tuple[npt.NDArray[np.intp], list[History]]:
    """For each position of a chunk, the index of its history in the list that is returned too.

    Records share few histories (mostly one), so exact sums can be made for each history instead of for each record.
    """
    index, found = np.zeros(CHUNK, np.intp), list[History]([()])
    by_series = attrgetter("series")
    for _, rows in groupby(sorted(read_chunk(store, chunk), key=by_series), key=by_series):
        entries, release_of = list[int](), np.zeros(CHUNK, np.intp)
        for row in rows:
            entries.append(row.entry)
            release_of[row.places] = len(entries)
        # A history and a release make one number: with 3 entries, history 2 and the first of them are 2 · 4 + 1.
        width = len(entries) + 1
        numbers, index = numbered(index * width + release_of, len(found) * width)
        found = [
            (*found[number // width], *entries[number % width - 1 : number % width]) for number in numbers.tolist()
        ]
    return index, [tuple(sorted(history)) for history in found]


def numbered(values: npt.NDArray[np.intp], below: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The different values, ascending, and for each value which of them it is."""
    if below > _MOST_COUNTED:
        return np.unique(values, return_inverse=True)
    different = np.flatnonzero(np.bincount(values, minlength=below))
    number_of = np.zeros(below, np.intp)
    number_of[different] = np.arange(len(different))
    return different, number_of[values]


def is_covered(rows: Iterable[Covered]) -> Mask:
    """The positions of a chunk that any of these rows covers."""
    covered = np.zeros(CHUNK, np.bool_)
    for row in rows:
        covered[row.places] = True
    return covered


class PositionSet:
    """A set of positions, as masks by chunk: a byte for each record of the chunks that have any."""

    def __init__(self) -> None:
        self._masks: dict[int, Mask] = {}

    @classmethod
    def up_to(cls, records: int) -> Self:
        """All positions of a vault of n records."""
        found = cls()
        for chunk in range(chunk_count(records)):
            found.put(chunk, np.arange(CHUNK) < records - chunk * CHUNK)
        return found

    def __len__(self) -> int:
        return sum(int(np.count_nonzero(mask)) for mask in self._masks.values())

    def masks(self) -> Iterator[tuple[int, Mask]]:
        """(chunk, which of its positions are in the set) for each chunk that has any, ascending."""
        yield from sorted(self._masks.items())

    def positions(self) -> Positions:
        """All positions, ascending."""
        by_chunk = (chunk * CHUNK + np.flatnonzero(mask) for chunk, mask in self.masks())
        return np.concatenate([np.zeros(0, np.int64), *by_chunk])

    def put(self, chunk: int, mask: Mask) -> None:
        """Have these positions of a chunk in the set, which has none of it yet."""
        if mask.any():
            self._masks[chunk] = mask

    def add(self, positions: Positions) -> None:
        """Put positions into the set."""
        for chunk, rows in by_chunk(positions):
            self._masks.setdefault(chunk, np.zeros(CHUNK, np.bool_))[positions[rows] % CHUNK] = True

    def has_again(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """For each of these positions, whether it is in the set, or has come before among them."""
        again = np.ones(len(positions), np.bool_)
        again[np.unique(positions, return_index=True)[1]] = False
        for chunk, rows in by_chunk(positions):
            if chunk in self._masks:
                again[rows] |= self._masks[chunk][positions[rows] % CHUNK]
        return again
