"""Where each id is: a hash table of positions that is kept in the database, and rebuilt when it gets too full.

An id is known by 128 bits: two independent hashes of 64 bits under the vault's own random key. The highest bits are the
number of its bucket, a row of the database; an entry of 16 bytes holds the 92 bits that follow, and the position.

Equal bits are taken for equal ids, and no id is compared. Two different ids, whoever chose them without the key, agree
in k bits with probability 2^-k (`HashKey`). A bucket has at most 1,024 entries on average, so with n records an entry
and its bucket have at least 82 + log2(n) bits. Of 10^9 records and 10^9 ids that are asked for, any two of the 2^60.4
pairs that could be confused are with probability below 2^-51.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tpsl.spill import RowParts, by_high_bits
from tpsl.vault.blocks import POSITION_BITS, Positions, count_records, ids_between, read_blocks
from tpsl.vault.errors import VaultError
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

_WHEN_BUILT, _AT_MOST = 256, 1024
"""Entries in a bucket on average: no more when the index is built, and when it is built again."""
_BUCKETS_AT_ONCE = 1 << 12
_IDS_AT_ONCE = 1 << 18
_PARTS = 256
_POSITION_BITS_AT_LEAST = 24
"""Then none of the parts, by position, has fewer positions than a block, which would be read again for the next one."""
_LOW = np.uint64((1 << POSITION_BITS) - 1)
_HIGH = ~_LOW

Keys = tuple[HashKey, HashKey]


def keys_of(store: Store) -> Keys:
    """The keys of the two hashes of an id, for all labels of the vault; as secret as the vault."""
    row = store.execute("SELECT key FROM id_key").fetchone()
    if row is None or not isinstance(row[0], bytes):
        raise _damaged()
    return HashKey(row[0]), HashKey(row[0] + b"second")


class Ids(Protocol):
    """A column of ids: `Texts`, or what becomes texts when it is needed."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Texts:
        """Those from one row to before another."""


Found = tuple[npt.NDArray[np.int64], Positions]
"""Rows of ids that were asked for, and the position of each in the vault."""


def find_known(store: Store, ids: Ids) -> Iterator[Found]:
    """Yield those of the ids that the vault knows, piece by piece: those in its order first, others by position.

    Of the index only the buckets of these ids are read, each once, and none for ids in the order of the vault. So time
    is linear, however many ids there are in whatever order. Memory is that of a piece: what does not fit goes to a
    spill file in the folder of the vault.
    """
    keys, records = keys_of(store), count_records(store)
    with RowParts(store.folder, _PARTS) as asked, RowParts(store.folder, _PARTS) as by_position:
        for start in range(0, len(ids), _IDS_AT_ONCE):
            some = ids.part(start, min(start + _IDS_AT_ONCE, len(ids)))
            first = _first_of_run(store, keys, some)
            if first is None:
                write_hashes(asked, keys, some, _range(start, len(some)))
            else:
                yield np.arange(start, start + len(some)), np.arange(first, first + len(some))
        for first_hashes, second_hashes, rows in asked.parts():
            at, positions = look_up(store, first_hashes, second_hashes)
            part_of = by_high_bits(positions.astype(np.uint64), max(records.bit_length(), _POSITION_BITS_AT_LEAST))
            by_position.write(part_of, rows[at].astype(np.int64), positions)
        for rows, positions in by_position.parts():  # so that each block of records is read once
            yield rows, positions


def find_positions(store: Store, ids: Ids) -> Positions:
    """The position of each id, or -1 where the vault does not know it."""
    return by_row(find_known(store, ids), len(ids))


def by_row(found: Iterator[Found], rows: int) -> Positions:
    """The position of each row, or -1 where it was not found."""
    positions = np.full(rows, -1, np.int64)
    for at, here in found:
        positions[at] = here
    return positions


def write_hashes(parts: RowParts, keys: Keys, ids: Texts, numbers: Hashes) -> None:
    """Add rows (first hash, second hash, number of the id) to parts by the first hash."""
    one, two = (ids.hashes(key) for key in keys)
    parts.write(by_high_bits(one), one, two, numbers)


def _range(first: int, count: int) -> Hashes:
    return np.arange(first, first + count, dtype=np.uint64)


def new_parts(store: Store) -> RowParts:
    """Room for rows of `write_hashes`."""
    return RowParts(store.folder, _PARTS)


