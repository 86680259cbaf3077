"""The most memory that a process of a party takes: what a rehearsal took, and what more records add to it.

    peak(n) = peak(m) + (n - m)·(bytes that every record costs) + features(n) - features(m) + reading(n) - reading(m)

`features(n)` are 4 bytes for each number of a record, and no more than what is kept in memory: larger ones lie on disk.
`reading(n)` are 32 for each number of two blocks, one of which is read while the other is encoded. Weights,
optimiser state, batches and what is under way are the same for any number of records, and in peak(m) already.
"""

from __future__ import annotations

from tpsl.data.arrays import LARGE_BYTES
from tpsl.planning.rehearsal import Rehearsal
from tpsl.tables.reading import BLOCK_ROWS
from tpsl.transport.peers import LABEL_PARTY

LABEL_RECORD_BYTES, FEATURE_RECORD_BYTES = 200, 120
"""Measured: id, place in the order of records and of an epoch, split, and at the label party labels and evidence."""
_NUMBER_BYTES, _NUMBER_BYTES_IN_WORK = 4, 32
_RECORDS_IN_WORK = 2 * BLOCK_ROWS


def peak_bytes(rehearsed: Rehearsal, party: str, rows: int, fields: int) -> int:
    """Return the most memory of a process of a party that holds this many numbers of each of n records."""
    each = LABEL_RECORD_BYTES if party == LABEL_PARTY else FEATURE_RECORD_BYTES
    before = rehearsed.counts.rows
    more = (rows - before) * each + _fields(rows, fields) - _fields(before, fields)
    return rehearsed.peak_bytes[party] + more


def _fields(rows: int, fields: int) -> int:
    """Return the bytes of what is made of a party's columns, and of those that are being read."""
    held = min(rows * fields * _NUMBER_BYTES, LARGE_BYTES)
    return held + min(rows, _RECORDS_IN_WORK) * fields * _NUMBER_BYTES_IN_WORK
