"""Where each id is: a hash table of positions that is kept in the database, and rebuilt when it gets too full.

The highest bits of an id's hash are the number of its bucket; a row of the database holds a bucket. An entry is the 28
bits of the hash that follow, and the position, in one sorted column of 64-bit words. Hashes only propose: what is found
was compared byte by byte with the id in the block. The vault's own random key decides which ids share a bucket, so
nobody who chooses ids can fill one with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tpsl.vault.blocks import POSITION_BITS, Positions, count_records, have_ids, id_at, ids_between, read_blocks
from tpsl.vault.errors import VaultError
from tpsl.vault.pairs import Pairs
from tpsl.vault.store import Store
from tpsl.vault.texts import Hashes, HashKey, Texts, mixed

SCHEMA = """
CREATE TABLE id_index (
    label INTEGER NOT NULL, bucket INTEGER NOT NULL, entries BLOB NOT NULL, UNIQUE (label, bucket)
);
"""
KEY_SCHEMA = """
CREATE TABLE id_key (key BLOB NOT NULL);
INSERT INTO id_key VALUES (randomblob(16));
"""

_WHEN_BUILT, _AT_MOST = 1024, 4096
"""Entries in a bucket on average: no more when the index is built, and when it is built again."""
_BUCKETS_AT_ONCE = 1 << 11
_IDS_AT_ONCE = 1 << 18
_POSITION_BITS_AT_LEAST = 24
"""Then a part of `Pairs` has no fewer positions than a block, which would be read again for the next part."""
_SHIFT = np.uint64(POSITION_BITS)
_LOW = np.uint64((1 << POSITION_BITS) - 1)
_HIGH = ~_LOW


def key_of(store: Store) -> HashKey:
    """The key of the hashes that the index is made of; as secret as the vault."""
    row = store.execute("SELECT key FROM id_key").fetchone()
    if row is None or not isinstance(row[0], bytes):
        raise _damaged()
    return HashKey(row[0])


class Ids(Protocol):
    """A column of ids: `Texts`, or what becomes texts when it is needed."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Texts:
        """Those from one row to before another."""

    def take(self, rows: npt.NDArray[Any]) -> Texts:
        """Those of these rows, in that order."""


Found = tuple[npt.NDArray[np.int64], Positions]
"""Rows of ids that were asked for, and the position of each in the vault."""


def find_known(store: Store, ids: Ids) -> Iterator[Found]:
    """Yield those of the ids that the vault knows, piece by piece: those in its order first, others by position.

    Each bucket and each block that is needed is read once, so time is linear, however many ids there are in whatever
    order. Memory is that of a piece: what does not fit goes to spill files in the folder of the vault.
    """
    return _Search(store, ids).pieces()


def find_positions(store: Store, ids: Ids) -> Positions:
    """The position of each id, or -1 where the vault does not know it."""
    return by_row(find_known(store, ids), len(ids))


def by_row(found: Iterator[Found], rows: int) -> Positions:
    """The position of each row, or -1 where it was not found."""
    positions = np.full(rows, -1, np.int64)
    for at, here in found:
        positions[at] = here
    return positions


