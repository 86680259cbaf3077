"""Which records releases cover, and the outcomes they gave them, chunk by chunk.

A row holds all releases of one series in a chunk of 65,536 positions: the ledger entries of these releases, for each
position which of them covers it, and the outcomes of the covered positions in order, draw after draw. A statistic is a
series without outcomes. A release adds to the row of its series, so its cost does not depend on how many came before,
and what was released stays as it is: the ledger has the digest of the outcomes of each entry.
"""

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
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

# Rows only ever grow; the triggers stop a careless statement from doing anything else.
SCHEMA = """
CREATE TABLE outcomes (
    label INTEGER NOT NULL, chunk INTEGER NOT NULL, series INTEGER NOT NULL, records INTEGER NOT NULL,
    entries BLOB NOT NULL, covered BLOB NOT NULL, outcomes BLOB NOT NULL, UNIQUE (label, chunk, series)
);
CREATE TRIGGER outcomes_stay BEFORE DELETE ON outcomes BEGIN SELECT RAISE(ABORT, 'releases are never deleted'); END;
CREATE TRIGGER outcomes_fixed BEFORE UPDATE ON outcomes
    WHEN (NEW.label, NEW.chunk, NEW.series) <> (OLD.label, OLD.chunk, OLD.series) OR NEW.records <= OLD.records
        OR substr(NEW.entries, 1, length(OLD.entries)) <> OLD.entries
    BEGIN SELECT RAISE(ABORT, 'releases never change'); END;
"""

_MOST_COUNTED = 1 << 22