def _first_of_run(store: Store, keys: Keys, ids: Texts) -> int | None:
    """The position of the first of these ids, if the vault has all of them one after the other."""
    at, positions = look_up(store, *(ids.take(np.array([0, len(ids) - 1])).hashes(key) for key in keys))
    first, last = positions[np.argsort(at)].tolist() if len(at) == 2 else (0, -1)
    if last - first != len(ids) - 1:
        return None
    return first if ids_between(store, first, last + 1).same_as(ids) else None


def look_up(store: Store, one: Hashes, two: Hashes) -> Found:
    """Which of these ids, (first hash, second hash), the vault knows, and their positions."""
    order = np.argsort(one)
    one, two = one[order], two[order]
    records, bits = count_records(store), _bits(store) or 0
    buckets, high, low = _placed(one, two, bits)
    found, positions = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for some, here in _bucket_groups(buckets):
        counts, entries = _read(store, buckets[some])
        hashes = _first_hashes(np.repeat(buckets[some], counts), entries, bits)
        at, left = np.searchsorted(hashes, one[here]), np.arange(here.start, here.stop)
        while len(left):  # once, and again for different ids that share the first hash
            here_too = at < len(hashes)
            at, left = at[here_too], left[here_too]
            here_too = hashes[at] == one[left]
            at, left = at[here_too], left[here_too]
            same = (entries[at, 0] == high[left]) & (entries[at, 1] & _HIGH == low[left])
            found.append(order[left[same]])
            positions.append(entries[at[same], 1] & _LOW)
            at, left = at[~same] + 1, left[~same]
    all_positions = np.concatenate(positions)
    if all_positions.max(initial=0) >= max(records, 1):
        raise _damaged()
    return np.concatenate(found), all_positions.astype(np.int64)