class _Search:
    """A search for the positions of ids."""

    def __init__(self, store: Store, ids: Ids) -> None:
        self._store, self._ids = store, ids
        self._key, self._records = key_of(store), count_records(store)

    def pieces(self) -> Iterator[Found]:
        """Yield what is known; ids that are asked for in the order of the vault need no bucket."""
        with Pairs(self._store.folder) as asked:
            for start in range(0, len(self._ids), _IDS_AT_ONCE):
                ids = self._ids.part(start, min(start + _IDS_AT_ONCE, len(self._ids)))
                rows = np.arange(start, start + len(ids))
                first = self._first_of_run(ids)
                if first is None:
                    asked.take(ids.hashes(self._key), rows)
                else:
                    yield rows, np.arange(first, first + len(ids))
            yield from self._by_hash(asked)

    def _first_of_run(self, ids: Texts) -> int | None:
        """The position of the first of these ids, if the vault has all of them one after the other."""
        ends = _Search(self._store, ids.take(np.array([0, len(ids) - 1])))
        first, last = by_row(ends.few(), 2).tolist()
        if first < 0 or last - first != len(ids) - 1:
            return None
        return first if ids_between(self._store, first, last + 1).same_as(ids) else None

    def few(self) -> Iterator[Found]:
        """Yield what is known of a few ids, in whatever order."""
        with Pairs(self._store.folder) as asked:
            asked.take(self._ids.part(0, len(self._ids)).hashes(self._key), np.arange(len(self._ids)))
            yield from self._by_hash(asked)

    def _by_hash(self, asked: Pairs) -> Iterator[Found]:
        """Yield what is known of ids, (hash, row)."""
        with Pairs(self._store.folder, max(self._records.bit_length(), _POSITION_BITS_AT_LEAST)) as proposed:
            for pairs in asked.parts():
                self._propose(pairs[np.argsort(pairs[:, 0])], proposed)
            for pairs in proposed.parts():
                positions, rows = pairs.astype(np.int64).T
                same = have_ids(self._store, positions, self._ids.take(rows))
                yield rows[same], positions[same]

    def _propose(self, asked: Hashes, proposed: Pairs) -> None:
        """Find positions of ids, (hash, row) in the order of hashes, by the hash alone: (position, row)."""
        bits = _bits(self._store) or 0
        buckets, entries = _placed(asked[:, 0], np.zeros(len(asked), np.uint64), bits)
        starts = np.flatnonzero(np.diff(buckets, prepend=~buckets[:1]))
        for first in range(0, len(starts), _BUCKETS_AT_ONCE):
            some = starts[first : first + _BUCKETS_AT_ONCE]
            stop = int(starts[first + len(some)]) if first + len(some) < len(starts) else len(asked)
            here = slice(int(some[0]), stop)
            counts, stored = _read(self._store, buckets[some])
            numbers = np.arange(len(some), dtype=np.uint64) << _SHIFT
            keys = np.repeat(numbers, counts) | (stored >> _SHIFT)
            wanted = np.repeat(numbers, np.diff(some, append=stop)) | (entries[here] >> _SHIFT)
            left, right = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
            for more in range(int((right - left).max(initial=0))):
                at = np.flatnonzero(left + more < right)
                positions = stored[left[at] + more] & _LOW
                if positions.max() >= self._records:
                    raise _damaged()
                proposed.take(positions, asked[here][at, 1])


