"""Where each id is: a hash table of positions that is kept in the database, and rebuilt when it gets too full.

The highest bits of an id's hash are the number of its bucket; a row of the database holds a bucket. An entry is the 32
bits of the hash that follow, and the position, in one sorted column of 64-bit words. Hashes only propose: what is found
was compared byte by byte with the id in the block.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

import numpy as np
import numpy.typing as npt

from tpsl.vault.blocks import Positions, count_records, have_ids, id_at, ids_between, read_blocks
from tpsl.vault.errors import VaultError
from tpsl.vault.nameless import nameless_files, read_back
from tpsl.vault.texts import Hashes, Texts, mixed

SCHEMA = "CREATE TABLE id_index (bucket INTEGER PRIMARY KEY, entries BLOB NOT NULL);"

_WHEN_BUILT, _AT_MOST = 1024, 4096
"""Entries in a bucket on average: no more when the index is built, and when it is built again."""
_BUCKETS_AT_ONCE = 1 << 13
_IN_MEMORY = 1 << 21
_PARTS = 64
_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF00000000)
_HALF = np.uint64(32)


class NewIds:
    """The hashes and positions of records that are added; in files beside the vault, by hash, where there are many."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, ExitStack()
        self._pending: list[npt.NDArray[np.uint64]] = []
        self._parts: list[IO[bytes]] = []
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def take(self, hashes: Hashes, first: int) -> None:
        """Take in records from a position on."""
        self._pending.append(np.stack([hashes, np.arange(first, first + len(hashes), dtype=np.uint64)], axis=1))
        self.count += len(hashes)
        if sum(map(len, self._pending)) > _IN_MEMORY:
            self._flush()

    def parts(self) -> Iterator[npt.NDArray[np.uint64]]:
        """All of them, (hash, position) by row; each part has hashes of a range, and the ranges follow each other."""
        if not self._parts:
            yield np.concatenate([np.empty((0, 2), np.uint64), *self._pending])
            return
        self._flush()
        for file in self._parts:
            yield np.frombuffer(read_back(file), np.uint64).reshape(-1, 2)

    def _flush(self) -> None:
        if not self._parts:
            self._parts = self._files.enter_context(nameless_files(self._folder, _PARTS))
        if not self._pending:
            return
        rows = np.concatenate(self._pending)
        self._pending = []
        part = (rows[:, 0] >> np.uint64(64 - _PARTS.bit_length() + 1)).astype(np.uint8)
        rows = rows[np.argsort(part, kind="stable")]
        ends = np.cumsum(np.bincount(part, minlength=_PARTS)).tolist()
        for file, start, end in zip(self._parts, [0, *ends], ends, strict=False):
            file.write(rows[start:end].tobytes())


def find_positions(connection: sqlite3.Connection, ids: Texts) -> Positions:
    """The position of each id, or -1 where the vault does not know it."""
    if not len(ids) or not count_records(connection):
        return np.full(len(ids), -1, np.int64)
    first, last = _look_up(connection, ids.take(np.array([0, len(ids) - 1]))).tolist()
    if first >= 0 and last - first == len(ids) - 1 and ids_between(connection, first, last + 1).same_as(ids):
        return np.arange(first, last + 1, dtype=np.int64)  # asked for in the order of the input
    return _look_up(connection, ids)