@dataclass(frozen=True)
class Covered:
    """The releases of one series in a chunk."""

    series: int
    """The first ledger entry of the series in this chunk."""
    records: int
    """How many positions they cover."""
    entries: npt.NDArray[np.uint32]
    """The ledger entries of the releases, oldest first."""
    packed: bytes
    outcomes: bytes = b""

    @cached_property
    def release_of(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """For each position of the chunk the number of its release in `entries`, from 1; 0: none covers it.

        For example, with the entries 3 and 7, [1, 1, 0, 2, 0, …] says that entry 3 covers the positions 0 and 1, and
        entry 7 position 3.
        """
        try:
            found = np.frombuffer(zlib.decompress(self.packed), _type_for(len(self.entries)))
        except (zlib.error, ValueError, TypeError) as error:
            raise VaultError("what a release covers is damaged; run verify on the vault") from error
        if len(found) != CHUNK or int(found.max()) > len(self.entries) or np.count_nonzero(found) != self.records:
            raise VaultError("what a release covers has the wrong length; run verify on the vault")
        return found

    def columns(self, places: Places) -> Places:
        """Where the outcomes of these places stand among those of the row; -1: nowhere."""
        return places if self.records == CHUNK else self._column_of[places]

    @cached_property
    def _column_of(self) -> Places:
        """For each position of the chunk: where [1, 1, 0, 2, …] covers the positions, it is [0, 1, -1, 2, …]."""
        is_covered = self.release_of > 0
        return np.where(is_covered, np.cumsum(is_covered) - 1, -1)

    def releases(self) -> Iterator[tuple[int, Places]]:
        """(ledger entry, its places in this chunk, ascending) for each release."""
        order = np.argsort(self.release_of, kind="stable")  # those without a release first
        ends = np.cumsum(np.bincount(self.release_of, minlength=len(self.entries) + 1))
        for entry, start, end in zip(self.entries.tolist(), ends[:-1], ends[1:], strict=True):
            yield entry, order[start:end]

    def decoded(self, mechanism: Mechanism, draws: int) -> npt.NDArray[Any]:
        """The outcomes as an array [draws, records, *outcome_shape]."""
        return self._decoded(mechanism.outcome_dtype, (draws, self.records, *mechanism.outcome_shape))

    def _decoded(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if len(self.outcomes) != int(np.prod(shape)) * dtype.itemsize:
            raise VaultError("the outcomes of a release have the wrong length; run verify on the vault")
        return np.frombuffer(self.outcomes, dtype.newbyteorder("<")).reshape(shape)

    def joined(self, mask: Mask, outcomes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The outcomes of the row and those [draws, positions, …] of positions that it does not cover yet, in order."""
        is_new = mask[mask | (self.release_of > 0)]  # for each position that is covered then
        joined = np.empty((len(outcomes), len(is_new), *outcomes.shape[2:]), outcomes.dtype)
        joined[:, is_new] = outcomes
        joined[:, ~is_new] = self._decoded(outcomes.dtype, (len(outcomes), self.records, *outcomes.shape[2:]))
        return joined


def _type_for(entries: int) -> np.dtype[Any]:
    """The type of the numbers 0 .. entries."""
    return np.min_scalar_type(entries).newbyteorder("<")


def encode_outcomes(outcomes: npt.NDArray[Any]) -> bytes:
    """Outcomes [draws, records, …] as they are stored, and as the digest of a ledger entry runs over them."""
    return outcomes.astype(outcomes.dtype.newbyteorder("<"), copy=False).tobytes()


_COLUMNS = "SELECT series, records, entries, covered, outcomes FROM outcomes WHERE label = ? AND chunk = ?"


def read_chunk(store: Store, chunk: int, *, outcomes: bool = False) -> list[Covered]:
    """What is released in a chunk, a row for each series, oldest first; with the outcomes if they are asked for."""
    columns = _COLUMNS if outcomes else _COLUMNS.replace(", outcomes", ", x''", 1)
    return [_row(*row) for row in store.execute(columns + " ORDER BY series", (store.label, chunk))]


def read_row(store: Store, chunk: int, series: int | None) -> Covered | None:
    """The row of a series in a chunk, with its outcomes; None: there is none."""
    row = store.execute(_COLUMNS + " AND series = ?", (store.label, chunk, series)).fetchone()
    return None if row is None else _row(*row)


def series_in(store: Store, chunks: Iterable[int]) -> list[tuple[int, int]]:
    """(chunk, number of a series there) for each row of these chunks."""
    return store.execute(
        "SELECT chunk, series FROM json_each(?) AS wanted CROSS JOIN outcomes ON label = ? AND chunk = wanted.value",
        (json.dumps(list(chunks)), store.label),
    ).fetchall()


def _row(series: int, records: int, entries: bytes, packed: bytes, outcomes: bytes) -> Covered:
    try:
        return Covered(series, records, np.frombuffer(entries, "<u4"), packed, outcomes)
    except (ValueError, TypeError) as error:
        raise VaultError("what a release covers is damaged; run verify on the vault") from error


def add_release(
    store: Store, chunk: int, row: Covered | None, entry: int, mask: Mask, outcomes: npt.NDArray[Any] | None = None
) -> None:
    """Store that a release covers these positions of a chunk, with these outcomes [draws, positions, …].

    `row` is that of its series in the chunk, with its outcomes; None: there is none yet.
    """
    before = np.zeros(CHUNK, np.uint8) if row is None else row.release_of
    if (before[mask] > 0).any():
        raise VaultError("a record is released already in this series; run verify on the vault")
    entries = np.array([*([] if row is None else row.entries.tolist()), entry], "<u4")
    after = before.astype(_type_for(len(entries)))
    after[mask] = len(entries)
    if outcomes is not None and row is not None:
        outcomes = row.joined(mask, outcomes)
    store.execute(
        "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (label, chunk, series) DO UPDATE SET"
        " records = excluded.records, entries = excluded.entries, covered = excluded.covered,"
        " outcomes = excluded.outcomes",
        (
            store.label,
            chunk,
            entry if row is None else row.series,
            int(np.count_nonzero(after)),
            entries.tobytes(),
            zlib.compress(after.tobytes(), 1),
            b"" if outcomes is None else encode_outcomes(outcomes),
        ),
    )


def chunk_histories(store: Store, chunk: int) -> tuple[npt.NDArray[np.intp], list[History]]:
    """For each position of a chunk, the index of its history in the list that is returned too.

    Records share few histories (mostly one), so exact sums can be made for each history instead of for each record.
    """
    index, found = np.zeros(CHUNK, np.intp), list[History]([()])
    for row in read_chunk(store, chunk):
        # A history and a release make one number: with 3 entries, history 2 and the first of them are 2 · 4 + 1.
        entries, width = row.entries.tolist(), len(row.entries) + 1
        numbers, index = numbered(index * width + row.release_of, len(found) * width)
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
        covered |= row.release_of > 0
    return covered


class PositionSet:
    """A set of positions, as packed masks by chunk: at most a bit for each record of the chunks that have any."""

    def __init__(self) -> None:
        self._packed: dict[int, bytes] = {}

    @classmethod
    def up_to(cls, records: int) -> Self:
        """All positions of a vault of n records."""
        found = cls()
        for chunk in range(chunk_count(records)):
            found.put(chunk, np.arange(CHUNK) < records - chunk * CHUNK)
        return found

    def __len__(self) -> int:
        return sum(int(mask.sum()) for _, mask in self.masks())

    def chunks(self) -> list[int]:
        """The chunks that have any of the positions, ascending."""
        return sorted(self._packed)

    def masks(self) -> Iterator[tuple[int, Mask]]:
        """(chunk, its positions that are in the set) for each chunk that has any, ascending."""
        return ((chunk, self.mask(chunk)) for chunk in self.chunks())

    def mask(self, chunk: int) -> Mask:
        """The positions of a chunk that are in the set."""
        if chunk not in self._packed:
            return np.zeros(CHUNK, np.bool_)
        return np.unpackbits(np.frombuffer(zlib.decompress(self._packed[chunk]), np.uint8)).view(np.bool_)

    def positions(self) -> Positions:
        """All positions, ascending."""
        by_chunk = (chunk * CHUNK + np.flatnonzero(mask) for chunk, mask in self.masks())
        return np.concatenate([np.zeros(0, np.int64), *by_chunk])

    def put(self, chunk: int, mask: Mask) -> None:
        """Have these positions of a chunk in the set, and no others of it."""
        self._packed.pop(chunk, None)
        if mask.any():
            self._packed[chunk] = zlib.compress(np.packbits(mask).tobytes(), 1)

    def add(self, positions: Positions) -> None:
        """Put positions into the set."""
        for chunk, rows in by_chunk(positions):
            mask = self.mask(chunk)
            mask[positions[rows] % CHUNK] = True
            self.put(chunk, mask)

    def has_again(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """For each of these positions, whether it is in the set, or has come before among them."""
        again = np.zeros(len(positions), np.bool_)
        for chunk, rows in by_chunk(positions):
            places = positions[rows] % CHUNK
            again[rows] = self.mask(chunk)[places]
            again[np.delete(rows, np.unique(places, return_index=True)[1])] = True
        return again