def enter(store: Store, new: Pairs) -> tuple[int, int] | None:
    """Enter records (hash, position), whose blocks are there; return the positions of two with the same id, if any.

    Those that are new are compared with each other; that none of them was there before is for the caller to know.
    """
    bits, records = _bits(store), count_records(store)
    if bits is not None and records <= _AT_MOST << bits:
        return _merge(store, new, bits)
    store.execute("DELETE FROM id_index WHERE label = ?", (store.label,))
    bits = max(0, ((records - 1) // _WHEN_BUILT).bit_length())
    if new.count == records:
        return _merge(store, new, bits)
    with Pairs(store.folder) as all_ids:
        key, first = key_of(store), 0
        for block in read_blocks(store):
            all_ids.take(block.ids.hashes(key), np.arange(first, first + len(block)))
            first += len(block)
        return _merge(store, all_ids, bits)


class IndexCheck:
    """The index, compared with the ids of all records: sums that differ if any entry does."""

    def __init__(self, store: Store) -> None:
        self._bits, self._key = _bits(store), HashKey.random()
        with suppress(VaultError):  # without the vault's key no index is that of the ids
            self._key = key_of(store)
        self._sum, self._records = 0, 0

    def take(self, ids: Texts) -> None:
        """Take in the ids of the next records."""
        if self._bits is not None:
            positions = np.arange(self._records, self._records + len(ids), dtype=np.uint64)
            self._sum += _sum(*_placed(ids.hashes(self._key), positions, self._bits))
        self._records += len(ids)

    def problems(self, store: Store) -> list[str]:
        """What is wrong with the index, once all ids were taken in; a sentence or none."""
        stored, found, ordered = 0, 0, True
        # There are never more buckets than records; a number that says otherwise would be a way without end.
        last = min(1 << (self._bits or 0), self._records)
        for first in range(0, last, _BUCKETS_AT_ONCE):
            buckets = np.arange(first, min(first + _BUCKETS_AT_ONCE, last))
            counts, entries = _read(store, buckets)
            owner = np.repeat(buckets, counts).astype(np.uint64)
            stored += _sum(owner, entries)
            ordered &= bool(((entries[1:] > entries[:-1]) | (owner[1:] > owner[:-1])).all())
            found += len(entries)
        if found == self._records and ordered and (stored - self._sum) % (1 << 64) == 0:
            return []
        return ["the index of the record ids is not that of the ids, so some may not be found, or occur twice"]


def _damaged() -> VaultError:
    return VaultError("the index of the record ids is damaged; run verify on the vault")


def _bits(store: Store) -> int | None:
    """How many bits of a hash are the number of its bucket; None: there are no buckets yet."""
    (last,) = store.execute("SELECT MAX(bucket) FROM id_index WHERE label = ?", (store.label,)).fetchone()
    return None if last is None else int(last).bit_length()


def _placed(hashes: Hashes, positions: Hashes, bits: int) -> tuple[Hashes, Hashes]:
    """The bucket and the entry of each record."""
    buckets = hashes >> np.uint64(64 - bits) if bits else np.zeros_like(hashes)
    return buckets, ((hashes << np.uint64(bits)) & _HIGH) | positions


def _sum(buckets: Hashes, entries: Hashes) -> int:
    return int(mixed(entries ^ mixed(buckets)).sum(dtype=np.uint64))


def _read(store: Store, buckets: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], Hashes]:
    """The number of entries of each of these buckets, which ascend, and all their entries."""
    rows = store.execute(
        "SELECT wanted.key, entries FROM json_each(?) AS wanted JOIN id_index ON label = ? AND bucket = wanted.value",
        (json.dumps(buckets.tolist()), store.label),
    ).fetchall()
    counts = np.zeros(len(buckets), np.int64)
    counts[[at for at, _ in rows]] = [len(entries) // 8 for _, entries in rows]
    rows.sort()
    return counts, np.frombuffer(b"".join(entries[: len(entries) // 8 * 8] for _, entries in rows), "<u8")


def _merge(store: Store, new: Pairs, bits: int) -> tuple[int, int] | None:
    """Put entries into their buckets; return the positions of two equal ids, if any."""
    first_new = np.uint64(count_records(store) - new.count)
    for rows in new.parts():
        buckets, entries = _placed(rows[:, 0], rows[:, 1], bits)
        touched = np.unique(buckets)
        for first in range(0, len(touched), _BUCKETS_AT_ONCE):
            some = touched[first : first + _BUCKETS_AT_ONCE]
            mine = (buckets >= some[0]) & (buckets <= some[-1])
            twice = _write(store, some, buckets[mine], entries[mine], first_new)
            if twice is not None:
                return twice
    store.execute(
        "INSERT OR IGNORE INTO id_index VALUES (?, ?, x'')", (store.label, (1 << bits) - 1)
    )  # tells their number
    return None


def _write(
    store: Store, touched: Hashes, buckets: Hashes, entries: Hashes, first_new: np.uint64
) -> tuple[int, int] | None:
    """Write the buckets that are touched, with what they had; return the positions of two equal new ids, if any."""
    counts, stored = _read(store, touched)
    numbers = np.arange(len(touched), dtype=np.uint16)
    number_of = np.zeros(int(touched[-1] - touched[0]) + 1, np.uint16)
    number_of[touched - touched[0]] = numbers
    rank = np.concatenate([np.repeat(numbers, counts), number_of[buckets - touched[0]]])
    order = np.argsort(rank, kind="stable")
    merged, rank = np.concatenate([stored, entries])[order], rank[order]
    ends = np.cumsum(np.bincount(rank, minlength=len(touched))).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        merged[start:end].sort()
    store.executemany(
        "INSERT OR REPLACE INTO id_index VALUES (?, ?, ?)",
        (
            (store.label, bucket, merged[start:end].tobytes())
            for bucket, start, end in zip(touched.tolist(), [0, *ends], ends, strict=False)
        ),
    )
    alike = (
        (merged[1:] >> _SHIFT == merged[:-1] >> _SHIFT) & (rank[1:] == rank[:-1]) & (merged[:-1] & _LOW >= first_new)
    )
    return _same_ids(store, merged, np.flatnonzero(alike))


def _same_ids(store: Store, merged: Hashes, alike: npt.NDArray[np.intp]) -> tuple[int, int] | None:
    """Of entries that share the bits of their hashes with the next one, two that have the same id."""
    seen: dict[str, int] = {}
    for at in np.union1d(alike, alike + 1).tolist():
        position = int(merged[at] & _LOW)
        id = id_at(store, position)
        if id in seen:
            return min(seen[id], position), max(seen[id], position)
        seen[id] = position
    return None
