"""Where each id is: for each block of records the hashes of its ids, in order.

An id is known by 128 bits: two hashes under the vault's own random key (`Texts.hashes`). Equal bits are taken for equal
ids, and no id is compared. Both hashes of two different ids, whoever chose them without the key, agree with probability
at most 2^-114. Of 10^9 records and 10^9 ids that are asked for, any two of the 2^60 pairs that could be confused are
with probability below 2^-54.

A look-up reads the whole index, 18 bytes for each record of the vault, once for every 8 million ids. Its memory is that
of so many ids and of the answer.
"""

from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tpsl.spill import RowParts, by_high_bits
from tpsl.vault.blocks import CHUNK, Positions, chunk_count, count_records, ids_between
from tpsl.vault.errors import VaultError
from tpsl.vault.store import Store
from tpsl.vault.texts import Hashes, Texts

SCHEMA = """CREATE TABLE id_index (
    label INTEGER NOT NULL, chunk INTEGER NOT NULL, entries BLOB NOT NULL, UNIQUE (label, chunk)
)"""
KEY_SCHEMA = "CREATE TABLE id_key AS SELECT randomblob(16) AS key"

_ENTRY = np.dtype([("first", "<u8"), ("second", "<u8"), ("place", "<u2")])
"""Both hashes of an id, and its place in the block."""
_IDS_AT_ONCE = 1 << 23
_PARTS = 256


class Ids(Protocol):
    """A column of ids: `Texts`, or what becomes texts when it is needed."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Texts:
        """Those from one row to before another."""


def find_positions(store: Store, ids: Ids, records: int | None = None) -> Positions:
    """The position of each id, -1 where it is not among the first records of the vault, all or so many."""
    key, records = _key(store), count_records(store) if records is None else records
    positions = np.full(len(ids), -1, np.int64)
    for start in range(0, len(ids), _IDS_AT_ONCE):
        first, second = _hashes(key, ids, start, min(start + _IDS_AT_ONCE, len(ids)))
        order = np.argsort(first)
        first, second = first[order], second[order]
        for chunk in range(chunk_count(records)):
            entries = _read(store, chunk, min(CHUNK, records - chunk * CHUNK))
            stored = np.ascontiguousarray(entries["first"])
            if len(first) < len(stored):
                asked, here = _equal(first, stored)
            else:
                here, asked = _equal(stored, first)
            same = second[asked] == entries["second"][here]
            positions[start + order[asked[same]]] = chunk * CHUNK + entries["place"][here[same]].astype(np.int64)
    return positions


def enter(store: Store, known: int) -> tuple[int, int] | None:
    """Enter the records from position `known` on, whose blocks are there.

    Returns the positions of two of them with equal ids, if there are any; that none was there before is for the caller
    to know.
    """
    key, records = _key(store), count_records(store)
    with RowParts(store.folder, _PARTS) as new:
        for chunk in range(known // CHUNK, chunk_count(records)):
            start = chunk * CHUNK
            entries = _entries(key, ids_between(store, start, start + CHUNK))
            store.execute("INSERT OR REPLACE INTO id_index VALUES (?, ?, ?)", (store.label, chunk, entries.tobytes()))
            entries = entries[start + entries["place"].astype(np.int64) >= known]
            first = np.ascontiguousarray(entries["first"])
            new.write(by_high_bits(first), first, entries["second"], start + entries["place"].astype(np.int64))
        for first, second, positions in new.parts():
            order = np.argsort(first)
            equal = np.flatnonzero(np.diff(first[order]) == 0)
            rows = order[np.union1d(equal, equal + 1)]  # hardly any
            rows = rows[np.lexsort((positions[rows], second[rows], first[rows]))]
            for one, other in pairwise(rows.tolist()):
                if (first[one], second[one]) == (first[other], second[other]):
                    return int(positions[one]), int(positions[other])
    return None


def is_index_of(store: Store, chunk: int, ids: Texts) -> bool:
    """Whether the index of a block is that of its ids."""
    try:
        return _read(store, chunk, len(ids)).tobytes() == _entries(_key(store), ids).tobytes()
    except VaultError:
        return False


def _key(store: Store) -> bytes:
    """The key of the hashes of ids, for all labels of the vault; as secret as the vault."""
    row = store.execute("SELECT key FROM id_key").fetchone()
    if row is None or not isinstance(row[0], bytes):
        raise _damaged()
    return row[0]


def _hashes(key: bytes, ids: Ids, start: int, stop: int) -> tuple[Hashes, Hashes]:
    """Both hashes of the ids from one row to before another."""
    parts = [ids.part(at, min(at + CHUNK, stop)).hashes(key) for at in range(start, stop, CHUNK)]
    first, second = (np.concatenate(hashes) for hashes in zip(*parts, strict=True))
    return first, second


def _entries(key: bytes, ids: Texts) -> npt.NDArray[np.void]:
    """The index of a block with these ids, in the order of their hashes."""
    first, second = ids.hashes(key)
    order, entries = np.argsort(first), np.empty(len(ids), _ENTRY)
    entries["first"], entries["second"], entries["place"] = first[order], second[order], order
    return entries


def _read(store: Store, chunk: int, records: int) -> npt.NDArray[np.void]:
    """The stored index of a block of so many records."""
    row = store.execute("SELECT entries FROM id_index WHERE label = ? AND chunk = ?", (store.label, chunk)).fetchone()
    if row is None or len(row[0]) != records * _ENTRY.itemsize:
        raise _damaged()
    entries = np.frombuffer(row[0], _ENTRY)
    if records and int(entries["place"].max()) >= records:
        raise _damaged()
    return entries


def _damaged() -> VaultError:
    return VaultError("the index of the record ids is damaged; run verify on the vault")


def _equal(few: Hashes, many: Hashes) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """All pairs of equal numbers of two ascending columns, by their rows.

    With few = [3, 5] and many = [3, 3, 4, 5] these are the rows [0, 0, 1] and [0, 1, 3].
    """
    starts = np.searchsorted(many, few, "left")
    counts = np.searchsorted(many, few, "right") - starts
    of_few = np.repeat(np.arange(len(few)), counts)
    return of_few, np.arange(len(of_few)) + np.repeat(starts - np.cumsum(counts) + counts, counts)