def enter(store: Store, new: RowParts) -> tuple[int, int] | None:
    """Enter records, rows of `write_hashes`, whose blocks are there; return the positions of two equal ids, if any.

    Those that are new are compared with each other; that none of them was there before is for the caller to know.
    """
    bits, records = _bits(store), count_records(store)
    if bits is not None and records <= _AT_MOST << bits:
        return _merge(store, new, bits)
    store.execute("DELETE FROM id_index WHERE label = ?", (store.label,))
    bits = max(0, ((records - 1) // _WHEN_BUILT).bit_length())
    if new.count == records:
        return _merge(store, new, bits)
    with new_parts(store) as all_ids:
        keys, first = keys_of(store), 0
        for block in read_blocks(store):
            write_hashes(all_ids, keys, block.ids, _range(first, len(block)))
            first += len(block)
        return _merge(store, all_ids, bits)


def _merge(store: Store, new: RowParts, bits: int) -> tuple[int, int] | None:
    """Put records into their buckets; return the positions of two equal ids, if any."""
    for part in new.parts():
        order = np.argsort(part[0])
        one, two, positions = (column[order] for column in part)
        twice = _two_equal(one, two, positions)
        if twice is not None:
            return twice
        buckets, high, low = _placed(one, two, bits)
        entries = np.stack([high, low | positions], axis=1)
        for some, here in _bucket_groups(buckets):
            _write(store, buckets[some], np.diff(some, append=here.stop), entries[here])
    last = (store.label, (1 << bits) - 1)  # tells the number of the buckets
    store.execute("INSERT OR IGNORE INTO id_index VALUES (?, ?, x'')", last)
    return None


def _two_equal(one: Hashes, two: Hashes, positions: Hashes) -> tuple[int, int] | None:
    """The positions of two equal ids, if any, of ids in the order of their first hash."""
    alike = np.flatnonzero(one[1:] == one[:-1])
    seen: dict[tuple[int, int], int] = {}
    for at in np.union1d(alike, alike + 1).tolist():
        id, position = (int(one[at]), int(two[at])), int(positions[at])
        if id in seen:
            return min(seen[id], position), max(seen[id], position)
        seen[id] = position
    return None


def _write(store: Store, buckets: Hashes, counts: npt.NDArray[np.intp], entries: Hashes) -> None:
    """Add to each of these buckets its number of entries, which come bucket after bucket and ascend within."""
    stored_counts, stored = _read(store, buckets)
    if len(stored):
        # For example, buckets with 1 and 2 stored entries that get 1 each: the five entries belong to the buckets
        # 0, 1, 1 and 0, 1, and are put into the order 0, 0, 1, 1, 1.
        numbers = np.arange(len(buckets))
        owner = np.concatenate([np.repeat(numbers, stored_counts), np.repeat(numbers, counts)])
        entries, counts = np.concatenate([stored, entries]), stored_counts + counts
        entries = entries[np.lexsort((entries[:, 0], owner))]
    content, ends = memoryview(entries.tobytes()), (16 * np.cumsum(counts)).tolist()
    store.executemany(
        "INSERT OR REPLACE INTO id_index VALUES (?, ?, ?)",
        (
            (store.label, bucket, content[start:end])
            for bucket, start, end in zip(buckets.tolist(), [0, *ends], ends, strict=False)
        ),
    )


class IndexCheck:
    """The index, compared with the ids of all records: sums that differ if any entry does."""

    def __init__(self, store: Store) -> None:
        self._bits, self._keys = _bits(store), (HashKey.random(), HashKey.random())
        with suppress(VaultError):  # without the vault's keys no index is that of the ids
            self._keys = keys_of(store)
        self._sum, self._records = 0, 0

    def take(self, ids: Texts) -> None:
        """Take in the ids of the next records."""
        if self._bits is not None:
            positions = _range(self._records, len(ids))
            one, two = (ids.hashes(key) for key in self._keys)
            buckets, high, low = _placed(one, two, self._bits)
            self._sum += _sum(buckets, high, low | positions)
        self._records += len(ids)

    def problems(self, store: Store) -> list[str]:
        """What is wrong with the index, once all ids were taken in; a sentence or none."""
        stored, found, ordered = 0, 0, True
        # There are never more buckets than records; a number that says otherwise would be a way without end.
        last = min(1 << (self._bits or 0), self._records)
        for first in range(0, last, _BUCKETS_AT_ONCE):
            buckets = np.arange(first, min(first + _BUCKETS_AT_ONCE, last), dtype=np.uint64)
            counts, entries = _read(store, buckets)
            owner = np.repeat(buckets, counts)
            stored += _sum(owner, entries[:, 0], entries[:, 1])
            hashes = _first_hashes(owner, entries, self._bits or 0)
            ordered &= bool((hashes[1:] >= hashes[:-1]).all())
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


def _placed(one: Hashes, two: Hashes, bits: int) -> tuple[Hashes, Hashes, Hashes]:
    """The bucket of each id, and the bits that follow in two words, of which the second has room for a position.

    With words of 4 bits, of which a position takes 1, and 2 bits for the bucket: the hashes 1011 and 0110 are the
    number 10110110, whose bucket is 10, and whose next bits are 1101 and 100.
    """
    if not bits:
        return np.zeros_like(one), one, two & _HIGH
    left, right = np.uint64(bits), np.uint64(64 - bits)
    return one >> right, (one << left) | (two >> right), (two << left) & _HIGH


def _sum(buckets: Hashes, high: Hashes, low: Hashes) -> int:
    return int(mixed(low ^ mixed(high ^ mixed(buckets))).sum(dtype=np.uint64))


def _first_hashes(buckets: Hashes, entries: Hashes, bits: int) -> Hashes:
    """The first hash of each entry again: in the example the bucket 10 and the word 1101 give 1011."""
    return (buckets << np.uint64(64 - bits)) | (entries[:, 0] >> np.uint64(bits)) if bits else entries[:, 0]


def _bucket_groups(buckets: Hashes) -> Iterator[tuple[npt.NDArray[np.intp], slice]]:
    """Some buckets at a time, which ascend: where each begins, and the rows of all of them.

    With two at a time, the buckets [3, 3, 5, 8, 8] are (0 and 2, rows 0 to 3), and (3, rows 3 to 5).
    """
    starts = np.flatnonzero(np.diff(buckets, prepend=~buckets[:1]))
    for at in range(0, len(starts), _BUCKETS_AT_ONCE):
        some = starts[at : at + _BUCKETS_AT_ONCE]
        end = starts[at + len(some)] if at + len(some) < len(starts) else len(buckets)
        yield some, slice(int(some[0]), int(end))


def _read(store: Store, buckets: Hashes) -> tuple[npt.NDArray[np.int64], Hashes]:
    """The number of entries of each of these buckets, which ascend, and all their entries [entries, 2]."""
    rows = store.execute(
        "SELECT wanted.key, entries FROM json_each(?) AS wanted"
        " CROSS JOIN id_index ON label = ? AND bucket = wanted.value",  # CROSS: for each bucket that is wanted
        (json.dumps(buckets.tolist()), store.label),
    ).fetchall()
    rows.sort()
    counts = np.zeros(len(buckets), np.int64)
    counts[[at for at, _ in rows]] = [len(entries) // 16 for _, entries in rows]
    content = b"".join(entries[: len(entries) // 16 * 16] for _, entries in rows)
    return counts, np.frombuffer(content, "<u8").reshape(-1, 2)