def enter(connection: sqlite3.Connection, new: NewIds, folder: Path) -> tuple[int, int] | None:
    """Enter records, whose blocks are there, into the index; return the positions of two with the same id, if any.

    Those that are new are compared with each other; that none of them was there before is for the caller to know.
    """
    records = count_records(connection)
    bits = _bits(connection)
    if bits is not None and records <= _AT_MOST << bits:
        return _merge(connection, new, bits)
    connection.execute("DELETE FROM id_index")
    bits = max(0, ((records - 1) // _WHEN_BUILT).bit_length())
    if new.count == records:
        return _merge(connection, new, bits)
    with NewIds(folder) as all_ids:
        first = 0
        for block in read_blocks(connection):
            all_ids.take(block.ids.hashes(), first)
            first += len(block)
        return _merge(connection, all_ids, bits)


class IndexCheck:
    """The index, compared with the ids of all records: sums that differ if any entry does."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._bits = _bits(connection)
        self._sum, self._records = 0, 0

    def take(self, ids: Texts) -> None:
        """Take in the ids of the next records."""
        if self._bits is not None:
            positions = np.arange(self._records, self._records + len(ids), dtype=np.uint64)
            self._sum += _sum(*_placed(ids.hashes(), positions, self._bits))
        self._records += len(ids)

    def problems(self, connection: sqlite3.Connection) -> list[str]:
        """What is wrong with the index, once all ids were taken in; a sentence or none."""
        stored, found, ordered = 0, 0, True
        # There are never more buckets than records; a number that says otherwise would be a way without end.
        last = min(1 << (self._bits or 0), self._records)
        for first in range(0, last, _BUCKETS_AT_ONCE):
            buckets = np.arange(first, min(first + _BUCKETS_AT_ONCE, last))
            counts, entries = _read(connection, buckets)
            owner = np.repeat(buckets, counts).astype(np.uint64)
            stored += _sum(owner, entries)
            ordered &= bool(((entries[1:] > entries[:-1]) | (owner[1:] > owner[:-1])).all())
            found += len(entries)
        if found == self._records and ordered and (stored - self._sum) % (1 << 64) == 0:
            return []
        return ["the index of the record ids is not that of the ids, so some may not be found, or occur twice"]


def _bits(connection: sqlite3.Connection) -> int | None:
    """How many bits of a hash are the number of its bucket; None: there are no buckets yet."""
    (last,) = connection.execute("SELECT MAX(bucket) FROM id_index").fetchone()
    return None if last is None else int(last).bit_length()


def _placed(hashes: Hashes, positions: Hashes, bits: int) -> tuple[Hashes, Hashes]:
    """The bucket and the entry of each record."""
    buckets = hashes >> np.uint64(64 - bits) if bits else np.zeros_like(hashes)
    return buckets, ((hashes << np.uint64(bits)) & _HIGH) | positions


def _sum(buckets: Hashes, entries: Hashes) -> int:
    return int(mixed(entries ^ mixed(buckets)).sum(dtype=np.uint64))


def _read(connection: sqlite3.Connection, buckets: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], Hashes]:
    """The number of entries of each of these buckets, which ascend, and all their entries."""
    rows = connection.execute(
        "SELECT wanted.key, entries FROM json_each(?) AS wanted JOIN id_index ON bucket = wanted.value",
        (json.dumps(buckets.tolist()),),
    ).fetchall()
    counts = np.zeros(len(buckets), np.int64)
    counts[[at for at, _ in rows]] = [len(entries) // 8 for _, entries in rows]
    rows.sort()
    return counts, np.frombuffer(b"".join(entries[: len(entries) // 8 * 8] for _, entries in rows), "<u8")


def _look_up(connection: sqlite3.Connection, ids: Texts) -> Positions:
    """The position of each id by its hash."""
    hashes = ids.hashes()
    order = np.argsort(hashes)
    buckets, entries = _placed(hashes[order], np.zeros(len(ids), np.uint64), _bits(connection) or 0)
    starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(buckets[1:] != buckets[:-1]) + 1])
    proposed: list[Positions] = []  # one for each id, but where entries share the bits of their hashes
    for first in range(0, len(starts), _BUCKETS_AT_ONCE):
        some = starts[first : first + _BUCKETS_AT_ONCE]
        asked = slice(int(some[0]), int(starts[first + len(some)]) if first + len(some) < len(starts) else len(ids))
        counts, stored = _read(connection, buckets[some])
        numbers = np.arange(len(some), dtype=np.uint64) << _HALF
        keys = np.repeat(numbers, counts) | (stored >> _HALF)
        wanted = np.repeat(numbers, np.diff(some, append=asked.stop)) | (entries[asked] >> _HALF)
        left, right = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
        for more in range(int((right - left).max(initial=0))):
            here = np.flatnonzero(left + more < right)
            if more == len(proposed):
                proposed.append(np.full(len(ids), -1, np.int64))
            proposed[more][order[asked][here]] = stored[left[here] + more] & _LOW
    found = np.full(len(ids), -1, np.int64)
    for positions in proposed:
        if positions.max() >= count_records(connection):
            raise VaultError("the index of the record ids is damaged; run verify on the vault")
        due = (positions >= 0) & (found < 0)
        due[due] = have_ids(connection, positions[due], ids.take(due))
        found[due] = positions[due]
    return found


def _merge(connection: sqlite3.Connection, new: NewIds, bits: int) -> tuple[int, int] | None:
    """Put entries into their buckets; return the positions of two equal ids, if any."""
    for rows in new.parts():
        buckets, entries = _placed(rows[:, 0], rows[:, 1], bits)
        touched = np.unique(buckets)
        for first in range(0, len(touched), _BUCKETS_AT_ONCE):
            some = touched[first : first + _BUCKETS_AT_ONCE]
            mine = (buckets >= some[0]) & (buckets <= some[-1])
            twice = _write(connection, some, buckets[mine], entries[mine])
            if twice is not None:
                return twice
    connection.execute("INSERT OR IGNORE INTO id_index VALUES (?, x'')", ((1 << bits) - 1,))  # tells their number
    return None


def _write(connection: sqlite3.Connection, touched: Hashes, buckets: Hashes, entries: Hashes) -> tuple[int, int] | None:
    """Write the buckets that are touched, with what they had; return the positions of two equal ids, if any."""
    counts, stored = _read(connection, touched)
    numbers = np.arange(len(touched), dtype=np.uint16)
    number_of = np.zeros(int(touched[-1] - touched[0]) + 1, np.uint16)
    number_of[touched - touched[0]] = numbers
    rank = np.concatenate([np.repeat(numbers, counts), number_of[buckets - touched[0]]])
    order = np.argsort(rank, kind="stable")
    merged, rank = np.concatenate([stored, entries])[order], rank[order]
    ends = np.cumsum(np.bincount(rank, minlength=len(touched))).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        merged[start:end].sort()
    connection.executemany(
        "INSERT OR REPLACE INTO id_index VALUES (?, ?)",
        (
            (bucket, merged[start:end].tobytes())
            for bucket, start, end in zip(touched.tolist(), [0, *ends], ends, strict=False)
        ),
    )
    alike = np.flatnonzero((merged[1:] >> _HALF == merged[:-1] >> _HALF) & (rank[1:] == rank[:-1]))
    return _same_ids(connection, merged, alike)


def _same_ids(connection: sqlite3.Connection, merged: Hashes, alike: npt.NDArray[np.intp]) -> tuple[int, int] | None:
    """Of entries that share the bits of their hashes with the next one, two that have the same id."""
    seen: dict[str, int] = {}
    for at in np.union1d(alike, alike + 1).tolist():
        position = int(merged[at] & _LOW)
        id = id_at(connection, position)
        if id in seen:
            return min(seen[id], position), max(seen[id], position)
        seen[id] = position
    return None
